"""Declarative, config-driven experiment runner for parallel neural-network training."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from runner.records.summary import Summary

__all__ = ["run"]


def run(overrides: Sequence[str] = ()) -> "Summary":
    """Train as the command line ``runner OVERRIDES`` does, and return the summary of the run.

    Raises a subclass of :class:`runner.errors.RunnerError` where the command line would exit with its code.
    """
    # Imported here, so that `import runner` does not load the modules of composition and training.
    from runner.commands.train import run as run_command

    return run_command(overrides)
