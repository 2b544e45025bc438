"""Closed schemas: the one strict reader of every value that comes from outside, on the wire or in a file.

A record is a dataclass. The plain form of a field follows from its annotation; an annotation may bound it::

    @dataclass(frozen=True)
    class Loaded:
        plan: Annotated[str, Text(64)]
        steps: int
        seconds: dict[str, float]

A missing field, an unknown field, a field of a wrong type and a value out of bounds are each a :class:`Violation`.
The same rules hold for writing, where a violation is a defect of the writer.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Generic, NoReturn, Protocol, TypeVar, Union, get_args, get_origin, get_type_hints

from runner.errors import RunnerError
from runner.system.files import read_regular, replace_durably
from runner.system.text import printable

T = TypeVar("T")

MAX_INTEGER = 2**63 - 1
_UNLIMITED = 2**63


class Violation(ValueError):
    """A value that the schema does not allow; the text says where, what came and what was expected."""


def refuse(where: str, came: object, expected: object) -> NoReturn:
    """Raise the :class:`Violation` of a value; ``came`` is shown escaped and short."""
    raise Violation(f"{where}: {printable(repr(came))}, expected {expected}" if where else f"expected {expected}")


class FieldType(Protocol):
    """The plain form of one field. Both directions raise :class:`Violation` for a value out of bounds."""

    def read(self, plain: Any, where: str) -> Any:
        """Return the typed value of a plain one; ``where`` is the field's path, for messages."""

    def write(self, value: Any, where: str) -> Any:
        """Return the plain form of a value."""


class _Scalar:
    """A field whose typed and plain forms are the same; subclasses say what is allowed."""

    def read(self, plain: object, where: str) -> object:
        if not self.allows(plain):
            refuse(where, plain, self)
        return plain

    write = read

    def allows(self, value: object) -> bool:
        raise NotImplementedError


@dataclass(frozen=True)
class Integer(_Scalar):
    """A whole number in [low, high]. A boolean is none."""

    low: int = 0
    high: int = MAX_INTEGER

    def allows(self, value: object) -> bool:
        return type(value) is int and self.low <= value <= self.high

    def __str__(self) -> str:
        return f"a whole number from {self.low} to {self.high}"


@dataclass(frozen=True)
class Text(_Scalar):
    """Text of at most ``limit`` characters, matching ``pattern`` if there is one."""

    limit: int = _UNLIMITED
    pattern: str = ""

    def allows(self, value: object) -> bool:
        if type(value) is not str or len(value) > self.limit:
            return False
        return not self.pattern or re.fullmatch(self.pattern, value) is not None

    def __str__(self) -> str:
        limit = "" if self.limit == _UNLIMITED else f" of at most {self.limit} characters"
        return f"text{limit}" + (f" matching {self.pattern}" if self.pattern else "")


@dataclass(frozen=True)
class OneOf(_Scalar):
    """One word of a closed list."""

    options: tuple[str, ...]

    def allows(self, value: object) -> bool:
        return type(value) is str and value in self.options

    def __str__(self) -> str:
        return f"one of {', '.join(self.options)}"


@dataclass(frozen=True)
class Number(_Scalar):
    """A finite number in [low, high], whole or not. A boolean is none."""

    low: float = -math.inf
    high: float = math.inf

    def allows(self, value: object) -> bool:
        if not isinstance(value, int | float) or type(value) is bool:
            return False
        return math.isfinite(value) and self.low <= value <= self.high

    def __str__(self) -> str:
        least = "" if self.low == -math.inf else f" from {self.low:g}"
        most = "" if self.high == math.inf else f" up to {self.high:g}"
        return f"a finite number{least}{most}"


@dataclass(frozen=True)
class AnyFloat:
    """A float; in JSON, which has finite numbers only, the others are "nan", "inf" and "-inf"."""

    def read(self, plain: object, where: str) -> float:
        if type(plain) not in (int, float) and plain not in ("nan", "inf", "-inf"):
            refuse(where, plain, 'a number, "nan", "inf" or "-inf"')
        return float(plain)  # type: ignore[arg-type]

    def write(self, value: float, where: str) -> float | str:
        return value if math.isfinite(value) else str(value)


@dataclass(frozen=True)
class Plain(_Scalar):
    """A value that stays as it is, of one of ``types``; of any type if there is none."""

    types: tuple[type, ...] = ()

    def allows(self, value: object) -> bool:
        return not self.types or type(value) in self.types

    def __str__(self) -> str:
        return "true or false"


@dataclass(frozen=True)
class OrNone:
    """A value of one type, or null."""

    item: FieldType

    def read(self, plain: object, where: str) -> Any:
        return None if plain is None else self.item.read(plain, where)

    def write(self, value: object, where: str) -> Any:
        return None if value is None else self.item.write(value, where)


@dataclass(frozen=True)
class ListOf:
    """From ``least`` to ``limit`` values of one type; a tuple in its typed form."""

    item: FieldType
    limit: int = _UNLIMITED
    least: int = 0

    def read(self, plain: object, where: str) -> tuple[Any, ...]:
        return tuple(self.item.read(value, f"{where}[{i}]") for i, value in enumerate(self._values(plain, where)))

    def write(self, value: object, where: str) -> list[Any]:
        return [self.item.write(each, f"{where}[{i}]") for i, each in enumerate(self._values(value, where))]

    def _values(self, value: object, where: str) -> Sequence[Any]:
        if not isinstance(value, list | tuple) or not self.least <= len(value) <= self.limit:
            least = f" of at least {self.least}" if self.least else ""
            refuse(where, value, f"a list{least}" + (f" of at most {self.limit}" if self.limit < _UNLIMITED else ""))
        return value


