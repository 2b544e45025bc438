"""The checks of ``runner.testing`` accept correct code, and name the variable, the index and the values of a fault."""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest

from runner import nn
from runner.engine.compile.program import Program
from runner.engine.graph import OPS, Expr, NetworkBuilder, Tensor, ops
from runner.errors import ConfigError
from runner.kernels.functions import function_kernel
from runner.kernels.registry import REGISTRY
from runner.models import LeNet, Mlp, Model, ResNetCifar
from runner.optimizers import OPTIMIZERS, Adam, Lbfgs, Momentum, Optimizer
from runner.optimizers.base import NewValues, Rule, State
from runner.strategies import AsyncData, Hybrid, ModelParallel, Single, Strategy, SyncData, Workload
from runner.testing import check_equal, check_equals_single, check_finite_state, check_gradients
from tests.plugin_tables import restored_tables
from tests.strategies.networks import batch_normalised


@dataclass
class WrongGradient(Model):
    """A dense layer and an op whose gradient is wrong."""

    def forward(self, net: NetworkBuilder, x: Tensor, classes: int) -> Tensor:
        h = nn.dense(net, nn.flatten(net, x, name="flat"), classes, name="fc")
        return net.graph.add("wrong", [h])[0]


@pytest.fixture
def wrong():
    """Install an op: 3x with the gradient of 2x."""
    with restored_tables():
        REGISTRY.add(function_kernel("wrong", lambda x: 3 * x))
        OPS["wrong"] = replace(
            OPS["tanh"], name="wrong", gradient=lambda graph, node, dy: [ops.add(graph, dy[0], dy[0])]
        )
        yield


ACCEPTED: dict[str, Callable[[], None]] = {
    "mlp": lambda: check_gradients(Mlp(hidden=[7, 5])),
    "a network": lambda: check_gradients(batch_normalised),
    "convolutions": lambda: check_gradients(LeNet(filters=[2, 3], units=4), shape=(1, 8, 7), examples=2),
    "statistics": lambda: check_gradients(ResNetCifar(depth=8), shape=(2, 6, 5), entries=2),
    "an op": lambda: check_gradients("mul", [np.arange(3.0), np.array([[2.0], [0.5]], np.float32)]),
    "integers": lambda: check_gradients("gather", [np.arange(6.0).reshape(3, 2), [2, 0, 2]], attributes={}),
    "a scalar": lambda: check_gradients("tanh", [0.3]),
    "sync_data": lambda: check_equals_single(SyncData(workers=3), optimizer=Adam()),
    "model": lambda: check_equals_single(ModelParallel(workers=2), LeNet(filters=[2, 3], units=4), shape=(1, 8, 8)),
    "hybrid": lambda: check_equals_single(Hybrid(workers=2), batch_size=7),
    **{
        name: lambda schema=schema: check_finite_state(schema())
        for name, schema in OPTIMIZERS.items()
        if not schema.line_search
    },
}


@pytest.mark.parametrize("label", ACCEPTED)
def test_what_is_correct_is_accepted(label: str) -> None:
    ACCEPTED[label]()


@dataclass
class Overflowing(Optimizer):
    """An optimizer that divides by the square of the gradient."""

    power: int = 0

    def rule(self, learning_rate: Expr, step: Expr) -> Rule:
        def update(w: State, g: Expr) -> NewValues:
            s = w.slot("squares")
            return [(s, s + g * g * g * g if self.power else g / g), (w, w - learning_rate * g)]

        return update


@dataclass
class Larger(Strategy):
    """The strategy ``single`` with another learning rule."""

    def build(self, workload: Workload) -> Program:
        return Single().build(replace(workload, optimizer=Momentum(momentum=0.8)))


@dataclass
class OtherNames(Strategy):
    """The strategy ``single`` with another network."""

    def build(self, workload: Workload) -> Program:
        return Single().build(replace(workload, network=batch_normalised))


NUMBER = r"-?[\d.e+-]+"
REFUSED: dict[str, tuple[Callable[[], None], str]] = {
    "model": (
        lambda: check_gradients(WrongGradient()),
        rf"^gradient of fc/weights\[\d+, \d\]: found {NUMBER}, expected {NUMBER} within 1e-06 \(by finite diff",
    ),
    "op": (
        lambda: check_gradients("wrong", [np.ones((2, 1, 3))]),
        rf"^gradient of input/0\[\d, 0, \d\]: found {NUMBER}, expected {NUMBER} within",
    ),
    "strategy": (
        lambda: check_equals_single(AsyncData(workers=2)),
        rf"^fc1/weights\[0, 0\]: found {NUMBER}, expected {NUMBER} within 1e-10 \(\d+ of 288 values differ\)$",
    ),
    "rule": (lambda: check_equals_single(Larger()), r"^fc1/weights\[0, 0\]: found"),
    "names": (
        lambda: check_equals_single(OtherNames()),
        r"^fc1/weights: found no such variable, expected an array of shape \(36, 8\)$",
    ),
    "zero": (
        lambda: check_finite_state(Overflowing()),
        r"^Overflowing: layer/weights/squares\[0\] is nan after step 0 with zero gradients, of size 0; expected a",
    ),
    "huge": (
        lambda: check_finite_state(Overflowing(power=4)),
        r"squares\[\d\] is inf after step 0 with huge gradients, of size 1e\+15; expected a finite number$",
    ),
    "NaN": (lambda: check_equal({"a": np.array([1.0, np.nan])}, {"a": np.array([1.0, np.nan])}), r"^a\[1\]: found nan"),
    "shape": (
        lambda: check_equal({"a": np.ones(2)}, {"a": np.ones(3)}),
        r"^a: found an array of shape \(2,\), expected an array of shape \(3,\)$",
    ),
}


@pytest.mark.usefixtures("wrong")
@pytest.mark.parametrize("label", REFUSED)
def test_a_fault_is_named(label: str) -> None:
    check, message = REFUSED[label]
    with pytest.raises(AssertionError) as caught:
        check()
    assert re.search(message, str(caught.value)), caught.value


def test_the_found_gradient_is_the_wrong_one(wrong: None) -> None:
    with pytest.raises(AssertionError) as caught:
        check_gradients("wrong", [np.ones(1)])
    found, expected = map(float, re.findall(rf"(?:found|expected) ({NUMBER})", str(caught.value)))
    assert found / expected == pytest.approx(2 / 3)


def test_a_line_search_is_refused() -> None:
    with pytest.raises(ConfigError, match="expected an optimizer without a line search"):
        check_finite_state(Lbfgs())
