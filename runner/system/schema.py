"""Schemas that check values from the network and from files when they are read.

A record is a dataclass. The annotation of a field determines its plain (JSON-like) form and may set bounds::

    @dataclass(frozen=True)
    class Loaded:
        plan: Annotated[str, Text(64)]
        steps: int
        seconds: dict[str, float]

A missing field, an unknown field, a field of a wrong type and a value out of bounds each raise :class:`Violation`.
Most checks, except bounds in ``Within``, also apply to written values, where a violation is a defect of the writer.
"""

import math
import re
import sys
import typing
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Generic, NoReturn, Protocol, TypeVar, Union, get_args, get_origin, get_type_hints

from runner.errors import SecurityError
from runner.system.text import printable

T = TypeVar("T")

MAX_INTEGER = 2**63 - 1
_UNLIMITED = 2**63


class Violation(ValueError):
    """An error for a value that the schema does not allow; the message states the field, the value and the rule."""


def refuse(where: str, found: object, expected: object) -> NoReturn:
    """Raise :class:`Violation` for a value; the message shows ``found`` escaped and shortened."""
    raise Violation(f"{where}: {printable(repr(found))}, expected {expected}" if where else f"expected {expected}")


@typing.runtime_checkable
class FieldType(Protocol):
    """A converter between the typed and the plain form of a field; raises :class:`Violation` for invalid values."""

    def read(self, plain: Any, where: str) -> Any:
        """Return the typed form of a plain value; ``where`` is the field's path, for messages."""

    def write(self, value: Any, where: str) -> Any:
        """Return the plain form of a value."""


class _Scalar:
    """A field whose typed and plain forms are the same; subclasses define the allowed values."""

    def read(self, plain: object, where: str) -> object:
        if not self.allows(plain):
            refuse(where, plain, self)
        return plain

    write = read

    def allows(self, value: object) -> bool:
        raise NotImplementedError


@dataclass(frozen=True)
class Integer(_Scalar):
    """A whole number in [low, high]. Booleans are not allowed."""

    low: int = 0
    high: int = MAX_INTEGER

    def allows(self, value: object) -> bool:
        return type(value) is int and self.low <= value <= self.high

    def __str__(self) -> str:
        return f"a whole number from {self.low} to {self.high}"


@dataclass(frozen=True)
class Text(_Scalar):
    """Text of at most ``limit`` characters that matches ``pattern``, if given. rule: description for error messages."""

    limit: int = _UNLIMITED
    pattern: str = ""
    rule: str = ""

    def allows(self, value: object) -> bool:
        if type(value) is not str or len(value) > self.limit:
            return False
        return not self.pattern or re.fullmatch(self.pattern, value) is not None

    def __str__(self) -> str:
        limit = "" if self.limit == _UNLIMITED else f" of at most {self.limit} characters"
        return self.rule or f"text{limit}" + (f" matching {self.pattern}" if self.pattern else "")


@dataclass(frozen=True)
class OneOf(_Scalar):
    """One of the texts in ``options``."""

    options: tuple[str, ...]

    def allows(self, value: object) -> bool:
        return type(value) is str and value in self.options

    def __str__(self) -> str:
        return f"one of {', '.join(self.options)}"


@dataclass(frozen=True)
class Number(_Scalar):
    """A finite int or float in [low, high]. Booleans are not allowed."""

    low: float = -math.inf
    high: float = math.inf

    def allows(self, value: object) -> bool:
        if not isinstance(value, int | float) or type(value) is bool:
            return False
        # A whole number may be too large for a float.
        return self.low <= value <= self.high and abs(value) <= sys.float_info.max

    def __str__(self) -> str:
        least = "" if self.low == -math.inf else f" from {self.low:g}"
        most = "" if self.high == math.inf else f" up to {self.high:g}"
        return f"a finite number{least}{most}"


@dataclass(frozen=True)
class AnyFloat:
    """A float. JSON has only finite numbers, so a value that is not finite has plain form "nan", "inf" or "-inf"."""

    def read(self, plain: object, where: str) -> float:
        try:
            if type(plain) in (int, float) or plain in ("nan", "inf", "-inf"):
                return float(plain)  # type: ignore[arg-type]
        except OverflowError:
            pass  # a whole number that is too large for a float
        refuse(where, plain, 'a number, "nan", "inf" or "-inf"')

    def write(self, value: float, where: str) -> float | str:
        return value if math.isfinite(value) else str(value)


_NAMES: dict[type, str] = {int: "a whole number", bool: "true or false"}


@dataclass(frozen=True)
class Plain(_Scalar):
    """A value of one of ``types``, or of any type if ``types`` is empty. The typed and the plain form are the same."""

    types: tuple[type, ...] = ()

    def allows(self, value: object) -> bool:
        return not self.types or type(value) in self.types

    def __str__(self) -> str:
        return " or ".join(_NAMES.get(each, each.__name__) for each in self.types)


FLAG = Plain((bool,))  # True or False; the numbers 0 and 1 are not allowed


@dataclass(frozen=True)
class Bytes(_Scalar):
    """A bytes object of length ``count``."""

    count: int

    def allows(self, value: object) -> bool:
        return type(value) is bytes and len(value) == self.count

    def __str__(self) -> str:
        return f"{self.count} bytes"


@dataclass(frozen=True)
class AnyMap(_Scalar):
    """A map with text keys and unchecked values, which the caller must check."""

    def allows(self, value: object) -> bool:
        return isinstance(value, Mapping) and all(type(key) is str for key in value)

    def __str__(self) -> str:
        return "a map with text keys"


