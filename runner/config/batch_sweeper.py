"""Hydra's basic sweeper, for jobs that :class:`runner.config.hydra_sweep.BatchLauncher` composes.

Import this module only after Hydra has searched for plugins. The search executes the modules of Hydra's own plugins
again, so that classes imported from these modules earlier no longer work.
"""

import sys
from collections.abc import Sequence

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper


class BatchSweeper(BasicSweeper):
    """A sweeper whose launcher checks the jobs; Hydra's own sweeper composes each job a second time for this check."""

    def validate_batch_is_legal(self, batch: Sequence[Sequence[str]]) -> None:
        """Do nothing: the launcher composes all jobs of a batch before it creates a directory."""


REPLACED = f"{BasicSweeper.__module__}.{BasicSweeper.__name__}"  # name of the class that :class:`BatchSweeper` replaces

# Hydra creates sweepers only from classes in the package hydra_plugins, so this module is also registered there.
BatchSweeper.__module__ = "hydra_plugins.runner_sweeper"
sys.modules[BatchSweeper.__module__] = sys.modules[__name__]
