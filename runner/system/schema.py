"""Closed schemas: what a plain value must look like to become a typed one, and back.

A record is a frozen dataclass whose fields are annotated with their type on the wire::

    Step = Annotated[int, Integer()]

    @dataclass(frozen=True)
    class Loaded:
        plan: Annotated[str, Text(64)]

The dataclass *is* the schema: a missing field, one too many or one of a wrong type is a :class:`Violation`.
The same rules are applied on the way out, where a violation is a defect of the sender. For a class without annotations,
the types of the fields are arguments: ``Record(Layout, tag=Text(64), nbytes=Integer())``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Generic, Protocol, TypeVar, get_type_hints

from runner.errors import SecurityError
from runner.system.text import printable

T = TypeVar("T")

MAX_INTEGER = 2**63 - 1


class Violation(ValueError):
    """A value that the schema does not allow; the text says where, what came and what was expected."""


class FieldType(Protocol):
    """How one field looks on the wire. Both directions raise :class:`Violation` for a value out of bounds."""

    def read(self, plain: Any, where: str) -> Any:
        """Return the typed value of what came off the wire; ``where`` is the field's path, for messages."""

    def write(self, value: Any, where: str) -> Any:
        """Return the plain value to put on the wire."""


class _Scalar:
    """A field whose typed and plain forms are the same; subclasses say what is allowed."""

    def read(self, plain: object, where: str) -> object:
        if not self.allows(plain):
            raise Violation(f"{where}: {printable(repr(plain))}, expected {self}")
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
    """Text of at most ``limit`` characters, matching ``pattern`` where one is given."""

    limit: int
    pattern: str = ""

    def allows(self, value: object) -> bool:
        if type(value) is not str or len(value) > self.limit:
            return False
        return not self.pattern or re.fullmatch(self.pattern, value) is not None

    def __str__(self) -> str:
        matching = f" matching {self.pattern}" if self.pattern else ""
        return f"text of at most {self.limit} characters{matching}"


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
class Flag(_Scalar):
    """True or False; the numbers 0 and 1 are none."""

    def allows(self, value: object) -> bool:
        return type(value) is bool

    def __str__(self) -> str:
        return "true or false"


@dataclass(frozen=True)
class Bytes(_Scalar):
    """A number of bytes."""

    count: int

    def allows(self, value: object) -> bool:
        return type(value) is bytes and len(value) == self.count

    def __str__(self) -> str:
        return f"{self.count} bytes"


@dataclass(frozen=True)
class AnyMap(_Scalar):
    """A map with text keys, whose values are checked later."""

    def allows(self, value: object) -> bool:
        return isinstance(value, Mapping) and all(type(key) is str for key in value)

    def __str__(self) -> str:
        return "a map with text keys"


@dataclass(frozen=True)
class Maybe:
    """None, or a value of one type."""

    item: FieldType

    def read(self, plain: object, where: str) -> Any:
        return None if plain is None else self.item.read(plain, where)

    def write(self, value: object, where: str) -> Any:
        return None if value is None else self.item.write(value, where)


@dataclass(frozen=True)
class ListOf:
    """At most ``limit`` values of one type; a tuple in its typed form."""

    item: FieldType
    limit: int

    def read(self, plain: object, where: str) -> tuple[Any, ...]:
        return tuple(self.item.read(value, f"{where}[{i}]") for i, value in enumerate(self._values(plain, where)))

    def write(self, value: object, where: str) -> list[Any]:
        return [self.item.write(each, f"{where}[{i}]") for i, each in enumerate(self._values(value, where))]

    def _values(self, value: object, where: str) -> list[Any] | tuple[Any, ...]:
        if not isinstance(value, list | tuple) or len(value) > self.limit:
            raise Violation(f"{where}: {printable(repr(value))}, expected a list of at most {self.limit}")
        return value


@dataclass(frozen=True)
class MapOf:
    """At most ``limit`` named values of one type."""

    key: FieldType
    item: FieldType
    limit: int

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
            raise Violation(f"{where}: {printable(repr(value))}, expected a map of at most {self.limit} entries")
        return list(value.items())


class Record(Generic[T]):
    """A map with one entry for each field of a dataclass. stated: types of the fields, by default the annotations."""

    def __init__(self, record_type: Callable[..., T], **stated: FieldType) -> None:
        self.record_type = record_type
        self.fields: Mapping[str, FieldType] = stated or _annotated(record_type)

    def read(self, plain: object, where: str) -> T:
        """Return the record of a map; also raises the Violations of the record's own ``__post_init__``."""
        if type(plain) is not dict:
            raise Violation(f"{where}: {printable(repr(plain))}, expected a map")
        missing = [name for name in self.fields if name not in plain]
        unknown = [printable(str(name)) for name in plain if name not in self.fields]
        if missing or unknown:
            expected = ", ".join(self.fields) or "none"
            raise Violation(f"{where}: fields missing {missing}, unknown {unknown}, expected {expected}")
        values = {name: kind.read(plain[name], f"{where}.{name}") for name, kind in self.fields.items()}
        return self.record_type(**values)

    def write(self, record: T, where: str) -> dict[str, Any]:
        """Return the map of a record."""
        return {name: kind.write(getattr(record, name), f"{where}.{name}") for name, kind in self.fields.items()}


def _annotated(record_type: Any) -> dict[str, FieldType]:
    hints = get_type_hints(record_type, include_extras=True)
    return {field.name: hints[field.name].__metadata__[0] for field in fields(record_type)}


def read_untrusted(field: FieldType, document: object, where: str) -> Any:
    """Read data that another process sent; raises SecurityError if it is malformed."""
    try:
        return field.read(document, where)
    except ValueError as error:
        raise SecurityError(f"{where} refused: {error}") from error