class _ListAsList(ListOf):
    """The same, with a list as its typed form."""

    def read(self, plain: object, where: str) -> Any:
        return list(super().read(plain, where))


@dataclass(frozen=True)
class MapOf:
    """At most ``limit`` named values of one type."""

    key: FieldType
    item: FieldType
    limit: int = _UNLIMITED

    def read(self, plain: object, where: str) -> dict[str, Any]:
        return {
            self.key.read(key, f"name in {where}"): self.item.read(value, f"{where}[{printable(str(key))}]")
            for key, value in self._entries(plain, where)
        }

    def write(self, value: object, where: str) -> dict[str, Any]:
        return {
            self.key.write(key, f"name in {where}"): self.item.write(item, f"{where}[{printable(str(key))}]")
            for key, item in self._entries(value, where)
        }

    def _entries(self, value: object, where: str) -> list[tuple[Any, Any]]:
        if not isinstance(value, Mapping) or len(value) > self.limit:
            refuse(where, value, "a map" + (f" of at most {self.limit} entries" if self.limit < _UNLIMITED else ""))
        return list(value.items())


class Record(Generic[T]):
    """The schema of a dataclass. It is a field type itself, so records can hold records."""

    def __init__(self, record_type: type[T]) -> None:
        hints = get_type_hints(record_type, include_extras=True)
        self.record_type = record_type
        declared = fields(record_type)  # type: ignore[arg-type]
        self.fields: dict[str, FieldType] = {field.name: field_type(hints[field.name]) for field in declared}
        self._optional = {
            field.name for field in declared if MISSING is not field.default or MISSING is not field.default_factory
        }

    def read(self, plain: object, where: str = "", *, complete: bool = True) -> T:
        """Return the record of a map; also raises the errors of the record's own ``__post_init__``.

        complete: False to give the fields that the map lacks their defaults, if they have any.
        """
        if type(plain) is not dict:
            refuse(where, plain, f"a map of {', '.join(self.fields) or 'nothing'}")
        missing = [name for name in self.fields if name not in plain and (complete or name not in self._optional)]
        unknown = [printable(str(name)) for name in plain if name not in self.fields]
        if missing or unknown:
            expected = ", ".join(self.fields) or "none"
            place = f"{where}: " if where else ""
            raise Violation(f"{place}fields missing {missing}, unknown {unknown}, expected {expected}")
        place = f"{where}." if where else ""
        values = {name: kind.read(plain[name], place + name) for name, kind in self.fields.items() if name in plain}
        return self.record_type(**values)

    def write(self, record: T, where: str = "") -> dict[str, Any]:
        """Return the map of a record."""
        place = f"{where}." if where else ""
        return {name: kind.write(getattr(record, name), place + name) for name, kind in self.fields.items()}


_PLAIN: dict[Any, FieldType] = {
    Any: Plain(),
    bool: Plain((bool,)),
    float: AnyFloat(),
    int: Integer(-MAX_INTEGER, MAX_INTEGER),
    str: Text(),
}


def field_type(hint: Any) -> FieldType:
    """Return the field type of an annotation: the one it names, or that of its Python type."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        named = (each for each in hint.__metadata__ if hasattr(each, "read") and hasattr(each, "write"))
        return next(named, None) or field_type(arguments[0])
    if origin in (Union, UnionType):
        return OrNone(field_type(next(each for each in arguments if each is not NoneType)))
    if origin is list:
        return _ListAsList(field_type(arguments[0]))
    if origin is tuple:
        item, count = field_type(arguments[0]), len(arguments)
        return ListOf(item) if Ellipsis in arguments else ListOf(item, limit=count, least=count)
    if origin in (dict, Mapping):
        return MapOf(field_type(arguments[0]), field_type(arguments[1]))
    return Record(hint) if isinstance(hint, type) and is_dataclass(hint) else _PLAIN[hint]


def parse_json(raw: bytes, limit: int) -> Any:
    """Return the value of JSON that may be hostile. Raises Violation if it is no JSON or has over ``limit`` bytes."""
    if len(raw) > limit:
        raise Violation(f"more than {limit} bytes, expected at most that")
    try:
        return json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise Violation(f"no JSON: {printable(str(error))}") from None


@dataclass(frozen=True)
class JsonFile(Generic[T]):
    """A kind of JSON file that holds one record.

    schema: the dataclass of the record. error: class of the error for a damaged file. advice: end of its text: what to
    do. version: number in the field "version". limit: most bytes. complete: as of :meth:`Record.read`.
    """

    schema: type[T]
    error: type[RunnerError]
    advice: str
    version: int = 1
    limit: int = 1 << 26
    complete: bool = True

    def read(self, path: Path) -> T:
        """Read a regular file. Raises ``error`` for a damaged one, SecurityError for a link, OSError."""
        raw = read_regular(path, self.limit)
        try:
            document = parse_json(raw, self.limit)
            version = document.pop("version", None) if isinstance(document, dict) else None
            if type(version) is not int or version != self.version:
                refuse("version", version, self.version)
            return Record(self.schema).read(document, complete=self.complete)
        except ValueError as violation:
            raise self.error(f"{path} is damaged: {violation}; {self.advice}") from violation

    def write(self, path: Path, record: T, mode: int = 0o666) -> None:
        """Replace the file in one step, durably. Raises OSError."""
        document = {"version": self.version, **Record(self.schema).write(record)}
        replace_durably(path, (json.dumps(document, indent=1) + "\n").encode(), mode)
