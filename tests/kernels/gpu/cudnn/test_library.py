"""The graph of a convolution in cuDNN, the choice of plans, their cache, and the arguments of an execution."""

import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import count
from types import SimpleNamespace

import pytest

from runner.kernels.gpu.cudnn.graphs import FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT, Convolution, Role, build
from runner.kernels.gpu.cudnn.library import COMPARED, COMPILED, WORKSPACE_LIMIT, Bench, CudnnLibrary, open_library
from runner.kernels.gpu.runtime import DeviceMemory, Stream
from tests.kernels.gpu.cudnn.fake_cudnn import Engine, FakeCudnn, FakeGraph, FakeTensor
from tests.kernels.gpu.emulation import EmulatedStream

UNEVEN = Convolution(FORWARD, "float32", (2, 3, 7, 6), (4, 3, 3, 2), (2, 4, 3, 8), (2, 1), (1, 2, 2, 3), (2, 1))
SHAPES = {
    Role.X: ([2, 3, 7, 6], [126, 1, 18, 3]),
    Role.W: ([4, 3, 3, 2], [18, 1, 6, 3]),
    Role.Y: ([2, 4, 3, 8], [96, 1, 32, 4]),
    Role.BIAS: ([1, 4, 1, 1], [4, 1, 4, 4]),
    Role.RESIDUAL: ([2, 4, 3, 8], [96, 1, 32, 4]),
}
"""Tensor -> (extents in cuDNN's order of axes, strides in memory with channels last)."""


def built(convolution: Convolution) -> FakeGraph:
    """Return the graph of a convolution."""
    graph: FakeGraph = build(FakeCudnn(), convolution, {"handle": "handle"})
    return graph


def roles(tensors: tuple[FakeTensor, ...]) -> list[Role]:
    """Return the roles of tensors."""
    return [Role(tensor.settings["uid"]) for tensor in tensors]


@pytest.mark.parametrize(
    ("kind", "op", "inputs"),
    [
        (FORWARD, "conv_fprop", [Role.X, Role.W]),
        (INPUT_GRADIENT, "conv_dgrad", [Role.Y, Role.W]),
        (WEIGHT_GRADIENT, "conv_wgrad", [Role.X, Role.Y]),
    ],
)
def test_each_kind_has_its_inputs_and_geometry(kind: str, op: str, inputs: list[Role]) -> None:
    convolution = replace(UNEVEN, kind=kind)
    graph = built(convolution)
    result = graph.tensors[-1].settings
    assert (result["made_by"][0], roles(result["made_by"][1:])) == (op, inputs)
    windows = {"pre_padding": [1, 2], "post_padding": [2, 3], "stride": [2, 1], "dilation": [2, 1]}
    assert result["geometry"] == windows
    assert (result["output"], result["uid"]) == (True, convolution.result)
    assert (graph.target, result["data_type"]) == ({"handle": "handle"}, "FLOAT")


@pytest.mark.parametrize(
    ("dtype", "dtypes"),
    [
        ("float32", ("FLOAT", "FLOAT", "FLOAT")),
        ("float64", ("DOUBLE", "DOUBLE", "DOUBLE")),
        ("bfloat16", ("BFLOAT16", "FLOAT", "FLOAT")),
    ],
)
def test_bfloat16_is_computed_in_float32(dtype: str, dtypes: tuple[str, ...]) -> None:
    graph = built(replace(UNEVEN, dtype=dtype))
    assert graph.dtypes == dtypes
    assert {tensor.settings["data_type"] for tensor in graph.tensors} == {dtypes[0]}


def test_every_tensor_has_its_channels_last() -> None:
    graph = built(replace(UNEVEN, bias=True, residual=True))
    found = {
        Role(each.settings["uid"]): (each.settings["dim"], each.settings["stride"])
        for each in graph.tensors
        if "uid" in each.settings
    }
    assert found == SHAPES


def test_bias_residual_and_relu_follow_in_this_order() -> None:
    relu = built(replace(UNEVEN, bias=True, residual=True, relu=True)).tensors[-1].settings
    op, sum_ = relu["made_by"]
    added, y, residual = sum_.settings["made_by"]
    inner, convolution, bias = y.settings["made_by"]
    assert (op, added, inner, convolution.settings["made_by"][0]) == ("relu", "add", "add", "conv_fprop")
    assert roles((residual, bias)) == [Role.RESIDUAL, Role.BIAS]


CONVOLUTION = Convolution(FORWARD, "float32", (2, 3, 5, 5), (4, 3, 3, 3), (2, 4, 3, 3), (1, 1), (0, 0, 0, 0))


def library(
    cudnn: FakeCudnn, *, tf32: bool = False, gpu: Callable[[], int] = lambda: 0, bench: Bench | None = None
) -> CudnnLibrary:
    """Return a library with a fake cuDNN whose handles are "handle 0", "handle 1", ... in order of creation."""
    numbers = count()
    return CudnnLibrary(cudnn, lambda: {"handle": f"handle {next(numbers)}"}, gpu, tf32=tf32, bench=bench)


@dataclass
class FakeBench:
    """A bench for plans whose names are numbers: it returns the name of the executed plan as the time in seconds."""

    cudnn: FakeCudnn
    allocated: list[int] = field(default_factory=list)

    def allocate(self, nbytes: int) -> DeviceMemory:
        self.allocated.append(nbytes)
        return DeviceMemory(256 * len(self.allocated), nbytes)

    def seconds(self, work: Callable[[Stream], None]) -> float:
        work(EmulatedStream(9))
        return float(self.cudnn.executed[-1][0])


