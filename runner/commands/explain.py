"""The verb ``explain``: what a configuration amounts to, before anything is trained."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from runner.config import hydra_app
from runner.config.configuration import fix_machine_values
from runner.cores import usable_cores


def explain(arguments: Sequence[str]) -> int:
    """Print what a configuration amounts to; nothing is trained or written."""
    parser = argparse.ArgumentParser(
        prog="runner explain",
        description="Print what a configuration amounts to: parameters, cost, placement. Nothing is trained.",
    )
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="as for training")
    parser.add_argument("--config-dir", "-cd", type=Path, metavar="DIR", help="YAML files of your own")
    parser.add_argument("--config-path", "-cp", type=Path, metavar="DIR", help="instead of the project's")
    parser.add_argument("--config-name", "-cn", metavar="NAME", default=hydra_app.CONFIG_NAME)
    options = vars(parser.parse_intermixed_args(arguments))
    job = hydra_app.compose(options.pop("overrides"), **options)
    config = fix_machine_values(job.config(), usable_cores())
    from runner.commands.explanation import explain as explanation_of

    print(explanation_of(config))
    return 0
