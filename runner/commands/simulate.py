"""The verb ``simulate``: predict times, traffic and memory of a configuration on described hardware."""

from collections.abc import Sequence
from pathlib import Path

from runner.config import hydra_app
from runner.config.error_text import unknown_command_line_option
from runner.config.schema import Config
from runner.system.console import verb_parser
from runner.system.text import number, text_table
from runner.training.simulation import Simulated, simulate

_EXAMPLE = "example: runner simulate experiment=imagenet_batch_1024_128 cluster=k20x8"

STEPS = 5


def main(arguments: Sequence[str]) -> int:
    """Print the predicted times of a configuration; nothing is trained, and no data are read."""
    parser = verb_parser(
        "simulate",
        "Predict times, traffic and memory of a configuration on the hardware that cluster.hardware describes.",
        _EXAMPLE,
        advice=unknown_command_line_option,
    )
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="overrides, as for training")
    parser.add_argument(
        "--steps", type=int, default=STEPS, metavar="N", help="simulated updates (default: %(default)s)"
    )
    parser.add_argument("--config-dir", "-cd", type=Path, metavar="DIR", help="your own YAML files")
    parser.add_argument("--config-path", "-cp", type=Path, metavar="DIR", help="YAML files that replace runner's own")
    parser.add_argument("--config-name", "-cn", metavar="NAME", default=hydra_app.CONFIG_NAME)
    options = vars(parser.parse_intermixed_args(arguments))
    steps = options.pop("steps")
    config = hydra_app.compose(options.pop("overrides"), **options).config()
    print(simulated_text(config, simulate(config, steps)), flush=True)
    return 0


def simulated_text(config: Config, found: Simulated) -> str:
    """Return the result of a simulation as text. Links that carry nothing are left out."""
    devices = [
        (device, f"{busy:.1%}", number(-(-found.memory_bytes[device] // 2**20))) for device, busy in found.busy.items()
    ]
    links = [
        (link, number(round(nbytes)), f"{found.utilization[link]:.1%}")
        for link, nbytes in found.carried.items()
        if nbytes
    ]
    return "\n".join(
        [
            f"simulated: model {config.model.name} on {config.data.name}, optimizer {config.optimizer.name}, "
            f"parallelism {config.parallelism.name}",
            "",
            f"update                  {1e3 * found.step_s:,.3f} ms for {number(found.examples)} examples",
            f"examples                {found.examples_per_s:,.1f} per second",
            f"training                {found.hours:,.2f} hours, without evaluations",
            "",
            text_table(("device", "computes", "memory MiB"), devices),
            "",
            text_table(("link", "bytes per update", "used"), links) if links else "Nothing is sent between devices.",
        ]
    )
