"""What of a configuration decides the values a run comes to, given the order of what overlaps in it."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

from runner.config.schema import Config
from runner.engine.graph.device import GPU

_SECTIONS = ("seed", "precision", "model", "data", "optimizer", "schedule", "parallelism", "train", "checkpoint")
_START = ("init_from", "init_include", "init_exclude")
_OF_GPUS = ("device_taken", "server_device", "tf32", "compare_plans", "collectives")
"""Keys of the cluster that decide values where there are GPUs."""
_NOT_DECISIVE = {
    "train": ("log_every",),
    "data": ("cache_dir", "max_bytes"),
    "checkpoint": ("keep",),
    "cluster": ("device", "filled_in"),
}
"""Keys that decide neither a value nor an order: device_taken says on which device a run computes."""


def outcome_hash(config: Config) -> str:
    """SHA-256, in hex: equal for configurations that differ only in how a run is ordered, watched or recorded.

    Of the cluster the compression and the thread budget count, and that GPUs compute, where they do. When a run
    evaluates and saves counts too: launched clients end then, and after a checkpoint their order begins again.
    """
    plain = dataclasses.asdict(config)
    decisive = {section: _decisive(section, plain[section]) for section in (*_SECTIONS, *_START)}
    for key in config.parallelism.order_keys:
        del decisive["parallelism"][key]
    cluster = plain["cluster"]
    keys = ("compression", "threads_per_worker", *(_OF_GPUS if cluster["device_taken"] == GPU else ()))
    decisive["cluster"] = {key: cluster[key] for key in keys}
    return hashlib.sha256(json.dumps(decisive, sort_keys=True, default=str).encode()).hexdigest()


def differing_keys(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[str]:
    """Keys by which runs of two plain configurations may come to other values or go in another order, with dots.

    Of a section with another ``name`` it is the section alone. All of the cluster counts, as its speeds order what
    races, but for what GPUs would do where neither run has one.
    """
    keys: list[str] = []
    on_gpus = any((plain.get("cluster") or {}).get("device_taken") == GPU for plain in (first, second))
    for section in (*_SECTIONS, *_START, "cluster"):
        left_out = _OF_GPUS if section == "cluster" and not on_gpus else ()
        one, other = (_decisive(section, plain.get(section), left_out) for plain in (first, second))
        if one == other:
            continue
        if isinstance(one, Mapping) and isinstance(other, Mapping) and one.get("name") == other.get("name"):
            keys += [f"{section}.{key}" for key in {**one, **other} if one.get(key) != other.get(key)]
        else:
            keys.append(section)
    return keys


def _decisive(section: str, value: Any, more: Iterable[str] = ()) -> Any:
    """What counts of a section. more: keys that do not, beside those that never do."""
    left_out = {*_NOT_DECISIVE.get(section, ()), *more}
    if not isinstance(value, Mapping):
        return value
    return {key: each for key, each in value.items() if key not in left_out}
