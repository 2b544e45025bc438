"""Declarative, config-driven experiment runner for parallel neural-network training."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from runner.records.summary import Summary

__all__ = ["run"]


def run(overrides: Sequence[str] = ()) -> "Summary":
    """Train as the command line ``runner OVERRIDES`` does, and return the summary of the run.

    Where the command line prints an error and exits, this function raises the :class:`runner.errors.RunnerError`.
    """
    # Imported here, so that `import runner` does not load the modules for configuration and training.
    from runner.commands.train import run as run_command

    return run_command(overrides)
