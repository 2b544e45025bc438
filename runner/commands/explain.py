"""The verb ``explain``: parameters, cost, placement and memory of a configuration, before anything is trained."""

from collections.abc import Sequence
from pathlib import Path

from runner.config import hydra_app
from runner.config.configuration import fix_machine_values
from runner.config.devices import look_at
from runner.system.console import verb_parser
from runner.system.machine import usable_cores

_EXAMPLE = """\
Exit code 4, with the reason, if this machine has too little memory.

examples:
  runner explain model=lenet data=mnist
  runner explain model=vgg_a data=synthetic train.batch_size=64 parallelism=sync_data parallelism.workers=4"""


def main(arguments: Sequence[str]) -> int:
    """Print parameters, cost, placement and memory of a configuration; nothing is trained or written.

    Raises ResourceError, after the text, if this machine or one of its GPUs has too little memory.
    """
    parser = verb_parser(
        "explain",
        "Print parameters, cost, placement and memory of a configuration. Nothing is trained.",
        _EXAMPLE,
    )
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="as for training")
    parser.add_argument("--config-dir", "-cd", type=Path, metavar="DIR", help="YAML files of your own")
    parser.add_argument("--config-path", "-cp", type=Path, metavar="DIR", help="YAML files in place of those of runner")
    parser.add_argument("--config-name", "-cn", metavar="NAME", default=hydra_app.CONFIG_NAME)
    options = vars(parser.parse_intermixed_args(arguments))
    job = hydra_app.compose(options.pop("overrides"), **options)
    config = fix_machine_values(job.config(), usable_cores())
    from runner.commands.explanation import explain_with_memory
    from runner.system.machine import process_room, usable_memory
    from runner.training.memory import require_fit, require_gpu_fit

    found = look_at(config.cluster)
    text, memory, on_gpus = explain_with_memory(config, found)
    print(text, flush=True)
    require_fit(memory, usable_memory(), process_room())
    require_gpu_fit(on_gpus, found.gpus)
    return 0
