"""Which plan is taken, how often it is made, and what an execution is told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import count

import pytest

from runner.kernels.gpu.cudnn.description import FORWARD, Convolution, Role
from runner.kernels.gpu.cudnn.library import WORKSPACE_LIMIT, CudnnLibrary
from tests.kernels.gpu.cudnn.fake_cudnn import Engine, FakeCudnn
from tests.kernels.gpu.emulation import EmulatedStream

CONVOLUTION = Convolution(FORWARD, "float32", (2, 3, 5, 5), (4, 3, 3, 3), (2, 4, 3, 3), (1, 1), (0, 0, 0, 0))


def library(cudnn: FakeCudnn, *, tf32: bool = False, card: Callable[[], int] = lambda: 0) -> CudnnLibrary:
    """A library of a fake cuDNN whose handles are "handle 0", "handle 1", ... in the order of their making."""
    numbers = count()
    return CudnnLibrary(cudnn, lambda: {"handle": f"handle {next(numbers)}"}, card, tf32=tf32)


@pytest.mark.parametrize(
    ("dtype", "tf32", "taken"),
    [("float32", False, "exact"), ("float32", True, "tensor cores"), ("bfloat16", False, "tensor cores")],
)
def test_the_first_plan_that_is_allowed_is_taken(dtype: str, tf32: bool, taken: str) -> None:
    engines = [
        Engine("different every time", ("NONDETERMINISTIC",)),
        Engine("sums in bfloat16", ("TENSOR_CORE", "REDUCED_PRECISION_REDUCTION")),
        Engine("cannot be built", fails=True),
        Engine("too large", workspace=WORKSPACE_LIMIT + 1),
        Engine("tensor cores", ("TENSOR_CORE",), WORKSPACE_LIMIT),
        Engine("rounds factors", ("DOWN_CONVERT_INPUTS",)),
        Engine("exact"),
    ]
    plan = library(FakeCudnn(engines), tf32=tf32).plan(replace(CONVOLUTION, dtype=dtype))
    assert plan is not None
    assert (plan.name, plan.workspace_bytes) == (taken, WORKSPACE_LIMIT if taken == "tensor cores" else 0)


@pytest.mark.parametrize("engines", [(), (Engine("no", fails=True),), (Engine("no", workspace=WORKSPACE_LIMIT + 1),)])
def test_there_may_be_no_plan(engines: tuple[Engine, ...]) -> None:
    assert library(FakeCudnn(engines)).plan(CONVOLUTION) is None


def test_a_plan_is_made_once_for_each_card() -> None:
    cudnn, cards = FakeCudnn([Engine("any")]), iter((0, 1, 0, 1))
    planner = library(cudnn, card=lambda: next(cards))
    plans = [planner.plan(replace(CONVOLUTION)) for _ in range(4)]
    assert plans[0] is plans[2]
    assert plans[1] is plans[3]
    assert [graph.target for graph in cudnn.graphs] == [{"handle": "handle 0"}, {"handle": "handle 1"}]


def test_that_there_is_no_plan_is_found_out_once() -> None:
    cudnn = FakeCudnn()
    planner = library(cudnn)
    assert [planner.plan(CONVOLUTION), planner.plan(CONVOLUTION)] == [None, None]
    assert len(cudnn.graphs) == 1


def test_an_execution_is_between_addresses_on_its_stream() -> None:
    cudnn = FakeCudnn([Engine("failing", fails=True), Engine("any")])
    plan = library(cudnn).plan(CONVOLUTION)
    assert plan is not None
    plan.enqueue(EmulatedStream(7), {Role.X: 0x100, Role.W: 0x200, Role.Y: 0x300}, 0x400)
    assert cudnn.streams == [("handle 0", 7)]
    assert cudnn.executed == [("any", {1: 0x100, 2: 0x200, 3: 0x300}, 0x400, "handle 0")]
