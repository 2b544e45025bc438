"""Configurations that an earlier version stored: they lack the keys that came later."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from omegaconf import OmegaConf

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


def _filled(own: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    sections = {key for key, default in defaults.items() if isinstance(default, Mapping)}
    both = {key: _filled(own[key], defaults[key]) for key in sections if isinstance(own.get(key), Mapping)}
    return {**defaults, **own, **both}


def _defaults(schema: type) -> dict[str, Any]:
    """The plain values of a dataclass of the configuration that were not given; nothing for what has to be."""
    found: Any = OmegaConf.to_container(OmegaConf.structured(schema))
    return {key: default for key, default in found.items() if default != _MISSING}
