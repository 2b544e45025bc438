"""The command-line option ``--plugin``, and the plugins of installed packages."""

import importlib.metadata
from collections.abc import Collection, Sequence
from pathlib import Path

from runner.errors import ConfigError

OPTION = "--plugin"
GROUP = "runner.plugins"  # each entry point of this group names a module, or the object ``plugin`` in a module


def split_plugins(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the values of ``--plugin``, in order, and the other arguments.

    Raises ConfigError if a value is missing.
    """
    references: list[str] = []
    others: list[str] = []
    remaining = iter(arguments)
    for argument in remaining:
        name, given, reference = argument.partition("=")
        if name != OPTION:
            others.append(argument)
            continue
        reference = reference if given else next(remaining, "")
        if not reference or reference.startswith("-"):
            raise ConfigError(f"{OPTION}: expected a Python file or module, as in {OPTION} my_model.py")
        references.append(reference)
    return references, others


def install_plugins(references: Sequence[str]) -> dict[str, str]:
    """Load the plugins of the command line, then the plugins of installed packages; see :func:`runner.plugin.install`.

    Returns reference -> SHA-256 of the source, for those plugins of this process that another process can load.
    """
    wanted = [*references, *_installed()]
    if not wanted:
        return {}
    # Imported here, so that workers and commands without plugins do not load the tables of models and other options.
    from runner.plugin import install, loadable

    install(wanted)
    return loadable()


def plugin_words() -> list[str]:
    """Return the words of a command line that load the plugins of this process."""
    from runner.plugin import loadable

    return [word for reference in loadable() for word in (OPTION, reference)]


def require_session_classes(run_dir: Path, given: Collection[str] = ()) -> None:
    """Raise ConfigError if a run's configuration names classes of a Python session that this process does not have.

    given: references of classes that the caller passed, in addition to the plugins of this process.
    """
    from runner.plugin import provenance
    from runner.plugin.session import OPTION_CLASS
    from runner.records.run_directory import SESSION_FOLDER
    from runner.records.stored_run import read_plugins

    found = [match for each in read_plugins(run_dir) or () if (match := OPTION_CLASS.fullmatch(each))]
    lacking = [f"{match[1]}={match[2]}" for match in found if match[0] not in {*provenance(), *given}]
    if lacking:
        raise ConfigError(
            f"{run_dir}: the run uses classes of a Python session that are missing here: {', '.join(lacking)}; define "
            f"them in Python (their source is in {run_dir / SESSION_FOLDER}) and use "
            "runner.load(DIR, classes=[CLASS]), or write a plugin"
        )


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
