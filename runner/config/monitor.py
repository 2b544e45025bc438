"""The metric that determines the best run of a sweep and the best checkpoint of a run.

By default, this is the task's metric on the validation split. A score on the split by which a network was chosen
overestimates the quality of the network, and more candidates increase this error. Without a validation split, the
default is the metric on the test split. In this case, no best checkpoint is kept by default, and a sweep compares the
last values of its runs, not their best values.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from runner.config.schema import Config
from runner.engine.graph.network import LOSS
from runner.errors import ConfigError, require_one_of
from runner.tasks import TASKS
from runner.tasks.base import MAX, Task

_TRAIN_LOSS = f"train/{LOSS}"
SIMULATED_SPEED = "simulated/examples_per_s"  # the metric by which simulated runs are compared


@dataclass(frozen=True)
class Monitor:
    """A metric, such as "val/accuracy", and whether high values of it are better."""

    metric: str
    highest: bool

    def better(self, value: float, than: float) -> bool:
        """Return whether ``value`` is strictly better than ``than``; NaN is never better."""
        return value > than if self.highest else value < than


def monitored(task: Task) -> list[str]:
    """Return the metrics of a task that ``train.monitor`` may name."""
    return [f"{split}/{metric}" for split in ("val", "test") for metric in (*task.measures, LOSS)] + [_TRAIN_LOSS]


def monitor_of(config: Config) -> Monitor:
    """Return the metric by which runs of this configuration and their checkpoints are compared."""
    return _monitor(config.task, config.train.monitor, config.data.val_fraction)


def monitor_of_plain(plain: Mapping[Any, Any]) -> Monitor:
    """Return the metric of a configuration given as plain values.

    Raises ConfigError for a configuration without valid sections, or with a task of a plugin that is not installed.
    """
    settings, train, data, simulated = (_section(plain, name) for name in ("task", "train", "data", "simulate"))
    if simulated.get("updates") is not None:
        return Monitor(SIMULATED_SPEED, highest=True)
    require_one_of("task.name", settings.get("name"), TASKS)
    task = TASKS[settings["name"]](**settings)
    named = train.get("monitor")
    require_one_of("train.monitor", named, monitored(task), optional=True)
    return _monitor(task, named, data.get("val_fraction"))


def _section(plain: Mapping[Any, Any], name: str) -> Mapping[str, Any]:
    section = plain.get(name)
    if not isinstance(section, Mapping):
        raise ConfigError(f"{name}={section}: expected a section of keys")
    return section


def _monitor(task: Task, named: str | None, val_fraction: object) -> Monitor:
    metric = named or f"{'val' if val_fraction else 'test'}/{task.monitor}"
    return Monitor(metric, task.direction(metric.partition("/")[2]) == MAX)


def keeps_best(config: Config) -> bool:
    """Return ``checkpoint.keep_best`` or, if it is null, whether patience, monitor or val_fraction is set."""
    if config.checkpoint.keep_best is not None:
        return config.checkpoint.keep_best
    return config.train.patience is not None or config.train.monitor is not None or config.data.val_fraction > 0
