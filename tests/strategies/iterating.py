"""Iterations of L-BFGS under a strategy, in this process."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from runner.engine.compile.program import Program
from runner.engine.run.interleaving import VirtualTime
from runner.engine.run.session import scalar
from runner.kernels.registry import Registry
from runner.strategies.base import Strategy, Task
from tests.strategies.training import Weights, begun

COMMAND_S, WIRE_S = 0.01, 0.1


@dataclass
class Course:
    """The results of a run. told: loss, accuracy and objective of each iteration. sent: bytes by device."""

    weights: Weights
    told: list[tuple[float, float, float]]
    metrics: list[Mapping[str, float]]
    record: Mapping[str, Any]
    sent: list[int]
    program: Program = field(repr=False)

    @property
    def evaluations(self) -> int:
        """Portions of a batch."""
        return int(sum(each["train/evaluations"] for each in self.metrics))

    @property
    def duplicated(self) -> int:
        """Number of portions that were computed again."""
        return sum(each["duplicated"] for each in self.record["evaluations"])


def speeds(*seconds: float) -> VirtualTime:
    """A clock with the seconds of a portion for each worker; commands and fetches are fast."""

    def part_s(client: str, device: str, step: int) -> float:
        return seconds[int(client.split("_")[1])] if client.startswith("compute") else COMMAND_S

    return VirtualTime(part_s, lambda nbytes: WIRE_S)


def drawn_speeds(seed: int) -> VirtualTime:
    """Portions and commands whose seconds are drawn with heavy tails."""
    generator = np.random.default_rng(seed)

    def part_s(client: str, device: str, step: int) -> float:
        return float(generator.lognormal(sigma=1.5)) * (1.0 if client.startswith("compute") else 0.05)

    return VirtualTime(part_s, lambda nbytes: float(generator.lognormal(sigma=1.5)))


def iterated(
    strategy: Strategy,
    task: Task,
    registry: Registry,
    steps: Iterable[int],
    *,
    saved: Weights | None = None,
    **options: Any,
) -> Course:
    """Make iterations from the initial values, or from those saved. options: of :func:`training.opened`."""
    with begun(strategy, task, registry, saved, **options) as trainer:
        step_driver, told, metrics = trainer.step_driver, [], []
        for step in steps:
            answer = step_driver.update(step, scalar(1.0, task.state_dtype))
            metrics.append(step_driver.metrics())
            told.append((float(answer["loss"]), float(answer["accuracy"]), metrics[-1]["train/objective"]))
        step_driver.synchronize()
        # Count before the variables are read, because that sends bytes too.
        sent = trainer.session.sent_bytes()
        return Course(trainer.session.run("save"), told, metrics, step_driver.decisions(), sent, trainer.program)
