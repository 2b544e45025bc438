"""The verb ``profile``: measure the costs of a configuration on this machine, for ``runner simulate``."""

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from runner.config import hydra_app
from runner.config.configuration import fix_machine_values
from runner.config.error_text import unknown_command_line_option
from runner.errors import ConfigError
from runner.system.console import add_yaml_options, verb_parser
from runner.system.files import writing
from runner.system.machine import usable_cores
from runner.system.text import number
from runner.training.link_test import with_messages
from runner.training.profiles import profile_here, with_instructions, write_profile

_EXAMPLE = """\
Measurements of this configuration replace those of equal shapes in FILE; all others are kept. Nothing is trained.

example: runner profile model=lenet data=mnist parallelism=single --threads 1 2 --output this_machine.json"""


def main(arguments: Sequence[str]) -> int:
    """Measure a configuration in this process, measure messages between two processes, and add the times to a file.

    Raises ConfigError if the file holds the profile of another machine, ResourceError if it cannot be written.
    """
    parser = verb_parser(
        "profile",
        "Measure the costs of a configuration's instructions and of messages on this machine, for runner simulate.",
        _EXAMPLE,
        advice=unknown_command_line_option,
    )
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="overrides, as for training")
    parser.add_argument("--output", "-o", type=Path, required=True, metavar="FILE", help="profile, created or extended")
    parser.add_argument("--threads", type=int, nargs="+", metavar="N", help="kernel threads (default: as in a run)")
    parser.add_argument(
        "--messages", action="store_true", help="measure messages again even if FILE has times of messages"
    )
    add_yaml_options(parser, primary=True)
    options = vars(parser.parse_intermixed_args(arguments))
    output, threads, again = (options.pop(name) for name in ("output", "threads", "messages"))
    job = hydra_app.compose([*options.pop("overrides"), "cluster.device=cpu"], **options)
    config = fix_machine_values(job.config(), usable_cores())
    if any(count < 1 for count in threads or ()):
        raise ConfigError(f"--threads {' '.join(map(str, threads))}: expected 1 or more")
    profile = profile_here(output)
    if again or profile.messages is None:
        with tempfile.TemporaryDirectory(prefix="runner-profile-") as folder:
            profile = with_messages(profile, Path(folder))
    for count in threads or [config.cluster.threads_per_worker]:
        own = replace(config, cluster=replace(config.cluster, threads_per_worker=count))
        profile = with_instructions(profile, own)
    with writing(str(output), "choose another file with --output"):
        write_profile(output, profile)
    shapes = sum(len(family.points) for family in profile.families)
    print(f"{output}: {number(len(profile.families))} kinds of instructions in {number(shapes)} shapes", flush=True)
    return 0
