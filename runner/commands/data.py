"""The verb ``data``: list the datasets, fetch one into the cache, convert one to records, or inspect one."""

from argparse import ArgumentTypeError
from collections.abc import Sequence
from pathlib import Path

from runner.config import hydra_app
from runner.data import DATASETS
from runner.data.convert import convert
from runner.data.domains import Domains
from runner.data.fetch import fetch
from runner.data.inspection import inspection
from runner.data.origins import ORIGINS
from runner.data.own_files import OwnFiles
from runner.data.published import cache_root, is_cached
from runner.system.console import add_yaml_options, parse_subcommand, verb_parser

_DESCRIPTION = "List the datasets, download one into the cache, convert one to records, or inspect one."
_EXAMPLES = """\
examples:
  runner data list
  runner data fetch mnist
  runner data convert records data=cifar10
  runner data inspect data=cifar10"""


def main(arguments: Sequence[str]) -> int:
    parser = verb_parser("data", _DESCRIPTION, _EXAMPLES)
    commands = parser.add_subparsers(dest="command", required=True)
    fetching = commands.add_parser("fetch", help="download a dataset into the cache")
    fetching.add_argument("name", choices=ORIGINS, metavar="NAME", help=", ".join(ORIGINS))
    listing = commands.add_parser("list", help="show all datasets and their locations")
    for command in (fetching, listing):
        command.add_argument("--cache-dir", help=f"folder of fetched datasets (default: {cache_root(None)})")
    converting = commands.add_parser("convert", help="write a dataset as TFRecord shards")
    converting.add_argument("folder", type=Path, help="new folder of the records")
    converting.add_argument("--shards", type=_count, default=8, help="files of the train split (default: 8)")
    converting.add_argument("--test-shards", type=_count, default=2, help="files of the test split (default: 2)")
    inspecting = commands.add_parser("inspect", help="show counts, shapes, classes, times and distorted examples")
    inspecting.add_argument("--sheet", type=Path, metavar="FILE", help="write distorted train images as a PNG file")
    for command in (converting, inspecting):
        command.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="the dataset, as for training")
        add_yaml_options(command, ", for data=NAME")
    options = parse_subcommand(parser, arguments)
    match options.command:
        case "fetch":
            fetch(options.name, options.cache_dir)
        case "list":
            print(_describe_datasets(cache_root(options.cache_dir)))
        case "convert":
            settings = hydra_app.compose(options.overrides, config_dir=options.config_dir).config().data
            settings.require_present()
            convert(settings, options.folder, (options.shards, options.test_shards))
        case "inspect":
            config = hydra_app.compose(options.overrides, config_dir=options.config_dir).config()
            config.data.require_present()
            print(inspection(config.data, config.seed, config.train.batch_size, options.sheet))
    return 0


def _count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 99_999:
        raise ArgumentTypeError(f"expected 1 to 99999, found {text!r}")
    return int(text)


def _describe_datasets(root: Path) -> str:
    """Return a table of all datasets with default settings; the last column is the location of the data."""
    lines = [f"{'name':14} {'shape':12} {'classes':>7} {'train':>7} {'test':>7}  where"]
    for name, settings in DATASETS.items():
        example = settings()
        if isinstance(example, OwnFiles) and not example.path:
            lines.append(f"{name:49}  your files: {example.ask}")
            continue
        if isinstance(example, Domains):
            lines.append(f"{name:49}  other datasets, one for each name: data.sources.NAME.name=DATASET")
            continue
        where = "nothing to fetch"
        if name in ORIGINS:
            cached = is_cached(ORIGINS[name][0], root)
            where = str(root / name) if cached else f"to get it: runner data fetch {name}"
        facts = example.facts()
        shape = "x".join(map(str, facts.shape))
        counts = f"{facts.classes:7} {facts.train_examples:7} {facts.test_examples:7}"
        lines.append(f"{name:14} {shape:12} {counts}  {where}")
    return "\n".join(lines)
