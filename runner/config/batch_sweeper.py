"""Hydra's basic sweeper, for jobs that :class:`runner.config.hydra_sweep.BatchLauncher` composes.

Import this module only after Hydra has searched for plugins: the search executes the modules of Hydra's own plugins
again, and classes that were imported from them before the search no longer work.
"""

import sys
from collections.abc import Sequence

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper


class BatchSweeper(BasicSweeper):
    """A sweeper that leaves the check of its jobs to the launcher; Hydra's composes each job once more to check it."""

    def validate_batch_is_legal(self, batch: Sequence[Sequence[str]]) -> None:
        """Do nothing: the launcher composes all jobs of a batch before it creates a directory."""


REPLACED = f"{BasicSweeper.__module__}.{BasicSweeper.__name__}"
"""Name of the class that :class:`BatchSweeper` replaces."""

# Hydra creates sweepers only from classes that it finds in the package hydra_plugins: this module is found there too.
BatchSweeper.__module__ = "hydra_plugins.runner_sweeper"
sys.modules[BatchSweeper.__module__] = sys.modules[__name__]
