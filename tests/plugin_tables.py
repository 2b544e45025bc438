"""Helpers for tests that install plugins: they restore the tables that plugins extend, and load example plugins."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from runner.engine.graph import OPS
from runner.kernels.registry import REGISTRY
from runner.plugin import Plugin
from runner.plugin.contract import TABLES
from runner.plugin.installing import PLUGINS
from runner.plugin.loading import execute, locate

EXAMPLES = Path(__file__).parents[1] / "examples"


@contextmanager
def restored_tables() -> Iterator[None]:
    """At the end of the block, restore the tables that plugins extend."""
    tables: list[dict[Any, Any]] = [*TABLES.values(), OPS, PLUGINS]
    saved = [dict(table) for table in tables]
    kernels = {key: list(rivals) for key, rivals in REGISTRY._kernels.items()}
    try:
        yield
    finally:
        for table, before in zip(tables, saved, strict=True):
            table.clear()
            table.update(before)
        REGISTRY._kernels = kernels


def example(path: str) -> Plugin:
    """Return the plugin of a file below ``examples``, executed but not installed."""
    return execute(locate(str(EXAMPLES / path)))
