"""Names of layers: selection of layers by shell patterns, and the names of a layer's shards."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import TypeVar

from runner.engine.graph import Graph
from runner.errors import ConfigError

Setting = TypeVar("Setting", int, str)

_SHARD = re.compile(r"(.+)/shard_(\d+)")
_SHOWN = 8


def by_pattern(key: str, patterns: Mapping[str, Setting], layers: Sequence[str], what: str) -> dict[str, Setting]:
    """Return layer -> setting, for the layers that a pattern matches.

    key: a key of the ``parallelism`` group. what: the noun for a layer in error messages. Raises ConfigError if a
    pattern matches no layer, or if two patterns give different settings to one layer.
    """
    chosen: dict[str, tuple[str, Setting]] = {}
    for pattern, setting in patterns.items():
        where = f"parallelism.{key}: {pattern!r}: {setting}"
        matching = matched(pattern, layers)
        if not matching:
            raise ConfigError(f"{where}: no {what} has this name; the {what}s are {', '.join(layers) or 'none'}")
        for layer in matching:
            other, before = chosen.setdefault(layer, (pattern, setting))
            if before != setting:
                raise ConfigError(
                    f"{where}: {what} {layer!r} is already set to {before} by {other!r}; expected one setting for "
                    f"each of the {what}s {', '.join(layers)}"
                )
    return {layer: setting for layer, (_, setting) in chosen.items()}


def matched(pattern: str, layers: Sequence[str]) -> list[str]:
    """Return the layers that a pattern matches, in the order of ``layers``."""
    return [layer for layer in layers if fnmatchcase(layer, pattern)]


def shard_name(layer: str, worker: int) -> str:
    """Return the name of a layer's shard on a worker; a shard is placed as a separate layer."""
    return f"{layer}/shard_{worker}"


def shard_of(name: str) -> tuple[str, int] | None:
    """Return the layer and the worker in a name that :func:`shard_name` returned; None for other names."""
    found = _SHARD.fullmatch(name)
    return None if found is None else (found[1], int(found[2]))


def require_selected(key: str, items: Iterable[str], graph: Graph) -> None:
    """Raise ConfigError if one of the items (kinds of layers or shell patterns of names) selects no layer of a graph.

    key: the key of the configuration that holds the items.
    """
    stamps = dict.fromkeys(node.layer for node in graph if node.layer is not None)
    whole = [replace(stamp, name=(shard_of(stamp.name) or (stamp.name,))[0]) for stamp in stamps]
    for item in items:
        if not any(stamp.selected_by(item) for stamp in whole):
            names = list(dict.fromkeys(stamp.name for stamp in whole))
            shown = ", ".join(names if len(names) <= _SHOWN else [*names[:_SHOWN], f"... ({len(names)} in all)"])
            raise ConfigError(
                f"{key}: {item!r} selects no layer: expected names of layers, with * and ?, or kinds of layers; the "
                f"kinds are {', '.join(sorted({stamp.kind for stamp in whole}))}, the layers {shown}"
            )
