"""The verb ``simulate``: predict times, traffic and memory of a run, or of a sweep of runs, on described hardware."""

from collections.abc import Sequence

from runner.commands.train import train
from runner.errors import ConfigError
from runner.system.console import DEBUG_OPTION, verb_parser

_DESCRIPTION = """\
Predict times, traffic and memory of a run on the hardware that cluster.hardware describes. Nothing is trained, and no
data are read. All arguments of a training command are allowed, with -m those of a sweep. The run directory and the
tracking record are those of a run with status "simulated"; trace=true writes a timeline."""

_EXAMPLE = """\
examples:
  runner simulate experiment=imagenet_batch_1024_128 cluster=k20x8
  runner simulate -m model=mlp cluster=ethernet parallelism=sync_data parallelism.workers=1,2,4,8"""

KEY = "simulate.updates"
UPDATES = 5
HELP = {"-h", "--help"}


def main(arguments: Sequence[str]) -> int:
    """Simulate the configuration that overrides describe, or a sweep of them; return the exit code."""
    if HELP & set(arguments):
        parser = verb_parser("simulate", _DESCRIPTION, _EXAMPLE)
        parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="overrides, as for training")
        parser.add_argument("-m", "--multirun", action="store_true", help="simulate every combination of values")
        parser.print_help()
        return 0
    given = [argument for argument in arguments if argument.lstrip("+").startswith(f"{KEY}=")]
    if any(argument.partition("=")[2].lower() in ("", "null") for argument in given):
        raise ConfigError(
            f"{', '.join(given)}: expected a number of updates, because null trains instead of simulating"
        )
    others = [argument for argument in arguments if argument != DEBUG_OPTION]
    return train([*others, *([] if given else [f"{KEY}={UPDATES}"])], debug=DEBUG_OPTION in arguments)
