"""The part of a configuration that decides the values of a run, and its comparison with earlier configurations."""

import dataclasses
import hashlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from omegaconf import MISSING, OmegaConf

from runner.config import safe_yaml
from runner.config.configuration import to_plain
from runner.config.schema import Config
from runner.engine.graph.device import GPU

_SECTIONS = ("seed", "precision", "model", "data", "optimizer", "schedule", "parallelism", "train", "checkpoint")
_START = ("init_from", "init_include", "init_exclude")
_OF_GPUS = ("device_taken", "server_device", "tf32", "compare_plans", "collectives")
"""Keys of the cluster that decide values of runs on GPUs."""
_NOT_DECISIVE = {
    "train": ("log_every",),
    "data": ("cache_dir", "max_bytes"),
    "checkpoint": ("keep",),
    "cluster": ("device", "filled_in"),
}
"""Keys that decide neither a value nor an order. The device of a run is in device_taken, not in device."""


def outcome_hash(config: Config) -> str:
    """Return a SHA-256 in hex, which is equal for configurations that differ only in execution order or in recording.

    Of the cluster, only the compression, the thread budget and the keys of GPUs count. The steps of evaluations and
    checkpoints count: launched clients end there, and their order starts again after a checkpoint.
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
    """Return the dotted keys that can make runs of two plain configurations differ in values or in order.

    If the ``name`` of a section differs, only the section is returned. All keys of the cluster count, because speeds
    decide the order of races; the keys of GPUs count only if one of the runs has a GPU.
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
    """Return the part of a section that decides values or order. more: additional keys that do not count."""
    left_out = {*_NOT_DECISIVE.get(section, ()), *more}
    if not isinstance(value, Mapping):
        return value
    return {key: each for key, each in value.items() if key not in left_out}


def with_defaults(plain: Mapping[str, Any], config: Config) -> dict[str, Any]:
    """Return stored plain values with the default of each missing key, which is the behaviour before the key existed.

    A section whose option differs from ``config`` is not changed, because its schema can belong to a plugin.
    """
    filled = _filled(plain, _defaults(Config))
    for name, own in plain.items():
        section = getattr(config, name, None)
        if isinstance(own, Mapping) and own.get("name") == getattr(section, "name", None):
            filled[name] = _filled(own, _defaults(type(section))) if dataclasses.is_dataclass(section) else own
    return filled


def configuration_changes(earlier: Iterable[Path], config: Config, but: Collection[str] = ()) -> Iterator[str]:
    """Yield a text for each earlier start of a run whose configuration differs from the last one in keys that count.

    earlier: the configurations of earlier starts. but: dotted keys that do not count. Raises ConfigError or
    SecurityError if a configuration cannot be read.
    """
    last = to_plain(config)
    for path in earlier:
        keys = [key for key in differing_keys(with_defaults(safe_yaml.load(path), config), last) if key not in but]
        if keys:
            yield f"{path.name} differs in {', '.join(keys)}"


def _filled(own: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    sections = {key for key, default in defaults.items() if isinstance(default, Mapping)}
    both = {key: _filled(own[key], defaults[key]) for key in sections if isinstance(own.get(key), Mapping)}
    return {**defaults, **own, **both}


def _defaults(schema: type) -> dict[str, Any]:
    """Return the plain default values of a dataclass of the configuration, without keys that have none."""
    found: Any = OmegaConf.to_container(OmegaConf.structured(schema))
    return {key: default for key, default in found.items() if default != MISSING}
