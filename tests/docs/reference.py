"""The page docs/layers-and-ops.md; `python -m tests.docs.reference` writes its tables of signatures and docstrings."""

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from runner import nn
from runner.engine.graph import OPS, ops

PAGE = Path(__file__).parents[2] / "docs" / "layers-and-ops.md"

_TABLES = "## Layers\n"
"""The heading at which the generated part of the page begins: signatures and docstrings."""


def page() -> str:
    """Return the text of the page: the part that is written by hand, and the tables of layers and ops."""
    written = PAGE.read_text(encoding="utf-8").partition(_TABLES)[0]
    functions = _functions(ops, "graph")
    added = ", ".join(f"`{name}`" for name in sorted(OPS.keys() - functions.keys()))
    layers, operations = _table(_functions(nn, "net")), _table(functions)
    last = f"\nCompiler passes add these ops, which have no functions: {added}.\n"
    return "\n".join([written + _TABLES, *layers, "\n## Ops\n", *operations, last])


def _functions(module: Any, first: str) -> dict[str, Callable[..., Any]]:
    """Return the public functions of a module whose first parameter has this name, sorted by name."""
    found = {name: each for name, each in vars(module).items() if inspect.isroutine(each) and not name.startswith("_")}
    return {
        name: found[name] for name in sorted(found) if next(iter(inspect.signature(found[name]).parameters)) == first
    }


def _table(functions: Mapping[str, Callable[..., Any]]) -> Iterator[str]:
    yield from ("| function | result |", "|---|---|")
    for name, function in functions.items():
        _, *others = inspect.signature(function).parameters
        arguments = ", ".join(each for each in others if each != "name")
        text = " ".join((inspect.getdoc(function) or "").split("\n\n")[0].split())
        text = re.sub(r":\w+:`~?([^`]+)`", r"`\1`", text).replace("``", "`").replace("|", "\\|")
        yield f"| `{name}({arguments})` | {text} |"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
