"""Declarative, config-driven experiment runner for parallel neural-network training."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from runner.records.summary import Summary

__all__ = ["run"]


def run(overrides: Sequence[str] = ()) -> "Summary":
    """Train as the command line ``runner OVERRIDES`` does, and return the summary of the run.

    Raises the :class:`runner.errors.RunnerError` that the command line would print before it exits.
    """
    # Imported here, so that `import runner` does not load the modules that compose a configuration and train it.
    from runner.commands.train import run as run_command

    return run_command(overrides)