@pytest.mark.parametrize(
    ("dtype", "tf32", "taken"),
    [("float32", False, "exact"), ("float32", True, "tensor cores"), ("bfloat16", False, "tensor cores")],
)
def test_the_first_allowed_plan_is_taken(dtype: str, tf32: bool, taken: str) -> None:
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


@pytest.mark.parametrize(
    "cudnn",
    [
        FakeCudnn(),
        FakeCudnn([Engine("no", fails=True)]),
        FakeCudnn([Engine("no", workspace=WORKSPACE_LIMIT + 1)]),
        *(FakeCudnn([Engine("any")], call) for call in ("validate", "build_operation_graph", "create_execution_plans")),
    ],
)
def test_the_absence_of_a_plan_is_cached(cudnn: FakeCudnn) -> None:
    planner = library(cudnn)
    assert [planner.plan(CONVOLUTION), planner.plan(CONVOLUTION)] == [None, None]
    assert len(cudnn.graphs) == 1


def test_a_plan_is_made_once_for_each_gpu() -> None:
    cudnn, gpus = FakeCudnn([Engine("any")]), iter((0, 1, 0, 1))
    planner = library(cudnn, gpu=lambda: next(gpus))
    plans = [planner.plan(replace(CONVOLUTION)) for _ in range(4)]
    assert plans[0] is plans[2]
    assert plans[1] is plans[3]
    assert [graph.target for graph in cudnn.graphs] == [{"handle": "handle 0"}, {"handle": "handle 1"}]


def test_an_execution_passes_addresses_and_stream() -> None:
    cudnn = FakeCudnn([Engine("failing", fails=True), Engine("any")])
    plan = library(cudnn).plan(CONVOLUTION)
    assert plan is not None
    plan.enqueue(EmulatedStream(7), {Role.X: 0x100, Role.W: 0x200, Role.Y: 0x300}, 0x400)
    assert cudnn.streams == [("handle 0", 7)]
    assert cudnn.executed == [("any", {1: 0x100, 2: 0x200, 3: 0x300}, 0x400, "handle 0")]


def test_the_fastest_of_the_compared_plans_is_taken() -> None:
    cudnn = FakeCudnn([Engine("3", workspace=10), Engine("1", workspace=20), Engine("2"), Engine("1")])
    bench = FakeBench(cudnn)
    plan = library(cudnn, bench=bench).plan(CONVOLUTION)
    assert plan is not None
    assert (plan.name, plan.number) == ("1", 1)
    assert bench.allocated == [4 * 2 * 3 * 5 * 5, 4 * 4 * 3 * 3 * 3, 4 * 2 * 4 * 3 * 3, 20]
    assert cudnn.executed[0] == ("3", {1: 256, 2: 512, 3: 768}, 1024, "handle 0")


def test_the_numbers_of_compared_and_of_compiled_plans_are_limited() -> None:
    compiled, ready = Engine("2", compiled=True), Engine("1")
    cudnn = FakeCudnn([compiled] * (COMPILED + 3) + [ready] * COMPARED)
    library(cudnn, bench=FakeBench(cudnn)).plan(CONVOLUTION)
    assert [each[0] for each in cudnn.executed] == ["2"] * COMPILED + ["1"] * (COMPARED - COMPILED)
    assert len(cudnn.graphs[0].built) == COMPARED


@pytest.mark.parametrize("engines", [(), (Engine("only"),)])
def test_a_single_plan_is_not_executed_for_comparison(engines: tuple[Engine, ...]) -> None:
    cudnn = FakeCudnn(engines)
    bench = FakeBench(cudnn)
    plan = library(cudnn, bench=bench).plan(CONVOLUTION)
    assert (plan is None) == (not engines)
    assert (cudnn.executed, bench.allocated) == ([], [])


def test_the_fastest_of_the_plans_that_fit_is_taken() -> None:
    """Another process may have chosen a plan with a smaller workspace, which limits the plans of this process."""
    cudnn = FakeCudnn([Engine("2", workspace=10), Engine("1", workspace=20), Engine("3")])
    plan = library(cudnn, bench=FakeBench(cudnn)).plan(CONVOLUTION, room=19)
    assert plan is not None
    assert plan.name == "2"


def test_a_cached_plan_is_not_returned_if_its_workspace_is_too_large() -> None:
    planner = library(FakeCudnn([Engine("any", workspace=20)]))
    assert planner.plan(CONVOLUTION) is not None
    assert planner.plan(CONVOLUTION, room=19) is None
    assert planner.plan(CONVOLUTION, room=20) is not None


def test_all_gpus_take_the_plan_that_was_the_fastest_on_the_first() -> None:
    cudnn, gpus = FakeCudnn([Engine("2"), Engine("1")]), iter((0, 1))
    planner = library(cudnn, bench=FakeBench(cudnn), gpu=lambda: next(gpus))
    plans = [planner.plan(CONVOLUTION) for _ in range(2)]
    assert [plan and plan.number for plan in plans] == [1, 1]
    assert len(cudnn.executed) == 2


def test_cudnn_is_opened_with_its_own_handles(monkeypatch: pytest.MonkeyPatch) -> None:
    front_end = SimpleNamespace(backend_version=lambda: 92800, create_handle=lambda: "handle")
    monkeypatch.setitem(sys.modules, "cudnn", front_end)
    found = open_library(lambda: 0, tf32=False)
    assert found is not None
    assert found._open_target() == {"handle": "handle"}
