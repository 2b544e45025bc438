"""Completeness of the table of ops: kernels, gradients, functions or decompositions, documentation, samples, costs."""

import inspect
import sys

import numpy as np
import pytest

from runner.engine.compile.cost import DISPATCH_S, node_cost, node_seconds
from runner.engine.graph import OPS, Device, ops
from runner.engine.graph.op import ByDecomposition, Cost, NotDifferentiable
from runner.engine.graph.ops.common import MADE_BY_PASSES
from runner.engine.run.kernel_table import load_kernels
from runner.engine.simulate.costs import node_seconds_of
from runner.engine.simulate.hardware import DeviceKind
from tests.engine.graph.ops.calls import built, with_decomposition
from tests.engine.running import CPU_0
from tests.op_cases import CASES, all_cases
from tests.samples import Case


def test_every_op_has_a_reference_kernel_and_samples() -> None:
    kernels = load_kernels()
    computed = {op for op, definition in OPS.items() if definition.executed_by == "kernel"}
    assert {op for op in computed if "cpu" not in kernels.device_types(op)} == set()
    assert computed <= {op for op, cases in CASES.items() if cases} <= OPS.keys()


def test_every_op_has_a_documented_function_or_a_decomposition() -> None:
    for op, definition in OPS.items():
        if definition.gradient is MADE_BY_PASSES:
            assert definition.decompose or definition.executed_by == "communicator"
            assert f"``{op}``: " in str(sys.modules[definition.infer.__module__].__doc__)
        else:
            assert inspect.isfunction(getattr(ops, op, None)), op
            assert getattr(ops, op).__doc__, op


def test_every_op_is_differentiable_to_second_order_or_has_a_reason_not_to_be() -> None:
    orders = {op: max(case.orders for case in cases) for op, cases in CASES.items()}
    shallow = {}
    for op, definition in OPS.items():
        if isinstance(definition.gradient, NotDifferentiable):
            assert definition.gradient.reason, op
        else:
            assert isinstance(definition.gradient, ByDecomposition) or callable(definition.gradient), op
            if orders.get(op, 2) < 2:
                shallow[op] = orders[op]
    assert shallow == {"sign": 1, "stop_gradient": 0}, "the derivative of sign is constant"


BY_PASSES = {op for op, definition in OPS.items() if definition.gradient == MADE_BY_PASSES and definition.decompose}
EXACT = {*BY_PASSES, "batch_norm_inference"}
"""Ops that replace other ops in a graph and must give equal results bit for bit."""

DECOMPOSED = [
    pytest.param(op, case, dtype, id=f"{label}-{dtype}")
    for op, case, label in all_cases()
    for dtype in ("float64", "float32")
    if OPS[op].decompose is not None and (dtype == "float64" or op in EXACT)
]


@pytest.mark.parametrize(("op", "case", "dtype"), DECOMPOSED)
def test_kernel_and_decomposition_agree(op: str, case: Case, dtype: str) -> None:
    graph, inputs, node = case.build(op, dtype)
    for seed in (3, 5):
        feeds = dict(zip(inputs, case.draw(seed, dtype), strict=True))
        for fused, composed in with_decomposition(graph, inputs, node, feeds):
            if op in EXACT:
                assert fused.tobytes() == composed.tobytes()
            else:
                np.testing.assert_allclose(fused, composed, rtol=1e-12, atol=1e-13)


PRODUCT, CONVOLUTION = 2 * 3 * 5 * 7, 2 * (2 * 8 * 4 * 4) * (4 * 3 * 3)
OUTPUT = 2 * 8 * 4 * 4
FUSED = CONVOLUTION + 3 * OUTPUT
IMAGE, FILTERS, MAP = "f4[2, 4, 6, 6]", "f4[8, 4, 3, 3]", "f4[2, 8, 4, 4]"
GROUPED = "f4[8, 2, 3, 3]"
CHAIN = "transpose_a=True, program='mul 1 #0.5; sub 0 2', outputs=(3,)"