@dataclass(frozen=True)
class Within:
    """A value of type ``item``; read values must be in ``allowed``, such as a :class:`runner.bounds.Bounds`."""

    item: FieldType
    allowed: Container[Any]

    def read(self, plain: object, where: str) -> Any:
        value = self.item.read(plain, where)
        if value not in self.allowed:
            refuse(where, plain, self.allowed)
        return value

    def write(self, value: object, where: str) -> Any:
        return self.item.write(value, where)


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
    """A list of ``least`` to ``limit`` values of one type. typed: the class of its typed form, tuple or list."""

    item: FieldType
    limit: int = _UNLIMITED
    least: int = 0
    typed: type = tuple

    def read(self, plain: object, where: str) -> Any:
        return self.typed(self.item.read(value, f"{where}[{i}]") for i, value in enumerate(self._values(plain, where)))

    def write(self, value: object, where: str) -> list[Any]:
        return [self.item.write(each, f"{where}[{i}]") for i, each in enumerate(self._values(value, where))]

    def _values(self, value: object, where: str) -> Sequence[Any]:
        if not isinstance(value, list | tuple) or not self.least <= len(value) <= self.limit:
            least = [f"of at least {self.least}"] if self.least else []
            most = [f"of at most {self.limit}"] if self.limit < _UNLIMITED else []
            refuse(where, value, " ".join(["a list", " and ".join([*least, *most])]).strip())
        return value


@dataclass(frozen=True)
class MapOf:
    """A map of at most ``limit`` entries, with keys of one type and values of one type."""

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
    """The field type of a dataclass; the plain form is a map with one entry for each field. Records can be nested.

    stated: field name -> field type, if ``record_type`` is not a dataclass with annotations.
    """

    closed = True

    def __init__(self, record_type: Callable[..., T], **stated: FieldType) -> None:
        self.record_type = record_type
        self.fields: Mapping[str, FieldType] = stated or _annotated(record_type)
        self.required = set(self.fields)

    def read(self, plain: object, where: str = "") -> T:
        """Return the record that a map describes; errors from the record's ``__post_init__`` are not caught."""
        if type(plain) is not dict:
            refuse(where, plain, f"a map of {', '.join(self.fields) or 'nothing'}")
        missing = [name for name in self.fields if name not in plain and name in self.required]
        unknown = [printable(str(name)) for name in plain if self.closed and name not in self.fields]
        if missing or unknown:
            faults = {"missing": missing, "unknown": unknown}
            found = " and ".join(f"{fault} {names}" for fault, names in faults.items() if names)
            place = f"{where}: " if where else ""
            raise Violation(f"{place}{found}, expected the fields {', '.join(self.fields) or 'none'}")
        place = f"{where}." if where else ""
        values = {name: kind.read(plain[name], place + name) for name, kind in self.fields.items() if name in plain}
        return self.record_type(**values)

    def write(self, record: T, where: str = "") -> dict[str, Any]:
        """Return a record as a map."""
        place = f"{where}." if where else ""
        return {name: kind.write(getattr(record, name), place + name) for name, kind in self.fields.items()}


class LenientRecord(Record[T]):
    """A record in a file that another version of the program may have written.

    complete: False to accept a missing field that has a default. closed: False to ignore unknown fields.
    """

    def __init__(self, record_type: Callable[..., T], *, complete: bool = True, closed: bool = True) -> None:
        super().__init__(record_type)
        self.closed = closed
        if not complete:
            self.fields = _annotated(record_type, complete=False)
            known = fields(typing.cast(Any, record_type))
            self.required = {each.name for each in known if each.default is each.default_factory is MISSING}


def _annotated(record_type: Any, complete: bool = True) -> dict[str, FieldType]:
    hints = get_type_hints(record_type, include_extras=True)
    return {each.name: field_type(hints[each.name], complete=complete) for each in fields(record_type)}


_PLAIN: dict[Any, FieldType] = {Any: Plain(), bool: FLAG, float: AnyFloat(), int: Plain((int,)), str: Text()}


def field_type(hint: Any, *, complete: bool = True) -> FieldType:
    """Return the field type for an annotation, from a field type or bounds in ``Annotated``, else from the Python type.

    complete: see :class:`LenientRecord`; applies to records in the annotation.
    """
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        kinds = [each for each in hint.__metadata__ if isinstance(each, FieldType)]
        return kinds[0] if kinds else Within(field_type(arguments[0], complete=complete), hint.__metadata__[0])
    if origin in (Union, UnionType):
        kinds = [field_type(each, complete=complete) for each in arguments if each is not NoneType]
        return Maybe(kinds[0] if len(kinds) == 1 else Plain(arguments))
    if origin in (list, tuple, dict, Mapping):
        kinds = [field_type(each, complete=complete) for each in arguments if each is not Ellipsis]
        if origin is list:
            return ListOf(kinds[0], typed=list)
        if origin is tuple:
            return ListOf(kinds[0]) if Ellipsis in arguments else ListOf(kinds[0], len(kinds), least=len(kinds))
        return MapOf(kinds[0], kinds[1])
    if isinstance(hint, type) and is_dataclass(hint):
        return Record(hint) if complete else LenientRecord(hint, complete=False)
    return _PLAIN.get(hint) or Plain((hint,))


def read_untrusted(field: FieldType, document: object, where: str) -> Any:
    """Read data that another process sent; raises SecurityError if it is malformed."""
    try:
        return field.read(document, where)
    except ValueError as error:
        raise SecurityError(f"{where} refused: {error}") from error
