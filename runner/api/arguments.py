"""The arguments of the public functions: overrides as on the command line, or keywords with Python values."""

import dataclasses
import math
import numbers
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from runner.api.weights import stored_weights
from runner.callback import Callback
from runner.commands.plugins import install_plugins
from runner.config.command_line import quoted
from runner.config.groups import GROUPS
from runner.config.hydra_app import options_without_yaml
from runner.errors import ConfigError
from runner.plugin.session import CALLBACK, SessionClass, installed, session_class

_PLAIN = re.compile(r"[A-Za-z_/][\w./+-]*", re.ASCII)
"""Pattern of values that Hydra and YAML read as text even without quotation marks, except for :data:`_NO_TEXT`."""
_NO_TEXT = ("null", "true", "false", "inf", "nan", "yes", "no", "on", "off")

_KEY = re.compile(r"[\w$.-]+", re.ASCII)
"""Pattern of names that can be a part of the key of an override."""
_SYMBOL = re.compile(r"[\\()\[\]{}:=, \t]")
"""A character that Hydra reads as part of a key of a dict only after a backslash."""


@dataclass(frozen=True)
class Arguments:
    """The arguments of a call: overrides, and the classes of this Python session that the overrides name."""

    overrides: list[str]
    classes: tuple[SessionClass, ...] = ()
    callbacks: tuple[Callback, ...] = field(default=(), compare=False)

    @contextmanager
    def in_force(self) -> Iterator[None]:
        """Make the classes and the installed plugins available to configurations until the block ends."""
        install_plugins([])
        with installed(self.classes), options_without_yaml():
            yield


def arguments(
    function: str,
    overrides: object,
    rest: Sequence[object],
    keywords: Mapping[str, Any],
    *,
    callbacks: Sequence[Callback] | Mapping[str, Any] = (),
    directory: str = "",
    swept: bool = False,
) -> Arguments:
    """Return the arguments of a public function; a keyword replaces an override of the same key.

    function: its name, for messages. rest: further positional arguments, which are refused. directory: the key that the
    keyword "directory" sets; "" for a function without this keyword. swept: whether a list as the value of
    a keyword means one job for each item. Raises ConfigError for an argument of a wrong kind.
    """
    if rest or isinstance(overrides, str) or not isinstance(overrides, Sequence):
        given = ", ".join(map(repr, (overrides, *rest)))
        raise ConfigError(
            f"runner.{function}({given}): expected one list, as in runner.{function}([{given}]), or keywords, as in "
            f"runner.{function}(model='mlp', train={{'steps': 100}})"
        )
    for override in overrides:
        if not isinstance(override, str):
            raise ConfigError(
                f"{function}([... {override!r} ...]): expected texts of the form 'KEY=VALUE'; use keywords for objects"
            )
    if isinstance(callbacks, Mapping):
        keywords, callbacks = {**keywords, "callbacks": callbacks}, ()
    if directory and "directory" in keywords:
        keywords = {directory if key == "directory" else key: value for key, value in keywords.items()}
    classes: dict[SessionClass, None] = {}
    pairs = [pair for key, value in keywords.items() for pair in _pairs(key, value, classes, swept)]
    for callback in callbacks:
        if not isinstance(callback, Callback):
            raise ConfigError(f"{function}(callbacks=[{callback!r}]): expected objects derived from runner.Callback")
        classes[session_class(CALLBACK, type(callback))] = None
    return Arguments([*overrides, *(f"{key}={text}" for key, text in pairs)], tuple(classes), tuple(callbacks))


def _pairs(key: str, value: Any, classes: dict[SessionClass, None], swept: bool) -> Iterator[tuple[str, str]]:
    """Yield the overrides, (key, text), of one keyword; add option classes that are in no table to ``classes``."""
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value.item()
    if "__" in key:
        section, _, name = key.partition("__")
        raise ConfigError(f"{key}: expected {section}={{'{name}': ...}} or **{{'{section}.{name}': ...}}")
    if key == "init_from" and isinstance(value, Mapping):
        yield key, _text(key, stored_weights(value))
    elif isinstance(value, Mapping) and (key in GROUPS or all(_KEY.fullmatch(str(name)) for name in value)):
        inner = dict(value)
        if key in GROUPS and "name" in inner:
            yield key, _text(key, inner.pop("name"))
        for name, item in inner.items():
            yield from _pairs(f"{key}.{name}", item, classes, swept)
        if not value:
            yield key, "{}"
    elif key in GROUPS and (isinstance(value, type) or not isinstance(value, _VALUES)):
        settings = value() if isinstance(value, type) else value
        yield key, _option(key, settings, classes)
        for each in dataclasses.fields(settings):
            if each.name != "name":
                yield from _pairs(f"{key}.{each.name}", _plain(getattr(settings, each.name)), classes, False)
    elif swept and isinstance(value, list | tuple | range | np.ndarray):
        yield key, ",".join(_text(key, item) for item in value)
    else:
        yield key, _text(key, value)


_VALUES = (str, bytes, Path, numbers.Number, list, tuple, range, np.ndarray, type(None))


def _plain(value: Any) -> Any:
    """Return the dict of a nested dataclass; any other value unchanged."""
    return dataclasses.asdict(value) if dataclasses.is_dataclass(value) and not isinstance(value, type) else value


def _option(group: str, settings: object, classes: dict[SessionClass, None]) -> str:
    """Return the name of the option with these settings; add its class to ``classes`` if the table lacks the class."""
    table = GROUPS[group]
    for name, schema in table.items():
        if type(settings) is schema:
            return name
    found = session_class(group, type(settings))
    classes[found] = None
    return found.name


def _text(key: str, value: Any) -> str:
    """Return a value in the grammar of Hydra's overrides. Raises ConfigError for a value of an unsupported type."""
    match value:
        case None:
            return "null"
        case bool() | np.bool_():
            return str(bool(value)).lower()
        case numbers.Integral():
            return str(int(value))
        case numbers.Real():
            return repr(float(value)) if math.isfinite(value) else str(float(value))
        case str() | Path():
            text = str(value)
            if _PLAIN.fullmatch(text) and text.lower() not in _NO_TEXT:
                return text
            # ``resume`` and ``evaluate`` read values as YAML, where a backslash in single quotes is not an escape.
            return quoted(text, '"' if "'" in text and not {'"', "\\"} & set(text) else "'")
        case list() | tuple() | range() | np.ndarray():
            return f"[{','.join(_text(key, item) for item in value)}]"
        case Mapping():
            names = (_SYMBOL.sub(r"\\\g<0>", str(name)) for name in value)
            items = zip(names, value.values(), strict=True)
            return "{" + ",".join(f"{name}: {_text(key, item)}" for name, item in items) + "}"
    raise ConfigError(
        f"{key}={value!r}: expected a number, a text, a list, a dict, None, or, for one of {', '.join(GROUPS)}, an "
        "object of a class derived from the group's base class"
    )
