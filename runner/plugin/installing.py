"""Add plugins to the tables of the package, once, at the start of a process."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from runner.engine.graph.op import OPS, register
from runner.engine.run.kernel_table import load_kernels
from runner.errors import ConfigError
from runner.plugin.contract import TABLES, Plugin
from runner.plugin.loading import CALLBACKS, PIN, SESSION, execute, locate

PLUGINS: dict[str, str] = {}
"""Reference of every installed plugin -> SHA-256 of its source."""


def install(references: Sequence[str]) -> None:
    """Add the content of plugins to the tables; skip a plugin that is already installed from the same source.

    references: files (``FILE.py``) or modules, see :func:`~runner.plugin.loading.locate`. Executes their code. Raises
    ConfigError if a plugin cannot be loaded or conflicts with the tables; no part of that plugin is then added.
    """
    if isinstance(references, str):
        raise ConfigError(f"install({references!r}): expected a list, as in install([{references!r}])")
    for reference in references:
        located = locate(reference)
        same = [each for each, sha256 in PLUGINS.items() if sha256 == located.sha256]
        # Modules with equal sources, such as "from .models import plugin", are different plugins.
        if same and (located.reference in same or any(each.endswith(".py") for each in (*same, located.reference))):
            continue
        plugin = execute(located)
        faults = [*_taken(plugin), *_kernel_faults(plugin)]
        if faults:
            raise ConfigError("\n".join(f"{located.path}: {fault}" for fault in faults))
        _extend(plugin)
        PLUGINS[located.reference] = located.sha256


def provenance() -> dict[str, str]:
    """Return reference -> SHA-256 of the source for every plugin of this process, as plain data."""
    return dict(PLUGINS)


def pinned_references() -> list[str]:
    """Return references with checksums, with which :func:`install` creates the same tables in another process.

    Classes of a Python session are left out, because another process cannot import them.
    """
    return [f"{reference}{PIN}{sha256}" for reference, sha256 in loadable().items()]


def loadable() -> dict[str, str]:
    """Return reference -> SHA-256 of the source for the plugins that another process can load."""
    return {reference: sha256 for reference, sha256 in PLUGINS.items() if not reference.startswith(SESSION)}


def _extend(plugin: Plugin) -> None:
    for name, table in TABLES.items():
        table.update(getattr(plugin, name))
    if plugin.kernels:
        # The ops are added after the kernels, because load_kernels() requires a kernel for every op in the table.
        registry = load_kernels()
        for kernel in plugin.kernels:
            registry.add(kernel)
    for op in plugin.ops:
        register(op)


def _taken(plugin: Plugin) -> list[str]:
    """Return an error message for every name that is already in a table or occurs twice in the plugin."""
    offered: list[tuple[str, Sequence[str], Mapping[str, Any]]] = [
        (name, list(getattr(plugin, name)), table) for name, table in TABLES.items()
    ]
    offered.append(("ops", [op.name for op in plugin.ops], OPS))
    return [
        f"{name}: {taken!r} already exists in runner or another plugin; use another name"
        for name, own, table in offered
        for position, taken in enumerate(own)
        if taken in table or taken in own[:position]
    ]


def _kernel_faults(plugin: Plugin) -> list[str]:
    """Return an error message for every kernel of an unknown op, or with the priority of another kernel of its op."""
    if not plugin.kernels:
        return []
    registry = load_kernels()
    known = {*OPS, *(op.name for op in plugin.ops)}
    unknown = [kernel.op for kernel in plugin.kernels if kernel.op not in known]
    faults = [f"kernels: there is no op {op!r}; add it to ops" for op in unknown]
    for position, kernel in enumerate(plugin.kernels):
        rivals = [*registry.of(kernel.op, kernel.device_type), *plugin.kernels[:position]]
        rank = (kernel.op, kernel.device_type, kernel.priority)
        if any((rival.op, rival.device_type, rival.priority) == rank for rival in rivals):
            faults.append(
                f"kernels: op {kernel.op!r} has a kernel of priority {kernel.priority} on {kernel.device_type!r} "
                "already; use another priority"
            )
    return faults


def changed_plugins(recorded: Mapping[str, str]) -> Iterator[str]:
    """Yield a message for each plugin of this process whose source differs from ``recorded`` (reference -> SHA-256).

    A file of the same name in another folder counts as the same plugin. Added and missing plugins are not errors,
    because a run that changes its strategy may need others; :func:`plugin_notes` reports them.
    """
    for reference, before in recorded.items():
        given_as = _given_as(reference, before, recorded)
        if given_as is not None and PLUGINS[given_as] != before:
            place = "" if given_as == reference else f" (now {given_as})"
            yield f"plugin {reference}{place} was changed: its SHA-256 was {before} and is now {PLUGINS[given_as]}"


def plugin_notes(recorded: Mapping[str, str] | None) -> Iterator[str]:
    """Yield messages about plugins of this process that were moved, added or left out compared with ``recorded``.

    recorded: reference -> SHA-256; None if the run has no record of its plugins.
    """
    if recorded is None:
        if PLUGINS:
            yield f"the run has no record of its plugins; not compared with {', '.join(PLUGINS)}"
        return
    # Callback classes of a Python session may differ, because they are not part of the configuration.
    recorded = {reference: before for reference, before in recorded.items() if not reference.startswith(CALLBACKS)}
    known = {_given_as(reference, before, recorded): reference for reference, before in recorded.items()}
    for reference, before in recorded.items():
        given_as = _given_as(reference, before, recorded)
        if given_as is None:
            yield f"plugin {reference} of the run is not loaded: its content is not available"
        elif given_as != reference:
            yield f"plugin {reference} is now {given_as}"
    for reference in PLUGINS:
        if reference not in known and not reference.startswith(CALLBACKS):
            yield f"plugin {reference} is loaded, but was not loaded in the run"


def _given_as(reference: str, sha256: str, recorded: Mapping[str, str]) -> str | None:
    """Return this process's reference to a recorded plugin, found by reference, source or file name; None if absent."""
    if reference in PLUGINS:
        return reference
    new = [other for other in PLUGINS if other not in recorded]
    same = [other for other in new if PLUGINS[other] == sha256]
    moved = [other for other in new if reference.endswith(".py") and Path(other).name == Path(reference).name]
    return next(iter([*same, *moved]), None)
