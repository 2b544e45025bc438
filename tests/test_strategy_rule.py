"""Files outside ``runner/strategies`` use the contract of strategies and never depend on a strategy's name or type.

The test reads the syntax tree and executes nothing.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from runner.strategies import STRATEGIES
from tests.test_import_rule import SOURCE, below, modules, statements, targets

CONTRACT = ["base", "clients", "collectives", "layer_names", "replica", "servers"]
"""Modules of ``runner.strategies`` that any module or plugin may import; each other module belongs to one strategy."""

ORACLE = "single"
"""The strategy with which ``runner.testing`` compares a plugin's strategy."""

HOLDS_THE_TABLE = ("config", "plugin")
"""Packages that may import ``STRATEGIES``: they fill the table or choose from it by the configured name."""

SUSPECT = re.compile("strateg|parallelism", re.IGNORECASE)
"""Matches the text of each module that can depend on a strategy; only these are parsed."""

ASKS_BY_TYPE = {"isinstance", "issubclass", "getattr", "hasattr", "type"}


def faults(source: Path) -> list[str]:
    """Return every place in a package that depends on a strategy, as ``module:line: kind of dependence``."""
    known = modules(source)
    texts = {name: path.read_text() for name, path in known.items() if not below(name, "strategies")}
    trees = {name: ast.parse(text) for name, text in texts.items() if SUSPECT.search(text)}
    return [
        f"{name}:{line}: {what}"
        for name, tree in trees.items()
        for line, what in sorted({*_imports(name, tree, known), *_questions(tree)})
    ]


def _imports(name: str, tree: ast.Module, known: dict[str, Path]) -> Iterator[tuple[int, str]]:
    allowed = {f"runner.strategies.{module}" for module in CONTRACT}
    if any(below(name, package) for package in HOLDS_THE_TABLE):
        allowed.add("runner.strategies")
    if name == "testing":
        allowed.add(f"runner.strategies.{ORACLE}")
    for statement, _ in statements(tree):
        for target in targets(statement, known):
            if below(target, "runner.strategies") and target not in allowed:
                yield statement.lineno, f"imports {target}"


def _questions(tree: ast.Module) -> Iterator[tuple[int, str]]:
    names = _names_of_strategies(tree)
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id=asked), args=args) if asked in ASKS_BY_TYPE:
                if any(_is_strategy(arg, names) for arg in args):
                    yield node.lineno, f"calls {asked} on a strategy"
            case ast.Compare(left=left, comparators=others):
                sides = [left, *others]
                if any(map(_holds_name, sides)) and any(_is_name(side, names) for side in sides):
                    yield node.lineno, "compares the name of a strategy with a literal"
            case ast.Match(subject=subject) if _is_strategy(subject, names) or _is_name(subject, names):
                yield node.lineno, "matches a strategy"
            case ast.Subscript(value=value, slice=key) if _holds_name(key) and _named(value) == "STRATEGIES":
                yield node.lineno, "takes a strategy by its name"


def _names_of_strategies(tree: ast.Module) -> frozenset[str]:
    """Return the names that refer to a strategy or its name in a module, directly or through assignments."""
    names = frozenset({"parallelism", "strategy"})
    while True:
        found = set(names)
        for node in ast.walk(tree):
            match node:
                case ast.Assign(targets=[ast.Tuple(elts=left)], value=ast.Tuple(elts=right)):
                    pairs = list(zip(left, right, strict=False))
                case ast.Assign(targets=left, value=value):
                    pairs = [(each, value) for each in left]
                case (
                    ast.AnnAssign(target=target, value=ast.expr() as value) | ast.NamedExpr(target=target, value=value)
                ):
                    pairs = [(target, value)]
                case ast.arg(arg=name, annotation=ast.Name(id="Strategy")):
                    found.add(name)
                    continue
                case _:
                    continue
            found |= {
                target.id
                for target, value in pairs
                if isinstance(target, ast.Name) and (_is_strategy(value, names) or _is_name(value, names))
            }
        if found == names:
            return names
        names = frozenset(found)


def _is_strategy(node: ast.AST, names: frozenset[str]) -> bool:
    return _named(node) in names


def _is_name(node: ast.AST, names: frozenset[str]) -> bool:
    """Return whether an expression may be the name of a strategy, directly or through a variable."""
    return _named(node) in names or (
        isinstance(node, ast.Attribute) and node.attr == "name" and _is_strategy(node.value, names)
    )


def _named(node: ast.AST) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _holds_name(node: ast.AST) -> bool:
    """Return whether an expression is or contains the literal name of a strategy."""
    return any(isinstance(each, ast.Constant) and each.value in STRATEGIES for each in ast.walk(node))


def test_no_module_outside_depends_on_a_strategy() -> None:
    assert faults(SOURCE) == []


def test_the_contract_names_existing_modules() -> None:
    assert {f"strategies.{name}" for name in CONTRACT} <= set(modules(SOURCE))


@pytest.mark.parametrize(
    ("module", "text", "what"),
    [
        ("training", "from runner.strategies.single import Single", "imports runner.strategies.single"),
        ("training", "from runner.strategies import STRATEGIES", "imports runner.strategies"),
        (
            "training",
            "def f():\n    import runner.strategies.sharded.schemes",
            "imports runner.strategies.sharded.schemes",
        ),
        ("config", "isinstance(config.parallelism, Single)", "calls isinstance on a strategy"),
        ("config", "getattr(config.parallelism, 'servers', 0)", "calls getattr on a strategy"),
        ("config", "a, b = 1, config.parallelism\nhasattr(b, 'servers')", "calls hasattr on a strategy"),
        ("config", "def f(given: Strategy):\n    return type(given) is object", "calls type on a strategy"),
        ("config", "config.parallelism.name == 'model'", "compares the name of a strategy with a literal"),
        ("config", "'single' != config.parallelism.name", "compares the name of a strategy with a literal"),
        ("config", "own = config.parallelism.name\nown not in ('single', 'x')", "compares the name of a strategy"),
        ("config", "match config.parallelism:\n    case Single(): pass", "matches a strategy"),
        ("config", "STRATEGIES['single']", "takes a strategy by its name"),
    ],
)
def test_a_place_that_depends_on_a_strategy_is_found(tmp_path: Path, module: str, text: str, what: str) -> None:
    for name in ("strategies/single", "strategies/sharded/schemes", "strategies/__init__"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / f"{name}.py").touch()
    (tmp_path / f"{module}.py").write_text(text)
    (found,) = faults(tmp_path)
    assert what in found


@pytest.mark.parametrize(
    "text",
    [
        "from runner.strategies import STRATEGIES",
        "from runner.strategies.base import Strategy",
        "config.parallelism.name == other.name",
        "section == 'model'",
        "print(config.parallelism.name, 'model')",
        "isinstance(config.model, Mlp)",
    ],
)
def test_the_contract_and_other_comparisons_are_accepted(tmp_path: Path, text: str) -> None:
    (tmp_path / "strategies").mkdir()
    (tmp_path / "strategies" / "base.py").touch()
    (tmp_path / "config.py").write_text(text)
    assert faults(tmp_path) == []
