"""The command ``runner data``: fetch a dataset, or list what there is."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from runner.data import DATASETS
from runner.data.cache import cache_root, is_cached
from runner.data.fetch import fetch
from runner.data.origins import ORIGINS
from runner.data.own_files import OwnFiles


def main(arguments: Sequence[str]) -> None:
    """Run ``runner data`` with the arguments that follow it.

    Wrong arguments end the process with exit code 2, as argparse does; see ``fetch`` for other errors.
    """
    parser = argparse.ArgumentParser(
        prog="runner data", description=__doc__, epilog="examples:  runner data list;  runner data fetch mnist"
    )
    commands = parser.add_subparsers(dest="command", required=True)
    fetching = commands.add_parser("fetch", help="download a dataset into the cache")
    fetching.add_argument("name", choices=ORIGINS, metavar="NAME", help=", ".join(ORIGINS))
    listing = commands.add_parser("list", help="show all datasets and which are in the cache")
    for command in (fetching, listing):
        command.add_argument("--cache-dir", help=f"folder of fetched datasets (default: {cache_root(None)})")
    options = parser.parse_args(arguments)
    if options.command == "fetch":
        fetch(options.name, options.cache_dir)
    else:
        print(describe_datasets(cache_root(options.cache_dir)))


def describe_datasets(root: Path) -> str:
    """Return a table of all datasets at their default settings, with where each is."""
    lines = [f"{'name':14} {'shape':12} {'classes':>7} {'train':>7} {'test':>7}  where"]
    for name, settings in DATASETS.items():
        example = settings()
        if isinstance(example, OwnFiles) and not example.path:
            lines.append(f"{name:49}  your own files: {example.ask}")
            continue
        facts = example.facts()
        shape = "x".join(map(str, facts.shape))
        lines.append(
            f"{name:14} {shape:12} {facts.classes:7} {facts.train_examples:7} {facts.test_examples:7}  "
            f"{_whereabouts(name, root)}"
        )
    return "\n".join(lines)


def _whereabouts(name: str, root: Path) -> str:
    if name not in ORIGINS:
        return "nothing to fetch"
    published, _ = ORIGINS[name]
    return str(root / name) if is_cached(published, root) else f"to get it: runner data fetch {name}"
