"""Copies of built-in strategies as plugins outside the package ``runner``."""

import ast
from collections.abc import Iterator
from pathlib import Path

from runner.strategies import STRATEGIES
from tests.test_import_rule import SOURCE, modules, statements, targets
from tests.test_strategy_rule import CONTRACT

PUBLIC = (
    *("runner.bounds", "runner.errors", "runner.plugin", "runner.engine.graph", "runner.engine.compile.program"),
    *("runner.engine.compile.passes.layer_groups", "runner.engine.run.step_driver", "runner.optimizers.base"),
    *(f"runner.strategies.{module}" for module in CONTRACT),
)
"""Modules that ``examples/own_strategy/README.md`` declares public for strategies."""


def transplant(strategy: str, folder: Path) -> str:
    """Copy a built-in strategy, and the modules that plugins may not import, to a package below ``folder``.

    Return the name of the package, ``own_`` + ``strategy``, which is also the name of the strategy.
    """
    package = f"own_{strategy}"
    for module in private_modules(f"strategies.{strategy}"):
        inner = module.removeprefix("strategies.")
        path = folder / package / f"{inner.replace('.', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        (path.parent / "__init__.py").touch()
        path.write_text(_renamed((SOURCE / f"{module.replace('.', '/')}.py").read_text(), strategy, package))
    (folder / package / "__init__.py").touch()
    schema = STRATEGIES[strategy].__name__
    (folder / package / "plugin.py").write_text(
        f"from runner.plugin import Plugin\nfrom {package}.{strategy} import {schema}\n\n"
        f"plugin = Plugin(strategies={{{package!r}: {schema}}})\n"
    )
    return package


def private_modules(start: str) -> list[str]:
    """Return ``start`` and the modules of strategies that it imports, even indirectly, but plugins may not."""
    known = modules(SOURCE)
    found: list[str] = []
    left = [start]
    while left:
        module = left.pop()
        if module in found:
            continue
        found.append(module)
        for statement, _ in statements(ast.parse(known[module].read_text())):
            imported = [target.removeprefix("runner.") for target in targets(statement, known)]
            left += [name for name in imported if name.startswith("strategies.") and not _is_public(f"runner.{name}")]
    return sorted(found)


def imports_of_private_modules(folder: Path, package: str) -> list[str]:
    """Return each import of a nonpublic module of ``runner`` in a package, as ``file: module``."""
    return [
        f"{path.name}: {target}"
        for path in sorted((folder / package).rglob("*.py"))
        for target in _imported(path)
        if target.startswith("runner") and not _is_public(target)
    ]


def _imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            yield node.module or ""
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def _is_public(module: str) -> bool:
    return any(module == name or module.startswith(f"{name}.") for name in PUBLIC)


def _renamed(text: str, strategy: str, package: str) -> str:
    for module in private_modules(f"strategies.{strategy}"):
        text = text.replace(
            f"from runner.{module} import", f"from {package}.{module.removeprefix('strategies.')} import"
        )
    return text.replace(f'name: str = "{strategy}"', f'name: str = "{package}"')
