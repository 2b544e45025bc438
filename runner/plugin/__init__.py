"""The user's options, such as models and optimizers, ops and kernels, from a Python file outside the package.

Such a file ends with a statement like ``plugin = Plugin(models={"tiny": Tiny})``. The file is named on the command
line (``--plugin my_model.py``) or by an entry point of an installed package (group ``runner.plugins``). A configuration
never names this file, so that a stored run can be read without executing code.

:func:`install` adds the content of plugins to the tables of the package: ``contract.TABLES``, the ops and the kernels.
Every process of a run installs its plugins once, at its start, before it reads the tables. ``session`` adds classes of
a Python session for the duration of one call. Nothing else changes these tables after their modules are imported.
"""

from runner.plugin.contract import Plugin
from runner.plugin.installing import changed_plugins, install, loadable, pinned_references, plugin_notes, provenance
from runner.plugin.loading import plugin_errors

__all__ = [
    "Plugin",
    "changed_plugins",
    "install",
    "loadable",
    "pinned_references",
    "plugin_errors",
    "plugin_notes",
    "provenance",
]
