"""The verb ``adapt``: adapt a trained network to a target domain without using its labels."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from runner.commands.evaluate import with_other_data
from runner.commands.stored_network import DEVICE_HELP, add_arguments, network_in, split_device, with_device
from runner.config.schema import METHODS
from runner.system.console import add_yaml_options, verb_parser
from runner.system.text import significant, text_table

if TYPE_CHECKING:
    from runner.training.adaptation.adapting import Adapted

_ALLOWED = ("data", "adapt", "train.eval_batch_size")
_REFUSAL = (
    "only data=NAME and data.KEY for the target, adapt.methods, adapt.batch_size, adapt.batches, adapt.curve, "
    "train.eval_batch_size, cluster.device, cluster.gpus and cluster.tf32 may be given, and --config-dir DIR for your "
    "own NAME"
)

_EXAMPLE = """\
examples:
  runner adapt outputs/2026-01-31/12-00-00 data=usps
  runner adapt outputs/2026-01-31/12-00-00 data=usps "adapt.methods=[adabn,coral,adabn_coral]" "adapt.curve=[1,2,4,8]"
  runner eval outputs/2026-01-31/12-00-00/adapted/adabn"""


def main(arguments: Sequence[str]) -> int:
    parser = verb_parser(
        "adapt",
        "Adapt a trained network to the dataset data=NAME, without its labels: adapt.methods is a list of "
        f"{', '.join(METHODS)}. Each adapted network is stored as a run, for `runner eval`, `predict` and resume=DIR."
        f"\n{DEVICE_HELP}.",
        _EXAMPLE,
    )
    add_arguments(parser)
    parser.add_argument("overrides", nargs="+", metavar="KEY=VALUE", help="data=NAME, data.KEY, adapt.KEY, cluster.KEY")
    add_yaml_options(parser, ", for data=NAME")
    parser.add_argument("--output", type=Path, metavar="DIR", help="folder of the results (default: RUN/adapted)")
    options = parser.parse_intermixed_args(arguments)
    network = network_in(options.checkpoint, options.which)
    device_overrides, overrides = split_device(options.overrides)
    changed = with_other_data(network.config, overrides, options.config_dir, _ALLOWED, _REFUSAL)
    config = with_device(replace(network.config, train=changed.train), device_overrides)
    from runner.training.adaptation.storing import FOLDER, Trained, adapt_and_store

    folder = (options.output or network.run_dir / FOLDER).absolute()
    settings = replace(changed.adapt, data=asdict(changed.data))
    trained = Trained(config, network.run_dir, network.checkpoint, network.normalisation())
    found = adapt_and_store(trained, settings, folder)
    print(report(found))
    print(f"\n{found.examples:,} target examples; written to {folder}: {', '.join(settings.methods)}")
    return 0


def report(found: "Adapted") -> str:
    """Return the scores of each network, and the divergence at each layer, as tables."""
    metrics = list(next(iter(found.scores.values())))
    scored = [(name, *(significant(scores[metric]) for metric in metrics)) for name, scores in found.scores.items()]
    scored += [
        (f"adabn, {batches} batch{'es' * (batches > 1)}", *(significant(scores[metric]) for metric in metrics))
        for batches, scores in found.curve.items()
    ]
    networks = list(found.divergence)
    layers = [
        (layer, *(significant(found.divergence[name][layer]) for name in networks))
        for layer in next(iter(found.divergence.values()))
    ]
    tables = (("on the target", *metrics), scored), (("divergence at", *networks), layers)
    return "\n\n".join(text_table(header, rows) for header, rows in tables)
