"""The keys of a configuration that affect the values that a run computes; comparisons of keys, and changed keys."""

import dataclasses
import hashlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from omegaconf import MISSING, OmegaConf

from runner.bounds import section_of, sections
from runner.config import safe_yaml
from runner.config.conf_dir import conf_dir
from runner.config.configuration import of_this_version, structured, to_plain
from runner.config.groups import GROUPS
from runner.config.schema import Config
from runner.data.settings import NOT_DECISIVE
from runner.engine.graph.device import GPU
from runner.system.redaction import redact

_ENTRIES = ("seed", "precision", "task", "model", "data", "optimizer", "schedule", "parallelism", "train", "checkpoint")
_CALLBACKS = "callbacks"
_START = ("init_from", "init_include", "init_exclude")
_OF_GPUS = ("device_taken", "server_device", "tf32", "compare_plans", "collectives")
"""Keys of the cluster that affect the values of runs on GPUs."""
_NOT_DECISIVE = {
    "task": ("metrics",),
    "train": ("log_every", "restarts", "fail_on_divergence", "recompute"),
    "data": NOT_DECISIVE,
    "checkpoint": ("every_s", "keep"),
    "cluster": ("device", "filled_in", "spares", "min_workers"),
}
"""Keys that affect neither values nor the order of clients. The device in use is in device_taken, not in device."""


def outcome_hash(config: Config) -> str:
    """Return a SHA-256 in hex of the keys that affect the values of a run, except the ``order_keys`` of its strategy.

    Of the cluster, only the compression, the threads of a worker and, on GPUs, the keys of GPUs count. The steps of
    evaluations and checkpoints count, because the run waits at these steps for all running clients.
    """
    plain = dataclasses.asdict(config)
    decisive = {section: _decisive(section, plain[section]) for section in (*_ENTRIES, *_START)}
    if plain[_CALLBACKS]:  # without callbacks, the hash equals the hash of earlier versions
        decisive[_CALLBACKS] = plain[_CALLBACKS]
    for key in config.parallelism.order_keys:
        del decisive["parallelism"][key]
    cluster = plain["cluster"]
    keys = ("compression", "threads_per_worker", *(_OF_GPUS if cluster["device_taken"] == GPU else ()))
    decisive["cluster"] = {key: cluster[key] for key in keys}
    return hashlib.sha256(json.dumps(decisive, sort_keys=True, default=str).encode()).hexdigest()