@pytest.mark.parametrize(
    ("call", "flops"),
    [
        ("matmul(f4[3, 5], f4[5, 7])", PRODUCT),
        ("matmul(f4[5, 3], f4[5, 7], transpose_a=True)", PRODUCT),
        ("matmul_fused(f4[3, 5], f4[5, 7], f4[7], bias=True, relu=True)", PRODUCT + 2 * 3 * 7),
        ("matmul_bias_gradient(f4[3, 5], f4[3, 7])", PRODUCT + 3 * 7),
        (f"conv2d({IMAGE}, {FILTERS})", CONVOLUTION),
        (f"conv2d({IMAGE}, {GROUPED}, groups=2)", CONVOLUTION // 2),
        ("conv2d(f4[2, 4, 8, 6], f4[8, 4, 3, 3], dilations=(2, 1))", CONVOLUTION),
        (f"conv2d_input_gradient({MAP}, {GROUPED}, input_shape=(2, 4, 6, 6), groups=2)", CONVOLUTION // 2),
        (f"conv2d_weight_gradient({MAP}, {IMAGE}, weight_shape=(8, 2, 3, 3), groups=2)", CONVOLUTION // 2),
        (f"conv2d_fused({IMAGE}, {FILTERS})", CONVOLUTION),
        (f"conv2d_fused({IMAGE}, {FILTERS}, f4[8], {MAP}, bias=True, residual=True, relu=True)", FUSED),
        (f"conv2d_weight_bias_gradient({MAP}, {IMAGE}, weight_shape=(8, 4, 3, 3))", CONVOLUTION + OUTPUT),
        ("elementwise(f4[4], f4[()], program='mul 0 1; add 2 #1.0; relu 3', outputs=(3, 4))", 3 * 4),
        (f"matmul_elementwise(f4[3, 5], f4[3, 7], f4[5, 7], product=1, {CHAIN})", PRODUCT + 2 * 5 * 7),
        ("add_n(f4[4], f4[4], f4[4])", 8),
        ("placeholder(shape=(3,), dtype='float32')", 0),
        ("recv(key='k', source='', shape=(3,), dtype='float32')", 0),
    ],
)
def test_flops_are_a_function_of_shapes(call: str, flops: int) -> None:
    assert node_cost(*built(call)).flops == flops


def test_seconds_are_dispatch_plus_the_maximum_of_arithmetic_and_memory() -> None:
    product = built("matmul(f8[3, 4], f8[4, 5])")
    assert node_cost(*product) == Cost(flops=2 * 3 * 4 * 5, nbytes=8 * (12 + 20 + 15))
    arithmetic_bound = Device(CPU_0, flops_per_s=10.0, bytes_per_s=1e9)
    memory_bound = Device(CPU_0, flops_per_s=1e9, bytes_per_s=47.0)
    assert node_seconds(*product, arithmetic_bound) == DISPATCH_S + 12.0
    assert node_seconds(*product, memory_bound) == DISPATCH_S + 8.0
    for view in ("identity(f4[3])", "stop_gradient(f4[3])", "reshape(f4[2, 3], shape=(6,))"):
        described = node_seconds_of(lambda device: DeviceKind(1.0, 1.0))
        assert [seconds(*built(view), memory_bound) for seconds in (node_seconds, described)] == [0.0, 0.0]


def test_only_ops_that_move_data_have_no_flops() -> None:
    work = dict.fromkeys(CASES, 0)
    for op, case, _ in all_cases():
        graph, _, node = case.build(op)
        work[op] = max(work[op], node_cost(graph, node).flops)
    moving = "identity convert stop_gradient fill constant cast truncate_to_bfloat16 broadcast_to reshape transpose"
    moving += " concat split slice slice_gradient pad gather put_rows one_hot"
    assert {op for op, flops in work.items() if flops == 0} == set(moving.split())
