"""Models, datasets, optimizers, strategies, ops and kernels of one's own, from a Python file outside the package.

Such a file ends with one object, ``plugin = Plugin(models={"tiny": Tiny})``. It is named on the command line
(``--plugin my_model.py``) or by an entry point of an installed package (group ``runner.plugins``), never by a
configuration: what a YAML file says is data, and a stored run may be read without reading any code first.

:func:`install` adds what plugins offer to the tables of the package (``MODELS``, ``DATASETS``, ``OPTIMIZERS``,
``STRATEGIES``, the ops and the kernels). It is the only change these tables see after their import; every process of
a run makes it once, at its start, before anything reads them.
"""

from runner.plugin.contract import Plugin
from runner.plugin.installing import (
    ChangedPlugin,
    changed_plugins,
    install,
    pinned_references,
    plugin_notes,
    provenance,
)
from runner.plugin.loading import faults_told

__all__ = [
    "ChangedPlugin",
    "Plugin",
    "changed_plugins",
    "faults_told",
    "install",
    "pinned_references",
    "plugin_notes",
    "provenance",
]
