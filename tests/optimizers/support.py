"""A trainer that runs an optimizer's nodes for several steps and, as a session does, commits values after each step."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runner.engine.graph import Constant, Graph, LayerStamp, Tensor, TensorSpec, Variable, Variables, ops
from runner.optimizers import Optimizer
from tests.oracles import evaluate

Array = NDArray[Any]

START = {"fc1/weights": np.array([[0.5, -1.0, 2.0], [0.25, 0.0, -3.0]]), "fc1/bias": np.array([0.1, -0.2, 0.3])}
RATES = (0.1, 0.1, 0.03, 0.2, 0.05, 0.01)
"""The learning rate changes, so that two rules that differ only after a change give different results."""


def gradient_steps(seed: int = 0, steps: int = len(RATES)) -> list[dict[str, Array]]:
    rng = np.random.default_rng(seed)
    return [{name: rng.standard_normal(value.shape) for name, value in START.items()} for _ in range(steps)]


@dataclass
class Trainer:
    """Two variables, weights (with decay) and bias (without), and the update that ``optimizer`` adds for them."""

    optimizer: Optimizer
    dtype: str = "float64"
    graph: Graph = field(default_factory=Graph)

    def __post_init__(self) -> None:
        graph = self.graph
        self.variables = Variables(graph, seed=0)
        self.trained = [self._variable(name, value) for name, value in START.items()]
        self.gradients = [ops.placeholder(graph, v.spec.shape, self.dtype) for v in self.trained]
        self.rate = ops.placeholder(graph, self.optimizer.rate_shape, self.dtype, name="learning_rate")
        self.step = ops.placeholder(graph, (), "int64", name="step")
        with graph.absolute_scope("update"):
            self.targets = self.update(list(zip(self.trained, self.gradients, strict=True)))
        self.state: dict[Tensor, Array] = self._initial()

    def update(self, gradients: Sequence[tuple[Variable, Tensor]]) -> list[str]:
        """Clip the gradients as configured and add the update; return the assign nodes."""
        clipped = self.optimizer.clipped(self.graph, gradients)
        return self.optimizer.assign(self.variables, clipped, learning_rate=self.rate, step=self.step)

    def run(self, gradients: Sequence[dict[str, Array]], rates: Sequence[Any]) -> list[dict[str, Array]]:
        """Run one step for each pair of gradients and rate; return the trained variables after each step."""
        history = []
        assigns = [self.graph.nodes[target] for target in self.targets]
        for step, (by_name, rate) in enumerate(zip(gradients, rates, strict=True)):
            feeds = {
                **self.state,
                self.rate: np.asarray(rate, self.dtype),
                self.step: np.asarray(step, np.int64),
                **{
                    tensor: by_name[v.name].astype(self.dtype)
                    for v, tensor in zip(self.trained, self.gradients, strict=True)
                },
            }
            values = evaluate(self.graph, [assign.inputs[1] for assign in assigns], feeds)
            self.state.update((a.inputs[0], value) for a, value in zip(assigns, values, strict=True))
            history.append({v.name: self.state[v.tensor] for v in self.trained})
        return history

    def _variable(self, name: str, value: Array) -> Variable:
        layer = LayerStamp(name.split("/")[0], "dense")
        spec = TensorSpec(value.shape, self.dtype)
        return self.variables.get(name, spec, Constant(), trainable=True, decayed=name.endswith("weights"), layer=layer)

    def _initial(self) -> dict[Tensor, Array]:
        copies = [v for v in self.variables if v.source is not None]
        slots = [v for v in self.variables if not v.trainable and v not in copies]
        values = evaluate(self.graph, [self.graph.nodes[v.initial].inputs[1] for v in slots], {})
        state = {v.tensor: value for v, value in zip(slots, values, strict=True)}
        started = {v.tensor: START[v.name] for v in self.trained}
        started |= {v.tensor: START[v.name.rpartition("/")[0]] for v in copies}
        return {**state, **{tensor: value.astype(self.dtype) for tensor, value in started.items()}}


def assert_same_path(
    found: Sequence[dict[str, Array]], expected: Sequence[dict[str, Array]], tolerance: float = 1e-12
) -> None:
    """Compare every variable after every step with its expected value."""
    assert len(found) == len(expected)
    for step, (left, right) in enumerate(zip(found, expected, strict=True)):
        for name in START:
            message = f"{name} after step {step}"
            np.testing.assert_allclose(left[name], right[name], rtol=0, atol=tolerance, err_msg=message)
