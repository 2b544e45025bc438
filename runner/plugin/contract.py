"""The content of a plugin, and the checks of this content."""

import dataclasses
import re
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from runner.callback import CALLBACKS, Callback
from runner.data import DATASETS
from runner.data.augmentation import AUGMENTATIONS, Augmentation
from runner.data.settings import DatasetSettings
from runner.engine.graph.op import ByDecomposition, OpDef
from runner.errors import ConfigError
from runner.kernels.contract import Kernel
from runner.models import MODELS
from runner.models.base import Model
from runner.optimizers import OPTIMIZERS
from runner.optimizers.base import Optimizer
from runner.optimizers.schedules import SCHEDULES, Schedule
from runner.strategies import STRATEGIES
from runner.strategies.base import Strategy
from runner.tasks import LOSSES, METRICS, TASKS
from runner.tasks.base import MAX, MIN, RESERVED, TARGETS, Loss, Metric, Task

NAME = re.compile(r"[a-z][a-z0-9_]*")
"""Pattern of names in a configuration."""

DEVICE_TYPE = "cpu"
"""The device type on which every op must have a kernel, unless the op has a decompose rule."""


class Options(NamedTuple):
    """A table of options. group: the configuration group. base: class from which all options derive.

    several: whether a configuration can name any number of options, each with its settings, instead of exactly one.
    """

    group: str
    base: type
    table: MutableMapping[str, Any]
    several: bool = False


OPTIONS = {
    "tasks": Options("task", Task, TASKS),
    "models": Options("model", Model, MODELS),
    "datasets": Options("data", DatasetSettings, DATASETS),
    "optimizers": Options("optimizer", Optimizer, OPTIMIZERS),
    "schedules": Options("schedule", Schedule, SCHEDULES),
    "strategies": Options("parallelism", Strategy, STRATEGIES),
    "callbacks": Options("callbacks", Callback, CALLBACKS, several=True),
    "augmentations": Options("data.augment.others", Augmentation, AUGMENTATIONS, several=True),
}
"""Field of :class:`Plugin` -> the table of options to which its entries are added."""

MEASURES: dict[str, tuple[type, MutableMapping[str, Any]]] = {"losses": (Loss, LOSSES), "metrics": (Metric, METRICS)}
"""Field of :class:`Plugin` -> the type of its entries, and the table to which they are added."""

TABLES: dict[str, MutableMapping[str, Any]] = {
    **{name: options.table for name, options in OPTIONS.items()},
    **{name: table for name, (_, table) in MEASURES.items()},
}
"""Field of :class:`Plugin` -> the table to which its entries are added, except for ops and kernels."""


