"""Configurations that were stored earlier: by other versions, which lack keys that came later, or on a run's way."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from runner.config import safe_yaml
from runner.config.configuration import to_plain
from runner.config.outcome import differing_keys
from runner.config.schema import Config

_MISSING = "???"


def with_defaults(plain: Mapping[str, Any], config: Config) -> dict[str, Any]:
    """Stored plain values with the default of each key that they lack, which is how runs went before it was there.

    A section of another option than that of ``config`` stays as it is, as its schema may be that of a plugin.
    """
    filled = _filled(plain, _defaults(Config))
    for name, own in plain.items():
        section = getattr(config, name, None)
        if isinstance(own, Mapping) and own.get("name") == getattr(section, "name", None):
            filled[name] = _filled(own, _defaults(type(section))) if dataclasses.is_dataclass(section) else own
    return filled


def changes_on_the_way(earlier: Iterable[Path], config: Config, but: Collection[str] = ()) -> Iterator[str]:
    """What earlier starts of a run had otherwise than its last one, and whose values count: a text for each of them.

    earlier: the configurations that they left. but: keys, with dots, that do not count. Raises ConfigError and
    SecurityError where one cannot be read.
    """
    last = to_plain(config)
    for path in earlier:
        keys = [key for key in differing_keys(with_defaults(safe_yaml.load(path), config), last) if key not in but]
        if keys:
            yield f"{path.name} has other {', '.join(keys)}"


def _filled(own: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    sections = {key for key, default in defaults.items() if isinstance(default, Mapping)}
    both = {key: _filled(own[key], defaults[key]) for key in sections if isinstance(own.get(key), Mapping)}
    return {**defaults, **own, **both}


def _defaults(schema: type) -> dict[str, Any]:
    """The plain values of a dataclass of the configuration that were not given; nothing for what has to be."""
    found: Any = OmegaConf.to_container(OmegaConf.structured(schema))
    return {key: default for key, default in found.items() if default != _MISSING}
