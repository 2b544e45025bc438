"""Bounds of the numbers in a configuration, declared in the annotation of a field: ``units: Count = 500``."""

import dataclasses
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import NoneType
from typing import Annotated, Any, get_args, get_origin, get_type_hints


@dataclass(frozen=True)
class Bounds:
    """An interval of finite numbers. above: whether ``low`` is excluded. below: whether ``high`` is excluded."""

    low: float
    high: float
    above: bool = False
    below: bool = False

    def __contains__(self, number: float) -> bool:
        # NaN fails every comparison.
        return (self.low < number if self.above else self.low <= number) and (
            number < self.high if self.below else number <= self.high
        )

    def __str__(self) -> str:
        low, high = (str(each) if isinstance(each, int) else f"{each:g}" for each in (self.low, self.high))
        if self.above:
            return f"above {low} and {'below' if self.below else 'at most'} {high}"
        return f"{low} to {'below ' if self.below else ''}{high}"


Count = Annotated[int, Bounds(1, 10**9)]
CountOrZero = Annotated[int, Bounds(0, 10**9)]

SmallCount = Annotated[int, Bounds(1, 4096)]
"""A number of processes, threads or parts of a graph."""

SmallCountOrZero = Annotated[int, Bounds(0, 4096)]
Bytes = Annotated[int, Bounds(1, 2**63 - 1)]
BytesOrZero = Annotated[int, Bounds(0, 2**63 - 1)]
Seed = Annotated[int, Bounds(0, 2**63 - 1)]

Positive = Annotated[float, Bounds(0, 1e38, above=True)]
"""A positive number up to about the largest float32."""

NonNegative = Annotated[float, Bounds(0, 1e38)]
Fraction = Annotated[float, Bounds(0, 1, above=True)]
Real = Annotated[float, Bounds(-1e38, 1e38)]
Rate = Annotated[float, Bounds(0, 1, below=True)]
"""A probability below 1, or the weight of the old value in a running average."""

_UNDECLARED = {int: Bounds(-(2**63), 2**63 - 1), float: Bounds(-sys.float_info.max, sys.float_info.max)}
"""Type -> bounds of a field for which a plugin declares none: 64-bit integers and finite floats."""


def out_of_bounds(schema: type, values: Mapping[str, Any], where: str) -> Iterator[str]:
    """Yield an error line for each key whose value is, or contains, a number outside the bounds of its field.

    schema: a dataclass. values: field name -> value, a mapping if the field is a section. where: the section's key.
    """
    hints = get_type_hints(schema, include_extras=True)
    for field in dataclasses.fields(schema):
        hint, value = hints[field.name], values.get(field.name)
        key = f"{where}.{field.name}" if where else field.name
        inner, named = section_of(hint)
        if inner is not None:
            for name, section in sections(value, named).items():
                yield from out_of_bounds(inner, section, f"{key}.{name}" if named else key)
            continue
        bounds = bounds_of(hint)
        # A missing value, the text "???", is reported when the configuration is built.
        numbers = value if isinstance(value, list) else [value] if isinstance(value, int | float) else []
        # OmegaConf accepts lists and mappings as elements of a list of numbers.
        if bounds is not None and not all(isinstance(each, int | float) and each in bounds for each in numbers):
            each = "a list of numbers, each " if isinstance(value, list) else ""
            optional = ", or null" if type(None) in get_args(hint) else ""
            yield f"{key}={value}: expected {each}{bounds}{optional}"


def section_of(hint: Any) -> tuple[type | None, bool]:
    """Return the dataclass of a field that is a section, and whether the field maps names to sections.

    The dataclass is None for any other field.
    """
    inner = (
        next((each for each in get_args(hint) if each is not NoneType), hint) if NoneType in get_args(hint) else hint
    )
    named = get_origin(inner) is dict
    inner = get_args(inner)[1] if named else inner
    return (inner, named) if isinstance(inner, type) and dataclasses.is_dataclass(inner) else (None, False)


def sections(value: object, named: bool) -> dict[str, Mapping[str, Any]]:
    """Return name -> section for the value of a field; if the field is one section, its name is "".

    None and a missing value (the text "???") are not sections. OmegaConf has refused values of other types.
    """
    found = value if named and isinstance(value, Mapping) else {"": value}
    return {str(name): each for name, each in found.items() if isinstance(each, Mapping)}


def bounds_of(hint: Any) -> Bounds | None:
    """Return the bounds of the numbers that an annotation allows; None if it allows no number."""
    if get_origin(hint) is Annotated:
        return next((each for each in hint.__metadata__ if isinstance(each, Bounds)), None)
    return _UNDECLARED.get(hint) or next(filter(None, map(bounds_of, get_args(hint))), None)
