"""Run the tests of built-in strategies on copies of these strategies that are plugins outside ``runner``.

``pytest -p tests.strategies.transplant --transplanted=FOLDER`` installs every ``own_*`` package of FOLDER as a plugin,
removes the built-in strategy from the table, and redirects imports of the built-in modules in tests to the copies.
"""

import ast
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from runner.plugin import install
from runner.strategies import STRATEGIES
from runner.strategies.base import Strategy
from tests.test_import_rule import SOURCE, modules, statements, targets
from tests.test_strategy_rule import CONTRACT

PUBLIC = (
    "runner.bounds",
    "runner.errors",
    "runner.plugin",
    "runner.engine.graph",
    "runner.engine.compile.passes.layer_groups",
    "runner.engine.compile.program",
    "runner.engine.run.step_driver",
    "runner.optimizers.base",
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


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option with the folder of the copies."""
    parser.addoption("--transplanted", type=Path, help="folder of copies of strategies, to be tested instead")


def pytest_configure(config: pytest.Config) -> None:
    """Install the copies and remove the strategies from which they were made."""
    folder: Path = config.getoption("--transplanted")
    sys.path.insert(0, str(folder))
    for path in sorted(folder.glob("own_*")):
        install([f"{path.name}.plugin"])
        strategy = path.name.removeprefix("own_")
        del STRATEGIES[strategy]
        for module in private_modules(f"strategies.{strategy}"):
            copy = f"{path.name}.{module.removeprefix('strategies.')}"
            sys.modules[f"runner.{module}"] = importlib.import_module(copy)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests of strategies that were not copied: they run without the copies as well."""
    others = [item for item in items if _is_of_the_package(getattr(item, "callspec", None))]
    config.hook.pytest_deselected(items=others)
    items[:] = [item for item in items if item not in others]


def _is_of_the_package(case: Any) -> bool:
    strategy = None if case is None else case.params.get("strategy")
    return isinstance(strategy, Strategy) and type(strategy).__module__.startswith("runner.")
