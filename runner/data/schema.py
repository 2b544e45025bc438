"""Settings objects from plain data, as it arrives from another process: every key and type is checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from runner.bounds import out_of_bounds
from runner.errors import ConfigError

SettingsType = TypeVar("SettingsType")


def from_plain(schema: type[SettingsType], plain: Mapping[str, object], where: str) -> SettingsType:
    """Return the dataclass ``schema`` filled from ``plain``; keys left out keep their defaults.

    Raises ConfigError, naming the key as ``where.key``, for an unknown key, a value of another type or a number out of
    bounds.
    """
    hints = get_type_hints(schema)
    known = [field.name for field in fields(schema)]  # type: ignore[arg-type]
    for key in plain:
        if key not in known:
            raise ConfigError(f"unknown key {where}.{key}; the keys of {where} are: {', '.join(known)}")
    values = {key: _checked(value, hints[key], f"{where}.{key}") for key, value in plain.items()}
    if faults := list(out_of_bounds(schema, values, where)):
        raise ConfigError("\n".join(faults))
    return schema(**values)


def _checked(value: object, hint: Any, where: str) -> Any:
    if is_dataclass(hint) and isinstance(value, Mapping):
        return from_plain(hint, value, where)  # type: ignore[arg-type]
    allowed = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    items = [get_args(each)[0] for each in allowed if get_origin(each) is list]
    if items and isinstance(value, list):
        return [_checked(entry, items[0], f"{where}[{i}]") for i, entry in enumerate(value)]
    # By exact type: to isinstance a bool would be an int.
    if type(value) in allowed:
        return value
    if float in allowed and type(value) is int:
        return float(value)
    expected = hint.__name__ if isinstance(hint, type) else str(hint)
    raise ConfigError(f"{where} is {value!r}, a {type(value).__name__}; expected {expected}")
