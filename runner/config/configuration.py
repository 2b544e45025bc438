"""Convert names and numbers in YAML to one typed, checked configuration.

Every value that Hydra composed or a stored ``config.yaml`` contains goes through :func:`from_plain`: the
``name`` of a group selects a dataclass from that group's table, and keys that the dataclass does not declare are
refused. No value of a configuration is a reference to code.
"""

import dataclasses
import sys
from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, cast

from omegaconf import MISSING, DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from runner.bounds import out_of_bounds
from runner.callback import CALLBACKS
from runner.config import safe_yaml
from runner.config.check import check
from runner.config.devices import ALL_GPUS, FindGpus, GpuShare, assign_devices
from runner.config.error_text import describe, unknown_callback
from runner.config.groups import GROUPS
from runner.config.schema import FILLED_IN, Config, worker_processes
from runner.data.settings import DatasetSettings
from runner.errors import ConfigError
from runner.kernels.gpu.discovery import discover

LIMITS = ("train.epochs", "train.steps")  # the two keys for the length of a run; a configuration sets exactly one


def from_composed(composed: DictConfig, overrides: Sequence[str]) -> Config:
    """Return the checked configuration that Hydra composed from the command line's ``overrides``.

    An override that sets one of :data:`LIMITS` clears the other, which the defaults or an experiment may have set.
    """
    try:
        plain: Any = OmegaConf.to_container(composed, resolve=True)
    except OmegaConfBaseException as error:
        raise ConfigError(describe(error)) from error
    release_other_limit(plain, overrides)
    config = from_plain(plain)
    check(config)
    return config


def load_stored(path: Path) -> Config:
    """Return the checked configuration of a stored ``config.yaml``, which is plain YAML that the schema allows.

    Raises ConfigError, naming ``path``, for any other content.
    """
    plain = safe_yaml.load(path)
    try:
        config = from_plain(plain)
        check(config)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
    return config


def from_plain(plain: Mapping[str, Any]) -> Config:
    """Return the configuration that nested plain values describe.

    Raises ConfigError for an unknown key, an unknown option, a wrong type, a missing value, or, in one message, for all
    numbers that are out of bounds.
    """
    plain = of_this_version(plain)
    _require_values(plain, "")
    sections = {name: value for name, value in plain.items() if name not in GROUPS} | dict.fromkeys(GROUPS)
    callbacks = _callbacks(sections.pop("callbacks", {}))
    schemas = {"": Config} | {group: _schema_of(group, plain.get(group)) for group in GROUPS}
    schemas |= {where: CALLBACKS[settings["name"]] for where, settings in callbacks.items()}
    values = {"": sections} | {group: plain[group] for group in GROUPS} | callbacks
    typed = {where: _typed(schema, values[where], where) for where, schema in schemas.items()}
    _require_bounds(schemas, typed)
    config: Config = _built(typed.pop(""), where="")
    for group in GROUPS:
        setattr(config, group, _built(typed[group], group))
    config.callbacks = {settings["name"]: _built(typed[where], where) for where, settings in callbacks.items()}
    return config