def differing_keys(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[str]:
    """Return the dotted keys that can make runs of two configurations differ in values or in the order of clients.

    If two sections differ in ``name``, the result has the section instead of its keys. Keys of the cluster count,
    because speeds decide the order in which clients finish; keys of GPUs count only if one of the runs uses a GPU.
    """
    keys: list[str] = []
    on_gpus = any((plain.get("cluster") or {}).get("device_taken") == GPU for plain in (first, second))
    for section in (*_ENTRIES, *_START, _CALLBACKS, "adapt", "cluster"):
        left_out = _OF_GPUS if section == "cluster" and not on_gpus else ()
        missing: Any = {} if section == _CALLBACKS else None  # earlier versions had no callbacks
        one, other = (_decisive(section, plain.get(section, missing), left_out) for plain in (first, second))
        if one == other:
            continue
        if isinstance(one, Mapping) and isinstance(other, Mapping) and one.get("name") == other.get("name"):
            keys += [f"{section}.{key}" for key in {**one, **other} if one.get(key) != other.get(key)]
        else:
            keys.append(section)
    return keys


def _decisive(section: str, value: Any, more: Iterable[str] = ()) -> Any:
    """Return a section without the keys that have no effect on values or order. more: additional keys to leave out."""
    left_out = {*_NOT_DECISIVE.get(section, ()), *more}
    if not isinstance(value, Mapping):
        return value
    return {key: each for key, each in value.items() if key not in left_out}


def with_defaults(plain: Mapping[str, Any], config: Config) -> dict[str, Any]:
    """Return stored plain values with the default of every missing key; defaults keep the behaviour of older versions.

    A section with another option than in ``config`` is not changed, because its schema can belong to a plugin.
    """
    plain = of_this_version(plain)
    complete = _completed(plain, Config)
    for name, own in plain.items():
        section = getattr(config, name, None)
        if isinstance(own, Mapping) and own.get("name") == getattr(section, "name", None):
            kind: Any = type(section)
            complete[name] = _completed(own, kind) if dataclasses.is_dataclass(section) else own
    return complete


def _completed(own: Mapping[str, Any], schema: type) -> dict[str, Any]:
    """Return ``own`` values with the default of every missing key, also in sections that are null by default."""
    complete = filled(own, defaults_of(schema))
    for each in dataclasses.fields(schema):
        inner, named = section_of(each.type)
        if inner is not None and isinstance(complete.get(each.name), Mapping):
            found = {name: _completed(section, inner) for name, section in sections(complete[each.name], named).items()}
            complete[each.name] = found if named else found[""]
    return complete


def configuration_changes(earlier: Iterable[Path], config: Config, ignored: Collection[str] = ()) -> Iterator[str]:
    """Yield a text for each earlier start of a run if its configuration differs from ``config`` in a relevant key.

    earlier: paths of the configurations of earlier starts. ignored: dotted keys that are not compared. Raises
    ConfigError or SecurityError if a configuration cannot be read.
    """
    last = to_plain(config)
    for path in earlier:
        keys = differing_keys(with_defaults(safe_yaml.load(path), config), last)
        if shown := [key for key in keys if key not in ignored]:
            yield f"{path.name} differs in {', '.join(shown)}"


def filled(own: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``own`` values with the default of every missing key, also in nested sections."""
    sections = {key for key, default in defaults.items() if isinstance(default, Mapping)}
    both = {key: filled(own[key], defaults[key]) for key in sections if isinstance(own.get(key), Mapping)}
    return {**defaults, **own, **both}


@cache
def defaults_of(schema: type) -> Mapping[str, Any]:
    """Return the defaults of a dataclass of the configuration as plain data, without keys that have no default."""
    found: Any = OmegaConf.to_container(structured(schema))
    return {key: default for key, default in found.items() if default != MISSING}


def changes(config: Config) -> list[str]:
    """Return "KEY=VALUE", without secrets, for each key whose value is not a default; values are JSON or bare text.

    The defaults come from ``config.yaml``. If a group does not have its default option, its other keys are compared
    with the defaults of the chosen option: "model.name=mlp" stands for all these defaults. Keys of the cluster that
    were filled in when the run started are left out. The YAML files are read directly, because Hydra would compose the
    whole configuration a second time. Raises OSError if a YAML file of the project cannot be read.
    """
    plain = redact(to_plain(config))
    primary: dict[str, Any] = _content(conf_dir() / "config.yaml")
    defaults = filled(primary, defaults_of(Config))
    entries: Any = primary["defaults"]
    options = {group: name for entry in entries if isinstance(entry, dict) for group, name in entry.items()}
    for group, schemas in GROUPS.items():
        name = plain[group]["name"]
        file = conf_dir() / group / f"{name}.yaml"
        section = filled(_content(file) if file.is_file() else {}, defaults_of(schemas[name]))
        defaults[group] = filled(primary.get(group, {}), section) | {"name": options[group]}
    for name in ("filled_in", "device_taken", *(config.cluster.filled_in or ())):
        del plain["cluster"][name]
    return list(_differences(plain, defaults, ""))


_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # PyYAML's loader in C is faster, but not always available


def _content(path: Path) -> Any:
    return yaml.load(path.read_text(encoding="utf-8"), Loader=_LOADER)


def _differences(values: Mapping[str, Any], defaults: Mapping[str, Any], place: str) -> Iterator[str]:
    for name, value in values.items():
        key, default = f"{place}{name}", defaults.get(name)
        if isinstance(value, dict) and isinstance(default, dict):
            yield from _differences(value, default, f"{key}.")
        elif name not in defaults or value != default:
            yield f"{key}={value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}"
