"""What of a configuration decides the values a run comes to, given the order of what overlaps in it."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from typing import Any

from runner.config.schema import Config

_SECTIONS = ("seed", "precision", "model", "data", "optimizer", "schedule", "parallelism", "train", "checkpoint")
_START = ("init_from", "init_include", "init_exclude")
_ORDERS = ("virtual_time", "replay")
"""Keys of a strategy that say where the order comes from."""
_NOT_DECISIVE = {
    "train": ("log_every",),
    "data": ("cache_dir", "max_bytes"),
    "checkpoint": ("keep", "keep_best"),
    "parallelism": _ORDERS,
}
"""Keys that decide no value."""


def outcome_hash(config: Config) -> str:
    """SHA-256, in hex: equal for configurations that differ only in how a run is ordered, watched or recorded.

    Of the cluster the compression and the thread budget count. When a run evaluates and saves counts too: what is
    under way comes to its end then.
    """
    plain = dataclasses.asdict(config)
    decisive = {section: _decisive(section, plain[section]) for section in (*_SECTIONS, *_START)}
    decisive["cluster"] = {key: plain["cluster"][key] for key in ("compression", "threads_per_worker")}
    return hashlib.sha256(json.dumps(decisive, sort_keys=True, default=str).encode()).hexdigest()


def _decisive(section: str, value: Any) -> Any:
    left_out = _NOT_DECISIVE.get(section, ())
    return {key: each for key, each in value.items() if key not in left_out} if left_out else value
