"""The metric that determines the best run of a sweep and the best checkpoint of a run.

By default it is the accuracy on the validation split, because a split that takes part in a choice overestimates the
accuracy of the chosen network: the more candidates, the more. Without a validation split it is the accuracy on the test
split. Then no best checkpoint is kept by default, and a sweep compares the last values of its runs, not their best.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.config import safe_yaml
from runner.config.schema import Config
from runner.errors import ConfigError

MONITORED = ("val/accuracy", "val/loss", "test/accuracy", "test/loss", "train/loss")


@dataclass(frozen=True)
class Monitor:
    """A metric, one of :data:`MONITORED`, and whether high or low values of the metric are better."""

    metric: str

    @property
    def highest(self) -> bool:
        """Whether high values are better, as for accuracies. For losses, low values are better."""
        return self.metric.endswith("/accuracy")

    def better(self, value: float, than: float) -> bool:
        """Return whether ``value`` is strictly better than ``than``; NaN is never better."""
        return value > than if self.highest else value < than


def monitor_of(config: Config) -> Monitor:
    """Return the metric by which runs of this configuration and their checkpoints are compared."""
    return _monitor(config.train.monitor, config.data.val_fraction)


def monitor_of_stored(path: Path) -> Monitor:
    """Return the metric of a stored configuration, without loading plugins, which its other keys may need.

    Raises ConfigError for a file that is not a configuration.
    """
    try:
        return monitor_of_plain(safe_yaml.load(path))
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def monitor_of_plain(plain: Mapping[Any, Any]) -> Monitor:
    """Return the metric of a configuration given as plain values. Raises ConfigError for one without valid sections."""
    train, data = (plain.get(section) for section in ("train", "data"))
    if not isinstance(train, Mapping) or not isinstance(data, Mapping):
        raise ConfigError("expected a configuration with the sections train and data")
    named = train.get("monitor")
    if named not in (None, *MONITORED):
        raise ConfigError(f"train.monitor={named!r}: expected one of {', '.join(MONITORED)}, or null")
    return _monitor(named, data.get("val_fraction"))


def _monitor(named: str | None, val_fraction: object) -> Monitor:
    return Monitor(named or ("val/accuracy" if val_fraction else "test/accuracy"))


def keeps_best(config: Config) -> bool:
    """Return ``checkpoint.keep_best`` or, if it is null, whether patience, monitor or val_fraction is set."""
    if config.checkpoint.keep_best is not None:
        return config.checkpoint.keep_best
    return config.train.patience is not None or config.train.monitor is not None or config.data.val_fraction > 0
