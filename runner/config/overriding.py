"""Overrides of a stored configuration: a few keys and groups, under the same strict schema."""

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

    allowed: keys, and sections or groups with all of their keys. GROUP=OPTION replaces the stored section by that of
    the option in the project's YAML files or in the user's ``config_dir``; keys of the group are set after it.
    otherwise: message for keys that are not allowed. The values are not checked here.

    Raises ConfigError for an override that is not allowed, or whose value or section does not exist.
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
    """Return the section of one option as Hydra composes it."""
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
