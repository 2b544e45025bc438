"""Work of ops as functions of shapes."""

from __future__ import annotations

import pytest

from runner.engine.compile.cost import node_cost
from runner.engine.graph import ops
from runner.engine.graph.graph import Graph
from runner.engine.graph.op import OPS
from runner.engine.graph.tensor import Tensor
from runner.kernels.elementwise import parse
from tests.op_cases import CASES, all_cases


def _flops(graph: Graph, tensor: Tensor) -> int:
    return node_cost(graph, graph.nodes[tensor.node]).flops


def _x(graph: Graph, *shape: int) -> Tensor:
    return ops.placeholder(graph, shape, "float32")


@pytest.mark.parametrize("transpose_a", [False, True])
def test_a_matrix_product_costs_two_operations_per_term(transpose_a: bool) -> None:
    graph = Graph()
    a = _x(graph, 5, 3) if transpose_a else _x(graph, 3, 5)
    assert _flops(graph, ops.matmul(graph, a, _x(graph, 5, 7), transpose_a=transpose_a)) == 2 * 3 * 5 * 7


def test_a_convolution_costs_as_much_as_each_of_its_gradients() -> None:
    graph = Graph()
    x, w, dy = _x(graph, 2, 4, 6, 6), _x(graph, 8, 2, 3, 3), _x(graph, 2, 8, 4, 4)
    expected = 2 * (2 * 8 * 4 * 4) * (2 * 3 * 3)
    forward = ops.conv2d(graph, x, w, groups=2)
    assert graph.spec(forward) == graph.spec(dy)
    assert _flops(graph, forward) == expected
    assert _flops(graph, ops.conv2d_input_gradient(graph, dy, w, input_shape=(2, 4, 6, 6), groups=2)) == expected
    assert _flops(graph, ops.conv2d_weight_gradient(graph, dy, x, weight_shape=(8, 2, 3, 3), groups=2)) == expected


def test_fused_convolution_costs_one_operation_per_output_and_fused_op() -> None:
    graph = Graph()
    x, w, bias, y = _x(graph, 2, 4, 6, 6), _x(graph, 8, 4, 3, 3), _x(graph, 8), _x(graph, 2, 8, 4, 4)
    plain = _flops(graph, ops.conv2d(graph, x, w))
    assert _flops(graph, ops.conv2d_fused(graph, x, w)) == plain
    assert _flops(graph, ops.conv2d_fused(graph, x, w, bias, y, relu=True)) == plain + 3 * 2 * 8 * 4 * 4
    dw, _ = ops.conv2d_weight_bias_gradient(graph, y, x, weight_shape=(8, 4, 3, 3))
    assert _flops(graph, dw) == plain + 2 * 8 * 4 * 4


def test_fused_product_costs_one_operation_per_output_and_fused_op() -> None:
    graph = Graph()
    x, w, bias, dy = _x(graph, 3, 5), _x(graph, 5, 7), _x(graph, 7), _x(graph, 3, 7)
    assert _flops(graph, ops.matmul_fused(graph, x, w, bias, relu=True)) == 2 * 3 * 5 * 7 + 2 * 3 * 7
    dw, _ = ops.matmul_bias_gradient(graph, x, dy)
    assert _flops(graph, dw) == 2 * 3 * 5 * 7 + 3 * 7


def test_a_chain_costs_one_operation_per_step_and_element() -> None:
    graph = Graph()
    y, _ = ops.elementwise(graph, [_x(graph, 4), _x(graph)], parse("mul 0 1; add 2 #1.0; relu 3", 2, (3, 4)))
    assert _flops(graph, y) == 3 * 4


def test_product_in_a_chain_costs_product_plus_chain() -> None:
    graph = Graph()
    program = parse("mul 1 #0.5; sub 0 2", 2, (3,))
    x, dy, w = _x(graph, 3, 5), _x(graph, 3, 7), _x(graph, 5, 7)
    (y,) = ops.matmul_elementwise(graph, x, dy, [w], program, product=1, transpose_a=True)
    assert _flops(graph, y) == 2 * 3 * 5 * 7 + 2 * 5 * 7


def test_sum_of_n_costs_n_minus_one() -> None:
    graph = Graph()
    assert _flops(graph, ops.add_n(graph, [_x(graph, 4)] * 3)) == 8


def test_bytes_are_those_read_and_written() -> None:
    graph = Graph()
    y = ops.matmul(graph, _x(graph, 3, 5), _x(graph, 5, 7))
    assert node_cost(graph, graph.nodes[y.node]).nbytes == 4 * (15 + 35 + 21)


def test_only_ops_that_move_data_are_free() -> None:
    work = dict.fromkeys(CASES, 0)
    for op, case, _ in all_cases():
        graph, _, node = case.build(op)
        work[op] = max(work[op], node_cost(graph, node).flops)
    moving = {
        "identity",
        "convert",
        "stop_gradient",
        "fill",
        "constant",
        "cast",
        "truncate_to_bfloat16",
        "broadcast_to",
        "reshape",
        "transpose",
    }
    moving |= {"concat", "split", "slice", "pad", "gather", "one_hot"}
    assert {op for op, flops in work.items() if flops == 0} == moving


def test_executor_ops_cost_nothing() -> None:
    graph = Graph()
    x = _x(graph, 3)
    assert _flops(graph, x) == 0
    assert OPS["recv"].cost([], [graph.spec(x)], {}).flops == 0
