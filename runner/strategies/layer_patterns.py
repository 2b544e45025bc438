"""Settings of layers by patterns of their names, as of a shell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TypeVar

from runner.errors import ConfigError

Setting = TypeVar("Setting", int, str)


def by_pattern(key: str, patterns: Mapping[str, Setting], layers: Sequence[str], what: str) -> dict[str, Setting]:
    """Return layer -> its setting, of the layers that a pattern matches.

    key: of the ``parallelism`` group. what: how a layer among ``layers`` is called. Raises ConfigError for a pattern
    that matches no layer, and for patterns that disagree on one.
    """
    chosen: dict[str, tuple[str, Setting]] = {}
    for pattern, setting in patterns.items():
        where = f"parallelism.{key}: {pattern!r}: {setting}"
        matching = matched(pattern, layers)
        if not matching:
            raise ConfigError(f"{where}: no {what} has such a name; the {what}s are {', '.join(layers) or 'none'}")
        for layer in matching:
            other, before = chosen.setdefault(layer, (pattern, setting))
            if before != setting:
                raise ConfigError(
                    f"{where}: {what} {layer!r} has {before} by {other!r} already; expected patterns that agree on "
                    f"each of the {what}s {', '.join(layers)}"
                )
    return {layer: setting for layer, (_, setting) in chosen.items()}


def matched(pattern: str, layers: Sequence[str]) -> list[str]:
    """The layers that a pattern matches, in their order."""
    return [layer for layer in layers if fnmatchcase(layer, pattern)]
