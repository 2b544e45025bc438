"""Classes as a user would define them in a notebook."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

import runner
from runner.data.dataset import Dataset, Facts, Normalisation, Split
from runner.engine.graph import Expr, NetworkBuilder, Tensor
from runner.optimizers.base import NewValues, Rule, State


@dataclass
class SmallNet(runner.Model):
    """One hidden layer."""

    hidden: int = 64

    def forward(self, net: NetworkBuilder, x: Tensor, classes: int) -> Tensor:
        h = runner.nn.dense(net, runner.nn.flatten(net, x, name="flatten"), self.hidden, name="fc1")
        return runner.nn.dense(net, runner.nn.relu(net, h, name="relu1"), classes, name="fc2")


@dataclass
class SignDescent(runner.Optimizer):
    """w <- w - lr * g / |g|."""

    def rule(self, learning_rate: Expr, step: Expr) -> Rule:
        def update(w: State, g: Expr) -> NewValues:
            return [(w, w - learning_rate * g)]

        return update


@dataclass
class Halves(runner.Schedule):
    """The rate is halved after each step."""

    def decay(self, step: int, total_steps: int, steps_per_epoch: float) -> float:
        return 0.5**step


@dataclass
class Stripes(runner.DatasetSettings):
    """Images of one column each."""

    examples: int = 30

    def facts(self) -> Facts:
        return Facts.labelled((1, 4, 4), ("a", "b", "c", "d"), self.examples, self.examples)

    def load(self) -> Dataset:
        labels = np.arange(self.examples) % 4
        images = np.zeros((self.examples, 1, 4, 4), np.float32)
        images[np.arange(self.examples), :, :, labels] = 1.0
        split = Split({"x": images, "y": labels.astype(np.int64)})
        return Dataset("stripes", split, split, Normalisation(1.0, (0.25,), (0.43,)))


@dataclass
class Recorder(runner.Callback):
    """Keeps every call."""

    calls: list[tuple[str, int]] = field(default_factory=list)

    def on_step(self, step: int, loss: float) -> None:
        assert loss > 0
        self.calls.append(("step", step))

    def on_evaluation(self, step: int, metrics: Mapping[str, float]) -> None:
        assert set(metrics) == {"test/loss", "test/accuracy"}
        self.calls.append(("evaluation", step))

    def on_checkpoint(self, step: int, path: Path) -> None:
        assert path.name == f"step-{step}"
        self.calls.append(("checkpoint", step))
