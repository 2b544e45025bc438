"""Classes that the user defined in a Python session, such as a notebook, and passed to runner without a file."""

import ast
import dataclasses
import hashlib
import inspect
import linecache
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from runner.errors import ConfigError
from runner.plugin.contract import OPTIONS, check_class
from runner.plugin.installing import PLUGINS
from runner.plugin.loading import SESSION

TABLES = {options.group: (options.base, options.table) for options in OPTIONS.values() if not options.several}
"""Group of the configuration that takes exactly one option -> base class of its options, and the table of options."""

CALLBACK = "callback"
"""The kind of callback classes, which are not options of a configuration group."""

OPTION_CLASS = re.compile(rf"{SESSION}({'|'.join(TABLES)})/(\w+)")
"""Pattern of references to classes of options; captures the group of the configuration and the option."""

_SOURCES: dict[str, str] = {}
"""Reference of every installed class of this session -> its source."""


@dataclass(frozen=True)
class SessionClass:
    """A class of this Python session. kind: a group of the configuration, or CALLBACK. name: the option's name."""

    kind: str
    name: str
    schema: type

    @property
    def reference(self) -> str:
        """The name under which a run records the class, among its plugins."""
        return f"{SESSION}{self.kind}/{self.name}"

    @property
    def source(self) -> str:
        """The source of the class; a comment if the source is not available."""
        return _source(self.schema) or f"# The source of {self.schema.__qualname__} is not available.\n"


def session_class(kind: str, schema: type) -> SessionClass:
    """Return a class with the name of its option: the default of its field ``name``, or the class name in snake case.

    Raises ConfigError if the class is not a dataclass derived from the base class of the group, or if an option of the
    package or of a plugin has the name.
    """
    if kind == CALLBACK:
        return SessionClass(kind, _small(schema.__name__), schema)
    base, table = TABLES[kind]
    place = f"{kind}={schema.__qualname__}"
    check_class(place, schema, base)
    declared = next((field.default for field in dataclasses.fields(schema) if field.name == "name"), "")
    # A class that inherits the field ``name`` of another option needs a different name.
    parents = {getattr(parent, "name", "") for parent in schema.__mro__[1:]}
    name = str(declared) if declared and declared not in parents else _small(schema.__name__)
    if name in table:
        raise ConfigError(f"{place}: option {name!r} of {kind} already exists; rename the class")
    return SessionClass(kind, name, schema)


@contextmanager
def installed(classes: Sequence[SessionClass]) -> Iterator[None]:
    """Add classes to the tables of options, and to the plugins of this process, until the block ends."""
    with_options = [each for each in classes if each.kind != CALLBACK]
    for each in with_options:
        TABLES[each.kind][1][each.name] = each.schema
    PLUGINS.update({each.reference: hashlib.sha256(each.source.encode()).hexdigest() for each in classes})
    _SOURCES.update({each.reference: each.source for each in classes})
    try:
        yield
    finally:
        for each in with_options:
            TABLES[each.kind][1].pop(each.name, None)
        for each in classes:
            PLUGINS.pop(each.reference, None)
            _SOURCES.pop(each.reference, None)


def session_sources() -> Mapping[str, str]:
    """Return file name -> text of the source of each installed class of this session."""
    return {f"{reference.removeprefix(SESSION).replace('/', '_')}.py": text for reference, text in _SOURCES.items()}


def _small(name: str) -> str:
    """Return the name of a class in snake case: "MyNet" becomes "my_net"."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower().strip("_")


def _source(schema: type) -> str:
    """Return the source of a class; "" if it is not available.

    ``inspect.getsource`` cannot find a class of a notebook, because the module of a notebook has no file. Functions do
    refer to a file, so the class is found in the file of its methods.
    """
    functions = (value for value in vars(schema).values() if inspect.isfunction(value))
    for code in (function.__code__ for function in functions):
        lines = linecache.getlines(code.co_filename)
        for node in ast.walk(ast.parse("".join(lines))):
            if isinstance(node, ast.ClassDef) and node.lineno <= code.co_firstlineno <= (node.end_lineno or 0):
                first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
                return "".join(lines[first - 1 : node.end_lineno])
    return ""
