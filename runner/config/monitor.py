"""The metric that says which run of a sweep and which checkpoint of a run is best."""

from __future__ import annotations

from dataclasses import dataclass

from runner.config.schema import Config

MONITORED = ("val/accuracy", "val/loss", "test/accuracy", "test/loss", "train/loss")


@dataclass(frozen=True)
class Monitor:
    """A metric, one of :data:`MONITORED`, and the direction in which it is better."""

    metric: str

    @property
    def highest(self) -> bool:
        """Whether high values are good; losses are good when low."""
        return self.metric.endswith("/accuracy")

    def better(self, value: float, than: float) -> bool:
        """Whether ``value`` is strictly better; a value that is not a number never is."""
        return value > than if self.highest else value < than


def monitor_of(config: Config) -> Monitor:
    """The metric by which runs of this configuration and their checkpoints are compared."""
    return Monitor(config.train.monitor or ("val/accuracy" if config.data.val_fraction else "test/accuracy"))


def keeps_best(config: Config) -> bool:
    """Whether the best checkpoint is kept: as said, or where something else asks for a comparison."""
    if config.checkpoint.keep_best is not None:
        return config.checkpoint.keep_best
    return config.train.patience is not None or config.train.monitor is not None or config.data.val_fraction > 0
