"""Checks of the settings that several strategies have."""

from __future__ import annotations

from collections.abc import Iterable

from runner.errors import ConfigError


def require(holds: bool, key: str, value: object, expected: str) -> None:
    """Raise ConfigError naming the key of the ``parallelism`` group unless the condition holds."""
    if not holds:
        raise ConfigError(f"parallelism.{key}={value}: expected {expected}")


def require_one_of(key: str, value: str, options: Iterable[str]) -> None:
    """Raise ConfigError listing the options unless the value is one of them."""
    known = sorted(options)
    require(value in known, key, repr(value), f"one of {', '.join(known)}")


def require_bucket(bucket_bytes: int) -> None:
    """Require a size of buckets."""
    require(bucket_bytes >= 0, "bucket_bytes", bucket_bytes, "a number of bytes, 0 or more")
