"""Work of ops as functions of shapes."""

import pytest

from runner.engine.compile.cost import node_cost
from tests.engine.graph.ops.calls import built
from tests.op_cases import CASES, all_cases

PRODUCT, CONVOLUTION = 2 * 3 * 5 * 7, 2 * (2 * 8 * 4 * 4) * (4 * 3 * 3)
OUTPUT = 2 * 8 * 4 * 4
IMAGE, FILTERS, MAP = "f4[2, 4, 6, 6]", "f4[8, 4, 3, 3]", "f4[2, 8, 4, 4]"
GROUPED = "f4[8, 2, 3, 3]"


@pytest.mark.parametrize(
    ("call", "flops"),
    [
        ("matmul(f4[3, 5], f4[5, 7])", PRODUCT),
        ("matmul(f4[5, 3], f4[5, 7], transpose_a=True)", PRODUCT),
        ("matmul_fused(f4[3, 5], f4[5, 7], f4[7], bias=True, relu=True)", PRODUCT + 2 * 3 * 7),
        ("matmul_bias_gradient(f4[3, 5], f4[3, 7])", PRODUCT + 3 * 7),
        (f"conv2d({IMAGE}, {FILTERS})", CONVOLUTION),
        (f"conv2d({IMAGE}, {GROUPED}, groups=2)", CONVOLUTION // 2),
        (f"conv2d_input_gradient({MAP}, {GROUPED}, input_shape=(2, 4, 6, 6), groups=2)", CONVOLUTION // 2),
        (f"conv2d_weight_gradient({MAP}, {IMAGE}, weight_shape=(8, 2, 3, 3), groups=2)", CONVOLUTION // 2),
        (f"conv2d_fused({IMAGE}, {FILTERS})", CONVOLUTION),
        (
            f"conv2d_fused({IMAGE}, {FILTERS}, f4[8], {MAP}, bias=True, residual=True, relu=True)",
            CONVOLUTION + 3 * OUTPUT,
        ),
        (f"conv2d_weight_bias_gradient({MAP}, {IMAGE}, weight_shape=(8, 4, 3, 3))", CONVOLUTION + OUTPUT),
        ("elementwise(f4[4], f4[()], program='mul 0 1; add 2 #1.0; relu 3', outputs=(3, 4))", 3 * 4),
        (
            "matmul_elementwise(f4[3, 5], f4[3, 7], f4[5, 7], product=1, transpose_a=True,"
            " program='mul 1 #0.5; sub 0 2', outputs=(3,))",
            PRODUCT + 2 * 5 * 7,
        ),
        ("add_n(f4[4], f4[4], f4[4])", 8),
        ("placeholder(shape=(3,), dtype='float32')", 0),
        ("recv(key='k', source='', shape=(3,), dtype='float32')", 0),
    ],
)
def test_flops_are_a_function_of_shapes(call: str, flops: int) -> None:
    graph, node = built(call)
    assert node_cost(graph, node).flops == flops


def test_bytes_are_those_read_and_written() -> None:
    graph, node = built("matmul(f4[3, 5], f4[5, 7])")
    assert node_cost(graph, node).nbytes == 4 * (15 + 35 + 21)


def test_only_ops_that_move_data_are_free() -> None:
    work = dict.fromkeys(CASES, 0)
    for op, case, _ in all_cases():
        graph, _, node = case.build(op)
        work[op] = max(work[op], node_cost(graph, node).flops)
    moving = "identity convert stop_gradient fill constant cast truncate_to_bfloat16 broadcast_to reshape transpose"
    moving += " concat split slice pad gather one_hot"
    assert {op for op, flops in work.items() if flops == 0} == set(moving.split())