def of_this_version(plain: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a configuration of version 0.1, which had the key ``model.loss`` and no tasks, in the present form."""
    model = plain.get("model")
    if "task" in plain or not isinstance(model, Mapping):
        return plain
    loss = {"loss": model["loss"]} if "loss" in model else {}
    model = {key: value for key, value in model.items() if key != "loss"}
    return {**plain, "task": {"name": "classification", **loss}, "model": model}


def to_plain(config: Config) -> dict[str, Any]:
    """Return the configuration as nested dicts, lists, strings, numbers and None."""
    plain = _without_tuples(dataclasses.asdict(config))
    assert isinstance(plain, dict)
    return plain


def dump(config: Config) -> str:
    """Return the YAML text from which :func:`load_stored` reads an equal configuration."""
    return safe_yaml.dump(to_plain(config))


def release_other_limit(plain: dict[str, Any], overrides: Sequence[str]) -> None:
    """If ``overrides`` give exactly one of :data:`LIMITS` a value, set the other to None."""
    named = {item.split("=", 1)[0].lstrip("+") for item in overrides}
    given = [limit for limit in LIMITS if limit in named]
    train = plain.get("train")
    if len(given) == 1 and isinstance(train, dict) and train.get(given[0].split(".")[1]) is not None:
        for limit in LIMITS:
            if limit not in given:
                train[limit.split(".")[1]] = None


def fix_machine_values(config: Config, cores: int, find: FindGpus = discover, share: GpuShare = ALL_GPUS) -> Config:
    """Return ``config`` with absolute paths, and with all machine-dependent values filled in.

    A run stores the result, so a resumed run with the same threads and devices computes equal values bit for bit.
    ``cluster.filled_in`` names the keys that were null before. cores: number of cores that the run may use. find:
    function that finds the GPUs. share: the job's share of the GPUs if other jobs run at the same time.
    A simulated run depends on no machine, so its configuration is returned unchanged. Raises ResourceError for a
    requested GPU that does not exist.
    """
    if config.simulate.updates is not None:
        return config
    threads, cores_each = share_of_worker(config, cores)
    before = config.cluster.filled_in or ()
    cluster = dataclasses.replace(
        assign_devices(config, find, share),
        threads_per_worker=threads,
        cores_per_worker=cores_each,
        workers=worker_processes(config),
        filled_in=[name for name in FILLED_IN if getattr(config.cluster, name) is None or name in before],
    )
    init_from = None if config.init_from is None else str(Path(config.init_from).absolute())
    target = target_of(config)
    data = {} if target is None else _without_tuples(dataclasses.asdict(target))
    adapt = dataclasses.replace(config.adapt, data=data)
    return dataclasses.replace(config, cluster=cluster, init_from=init_from, adapt=adapt)


def share_of_worker(config: Config, cores: int) -> tuple[int, float]:
    """Return the kernel threads and the cores of a worker: the configured ones, or an equal share of ``cores``."""
    cluster, workers = config.cluster, worker_processes(config)
    return cluster.threads_per_worker or max(1, cores // workers), cluster.cores_per_worker or cores / workers


def with_workers(config: Config, workers: int, cores: int) -> Config:
    """Return the configuration with which a run continues with another number of worker processes.

    Keys of the cluster that were null before the run are filled in again; see :func:`fix_machine_values`. Raises
    ConfigError if the strategy cannot use this number.
    """
    plain = to_plain(config)
    if "workers" not in plain["parallelism"]:
        raise ConfigError(f"parallelism={config.parallelism.name} has no key for the number of workers")
    plain["parallelism"]["workers"] += workers - worker_processes(config)
    plain["cluster"] |= dict.fromkeys(config.cluster.filled_in or ())
    changed = from_plain(plain)
    check(changed)
    return fix_machine_values(changed, cores)


def target_of(config: Config) -> DatasetSettings | None:
    """Return the settings of the dataset to which the network is adapted; None without adaptation.

    Raises ConfigError, naming ``adapt.data``, for an unknown dataset or wrong settings.
    """
    if not config.adapt.data:
        return None
    try:
        found: DatasetSettings = option_of("data", config.adapt.data)
    except ConfigError as error:
        raise ConfigError(f"adapt.data: {error}") from error
    return found


def option_of(group: str, values: object) -> Any:
    """Return ``values`` as an instance of the dataclass that their ``name`` selects in a group. Raises ConfigError."""
    schema = _schema_of(group, values)
    assert isinstance(values, Mapping)
    typed = _typed(schema, values, group)
    _require_bounds({group: schema}, {group: typed})
    return _built(typed, group)


def _require_bounds(schemas: Mapping[str, type], typed: Mapping[str, DictConfig]) -> None:
    """Raise one ConfigError for all numbers that are out of bounds. The keys of both mappings are section names."""
    faults = [
        fault
        for where, schema in schemas.items()
        for fault in out_of_bounds(schema, cast(dict[str, Any], OmegaConf.to_container(typed[where])), where)
    ]
    if faults:
        raise ConfigError("\n".join(faults))


def _schema_of(group: str, values: object) -> type:
    """Return the dataclass that the ``name`` among a group's plain values selects. Raises ConfigError."""
    options = ", ".join(GROUPS[group])
    if not isinstance(values, Mapping):
        raise ConfigError(f"{group}: expected one of {options} and the keys of this option, found {values!r}")
    name = values.get("name")
    if not isinstance(name, str) or name not in GROUPS[group]:
        fault = "is missing" if name is None else f"is {name!r}"
        raise ConfigError(f"{group}.name {fault}: expected one of {options}, or a name from a --plugin")
    return GROUPS[group][name]


def _callbacks(section: object) -> dict[str, dict[str, Any]]:
    """Return "callbacks.NAME" -> the plain settings of this callback, with its name. Raises ConfigError."""
    if not isinstance(section, Mapping):
        raise ConfigError(f"callbacks: expected names with settings, callbacks.NAME.KEY=VALUE, found {section!r}")
    found = {}
    for name, settings in section.items():
        where = f"callbacks.{name}"
        if name not in CALLBACKS:
            raise ConfigError(unknown_callback(str(name)))
        if not isinstance(settings, Mapping) or settings.get("name", name) != name:
            raise ConfigError(f"{where}: expected a section of keys, or {{}} for the defaults, found {settings!r}")
        found[where] = {"name": name, **settings}
    return found


def _typed(schema: type, values: Mapping[str, Any], where: str) -> DictConfig:
    """Return plain values converted to the types of a schema, with the schema's defaults for missing values."""
    for section in dataclasses.fields(schema):
        value = values.get(section.name, {})
        if dataclasses.is_dataclass(section.type) and not isinstance(value, Mapping):
            place = f"{where}.{section.name}" if where else section.name
            raise ConfigError(f"{place}: expected a section of keys, found {value!r}")
    try:
        return _merged(schema, _Section(repr(values), values))
    except OmegaConfBaseException as error:
        raise ConfigError(describe(error, where)) from error


@dataclasses.dataclass(frozen=True)
class _Section:
    """Plain values of a section. Two objects are equal if their texts are equal."""

    text: str
    values: Mapping[str, Any] = dataclasses.field(compare=False)


@lru_cache(maxsize=512)
def _merged(schema: type, section: _Section) -> DictConfig:
    """Return the values of a section in the nodes of its schema. The caller must not change the result.

    OmegaConf needs milliseconds for a section, and the configurations of a sweep or a table differ in few sections.
    """
    return cast(DictConfig, OmegaConf.merge(structured(schema), dict(section.values)))


@cache
def structured(schema: type) -> DictConfig:
    """Return a schema as an OmegaConf node, cached to save milliseconds. The caller must not change the node.

    The maps in the node accept any names; names and values are checked later.
    """
    node: DictConfig = OmegaConf.structured(schema)
    _open_maps(node, schema)
    return node


def _open_maps(node: Any, schema: type) -> None:
    for each in dataclasses.fields(schema):
        if each.type == dict[str, Any]:
            node._get_node(each.name)._set_flag("struct", False)
        elif dataclasses.is_dataclass(each.type):
            _open_maps(node._get_node(each.name), cast(type, each.type))


def _built(values: DictConfig, where: str) -> Any:
    try:
        return OmegaConf.to_object(values)
    except OmegaConfBaseException as error:
        raise ConfigError(describe(error, where)) from error
    except ValueError as error:  # from a dataclass that checks its values
        raise ConfigError(f"{where}: {error}") from error


def _require_values(value: object, place: str) -> None:
    """Raise ConfigError if nested values contain "???", an interpolation, or an integer of over 1023 bits."""
    if isinstance(value, Mapping):
        for name, item in value.items():
            _require_values(item, f"{place}.{name}" if place else str(name))
    elif isinstance(value, list):
        for item in value:
            _require_values(item, place)
    elif isinstance(value, int) and value.bit_length() >= sys.float_info.max_exp:  # bounds refuse smaller values
        raise ConfigError(f"{place}: found a whole number of {value.bit_length()} bits, expected a 64-bit number")
    elif value == MISSING:
        raise ConfigError(f"{place}: missing value")
    elif isinstance(value, str) and "${" in value:
        raise ConfigError(f"{place}: {value!r} holds an interpolation; expected a plain value")


def _without_tuples(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_tuples(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_tuples(item) for item in value]
    return value
