"""Overrides of a stored configuration: a few keys and groups, under the same strict schema."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf

from runner.config.configuration import GROUPS, release_other_limit, to_plain
from runner.config.hydra_app import compose
from runner.config.schema import Config
from runner.errors import ConfigError


def overridden(
    config: Config,
    overrides: Sequence[str],
    allowed: Iterable[str],
    otherwise: str,
    *,
    config_dir: Path | None = None,
) -> dict[str, Any]:
    """Return the plain values of ``config`` with ``overrides`` ("KEY=VALUE") in place of its own.

    allowed: keys, and sections or groups with all that is in them. GROUP=OPTION takes the whole section of that option
    from the project's YAML files and those of a user's own ``config_dir``, whatever was stored; keys of the group are
    set after it. otherwise: what to say of everything that is not allowed. Whether values fit is for the schema to say.

    Raises ConfigError for what is not allowed, has no value or no place.
    """
    plain = to_plain(config)
    pairs = [_pair(override, set(allowed), otherwise) for override in overrides]
    for name, text in pairs:
        if name in GROUPS:
            plain[name] = _option(name, text, config_dir)
    for name, text in pairs:
        if name not in GROUPS:
            _set(plain, name, text)
    release_other_limit(plain, overrides)
    return plain


def _pair(override: str, allowed: set[str], otherwise: str) -> tuple[str, str]:
    name, is_pair, text = override.partition("=")
    parts = name.split(".")
    if not is_pair or not any(".".join(parts[:length]) in allowed for length in range(1, len(parts) + 1)):
        raise ConfigError(f"{override}: {otherwise}")
    return name, text


def _option(group: str, option: str, config_dir: Path | None) -> Any:
    """The section of one option as Hydra composes it."""
    composed = compose([f"{group}={option}"], config_dir=config_dir).composed[group]
    return OmegaConf.to_container(composed, resolve=True)


def _set(plain: dict[str, Any], name: str, text: str) -> None:
    *sections, key = name.split(".")
    inner: Any = plain
    for section in sections:
        inner = inner.get(section) if isinstance(inner, dict) else None
    if not isinstance(inner, dict):
        raise ConfigError(f"{name}={text}: there is no section {'.'.join(sections)}")
    try:
        inner[key] = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{name}={text}: not a value in YAML") from error
