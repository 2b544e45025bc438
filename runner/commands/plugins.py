"""The command-line option ``--plugin``, and the plugins of installed packages."""

import importlib.metadata
from collections.abc import Sequence

from runner.errors import ConfigError

OPTION = "--plugin"
GROUP = "runner.plugins"
"""Each entry point of this group names a module, or the object ``plugin`` in a module."""


def split_plugins(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the values of ``--plugin``, in order, and the other arguments.

    Raises ConfigError if a value is missing.
    """
    references: list[str] = []
    others: list[str] = []
    waiting = iter(arguments)
    for argument in waiting:
        name, given, reference = argument.partition("=")
        if name != OPTION:
            others.append(argument)
            continue
        reference = reference if given else next(waiting, "")
        if not reference or reference.startswith("-"):
            raise ConfigError(f"{OPTION}: expected a Python file or module, as in {OPTION} my_model.py")
        references.append(reference)
    return references, others


def install_plugins(references: Sequence[str]) -> None:
    """Load the plugins of the command line, then those of installed packages; see :func:`runner.plugin.install`."""
    wanted = [*references, *_installed()]
    if wanted:
        # Imported here, so that commands without plugins do not load the tables of models and other options.
        from runner.plugin import install

        install(wanted)


def _installed() -> list[str]:
    """Return the modules that entry points name; raise ConfigError if one names an object other than ``plugin``."""
    points = sorted(importlib.metadata.entry_points(group=GROUP), key=lambda point: point.name)
    for point in points:
        if point.attr and point.attr != "plugin":
            raise ConfigError(
                f"entry point {point.name} = {point.value} of group {GROUP}: expected a module, or MODULE:plugin; "
                "correct or uninstall its package"
            )
    return [point.module for point in points]