@dataclass(frozen=True)
class Plugin:
    """The entries that one file adds to the tables of options, ops and kernels, by the names used in configurations.

    tasks, models, datasets, optimizers, schedules, strategies, callbacks, augmentations: name -> dataclass derived from
    the base class in :data:`OPTIONS`. The fields of a class are the option's settings; the first is ``name``, with the
    option's name as its default. losses, metrics: name -> :class:`~runner.tasks.base.Loss` or
    :class:`~runner.tasks.base.Metric`, for the keys ``task.loss`` and ``task.metrics`` of classification and
    regression. ops: definitions, each with a decompose rule or with a kernel for "cpu" among ``kernels``. kernels: for
    these ops or for ops of the package.

    Raises ConfigError if an entry does not fit this description.
    """

    tasks: Mapping[str, type[Task]] = field(default_factory=dict)
    losses: Mapping[str, Loss] = field(default_factory=dict)
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    models: Mapping[str, type[Model]] = field(default_factory=dict)
    datasets: Mapping[str, type[DatasetSettings]] = field(default_factory=dict)
    optimizers: Mapping[str, type[Optimizer]] = field(default_factory=dict)
    schedules: Mapping[str, type[Schedule]] = field(default_factory=dict)
    strategies: Mapping[str, type[Strategy]] = field(default_factory=dict)
    augmentations: Mapping[str, type[Augmentation]] = field(default_factory=dict)
    callbacks: Mapping[str, type[Callback]] = field(default_factory=dict)
    ops: Sequence[OpDef] = ()
    kernels: Sequence[Kernel] = ()

    def __post_init__(self) -> None:
        for table, options in OPTIONS.items():
            own = getattr(self, table)
            _require(isinstance(own, Mapping), f"Plugin({table}=...)", own, "a dict of names and classes")
            for name, schema in own.items():
                _check_option(f"Plugin({table}={{{name!r}: ...}})", name, schema, options.base)
        for table, (measure, _) in MEASURES.items():
            own = getattr(self, table)
            _require(isinstance(own, Mapping), f"Plugin({table}=...)", own, f"a dict of names and {measure.__name__}")
            for name, each in own.items():
                _check_measure(f"Plugin({table}={{{name!r}: ...}})", name, each, measure)
        for table, kind in (("ops", OpDef), ("kernels", Kernel)):
            items = getattr(self, table)
            listed = isinstance(items, list | tuple) and all(isinstance(item, kind) for item in items)
            _require(listed, f"Plugin({table}=...)", items, f"a list of {kind.__name__}")
        for op in self.ops:
            self._check_op(op)

    def _check_op(self, op: OpDef) -> None:
        place = f"Plugin(ops=[...]): op {op.name!r}"
        able = any((kernel.op, kernel.device_type) == (op.name, DEVICE_TYPE) for kernel in self.kernels)
        expected = f"one for {DEVICE_TYPE!r} among kernels, such as one from function_kernel, or a decompose rule"
        _require(able or op.decompose is not None, place, "no kernel", expected)
        _require(op.executed_by == "kernel", place, f"executed_by={op.executed_by!r}", "executed_by='kernel'")
        decided = not isinstance(op.gradient, ByDecomposition) or op.decompose is not None
        _require(decided, place, "ByDecomposition without a rule", "a decompose rule, or a gradient rule")


def _check_measure(place: str, name: object, measure: object, kind: type) -> None:
    """Raise ConfigError unless ``measure`` is a valid loss or metric (``kind``), and ``name`` a valid name."""
    _check_name(place, name)
    _require(name not in RESERVED, place, name, f"a name other than {', '.join(RESERVED)}")
    fits = isinstance(measure, kind) and getattr(measure, "target", "") in TARGETS
    _require(fits, place, measure, f"{kind.__name__} with target={' or target='.join(map(repr, TARGETS))}")
    _require(callable(getattr(measure, "of_examples", None)), place, measure, "a function of_examples")
    if isinstance(measure, Metric):
        expected = f"direction={MIN!r} or direction={MAX!r}"
        _require(measure.direction in (MIN, MAX), place, f"direction={measure.direction!r}", expected)
        expected = "of_examples alone; a metric of means belongs to the measures of a task"
        _require(measure.of_means is None, place, "of_means", expected)


def _check_name(place: str, name: object) -> None:
    named = isinstance(name, str) and NAME.fullmatch(name) is not None
    _require(named, place, name, "a name of lower-case letters, digits and underscores")


def _check_option(place: str, name: object, schema: object, base: type) -> None:
    """Raise ConfigError unless ``schema`` is a dataclass that a configuration can choose by ``name``."""
    _check_name(place, name)
    schema = check_class(place, schema, base)
    first = next(iter(dataclasses.fields(schema)), None)
    called = first is not None and (first.name, first.default) == ("name", name)
    _require(called, place, f"class {schema.__name__}", f"a first field, name: str = {name!r}")


def check_class(place: str, schema: object, base: type) -> type:
    """Return ``schema``; raise ConfigError unless it is a dataclass derived from ``base`` that can be created."""
    derived = isinstance(schema, type) and issubclass(schema, base)
    _require(derived, place, schema, f"a class derived from {base.__name__}")
    assert isinstance(schema, type)
    own = "__dataclass_params__" in vars(schema)
    _require(own, place, f"class {schema.__name__}", "a dataclass: put @dataclass before it")
    lacking = ", ".join(sorted(getattr(schema, "__abstractmethods__", ())))
    _require(not lacking, place, f"class {schema.__name__} without {lacking}", "all its abstract methods")
    return schema


def _require(holds: bool, place: str, actual: object, expected: str) -> None:
    if not holds:
        raise ConfigError(f"{place}: got {actual}, expected {expected}")
