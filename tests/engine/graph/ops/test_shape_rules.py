"""Shape rules: the specs that builders and ops declare, and the errors for nodes that break a rule."""

import re
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from runner.engine.graph import OPS, Graph, ShapeError, Tensor, ops
from tests.engine.graph.ops.calls import built
from tests.oracles import evaluate

NUMBERS = "float32 or float64 or bfloat16 or int32 or int64"
NORM = "batch_norm_relu_gradient(f4[4, 3], f4[3], f4[3], f4[3]"
SUB = "transpose_a=False, program='sub 0 1', outputs=(2,)"
NEG = "program='neg 0', outputs=(1,)"
STEP = "i8[()], i8[2]"

REFUSALS = f"""
add(f4[2], f8[2]) -> inputs of one dtype, got float32[2], float64[2]
exp(i8[2]) -> input of dtype float32 or float64 or bfloat16, got int64[2]
neg(bool[2]) -> input of dtype {NUMBERS}, got bool[2]
mul(f4[2, 3], f4[2]) -> shapes that broadcast together, got (2, 3), (2,)
select(f4[2], f4[2], f4[2]) -> a condition of dtype bool, got float32[2]
relu_gradient(f4[2], f4[3]) -> dy and y of one shape, got float32[2] and float32[3]
softmax(f4[()]) -> a last axis that is not empty, got float32[]
fill(value=0.5, shape=(2,), dtype='int32') -> a value that int32 can hold, got 0.5
fill(value=2147483648.0, shape=(2,), dtype='int32') -> a value that int32 can hold, got 2147483648.0
fill(value=-1.0, shape=(2,), dtype='uint8') -> a value that uint8 can hold, got -1.0
placeholder(shape=(2, -1), dtype='float32') -> a shape without negative extents, got (2, -1)
constant(value=b'12', shape=(1,), dtype='int32') -> 4 bytes for int32[1], got 2
add_n(f4[2], f4[3]) -> inputs of one shape, got [(2,), (3,)]
add_n() -> at least one input, got none
all_reduce(f4[2], f4[3], rank=0) -> parts of one shape, got [(2,), (3,)]
all_reduce(f4[2], f4[2], rank=2) -> a rank from 0 to 1, got 2
collective_sum(f4[2], rank=-1, size=2) -> a rank from 0 to 1, got -1
reduce_sum(f4[2, 3], axes=(2,)) -> increasing axes within 0..1, got (2,)
reduce_max(f4[2, 3], axes=(1, 1)) -> increasing axes within 0..1, got (1, 1)
reduce_mean(f4[0, 3], axes=(0,)) -> axes with at least one element, got float32[0,3]
broadcast_to(f4[2, 3], shape=(3,)) -> an input that broadcasts to (3,), got float32[2,3]
broadcast_to(f4[2, 3], shape=(2, 4)) -> an input that broadcasts to (2, 4), got float32[2,3]
reshape(f4[2, 3], shape=(4,)) -> a shape for the 6 elements of float32[2,3], got (4,)
transpose(f4[2, 3], perm=(0, 0)) -> a permutation of the 2 axes, got (0, 0)
concat(f4[2, 3], f4[3, 3], axis=1) -> shapes that differ only on axis 1, got [(2, 3), (3, 3)]
concat(f4[2, 3], f4[2], axis=1) -> shapes that differ only on axis 1, got [(2, 3), (2,)]
split(f4[5], axis=0, sizes=(2, 2)) -> sizes that add up to 5, got (2, 2)
slice(f4[4, 5], begin=(1, 3), size=(3, 3), steps=(1, 1))
    -> a block inside float32[4,5], got begin (1, 3), size (3, 3), steps (1, 1)
slice(f4[4, 5], begin=(1,), size=(3,), steps=(1,))
    -> a block inside float32[4,5], got begin (1,), size (3,), steps (1,)
slice(f4[4], begin=(1,), size=(2,), steps=(3,)) -> a block inside float32[4], got begin (1,), size (2,), steps (3,)
slice(f4[4], begin=(1,), size=(3,), steps=(-1,)) -> a block inside float32[4], got begin (1,), size (3,), steps (-1,)
slice(f4[4], begin=(0,), size=(1,), steps=(0,)) -> a block inside float32[4], got begin (0,), size (1,), steps (0,)
slice_gradient(f4[2], input_shape=(4,), begin=(1,), steps=(3,))
    -> a block inside float32[4], got begin (1,), size (2,), steps (3,)
pad(f4[2], low=(0,), high=(-1,)) -> two non-negative widths for each of the 1 axes, got low (0,), high (-1,)
gather(f4[4], f4[2]) -> indices of dtype int32 or int64, got float32[2]
scatter_add(i8[2], f4[3, 4], rows=5) -> updates for indices int64[2], got float32[3,4]
one_hot(i8[2], depth=3, dtype='bool') -> a float dtype, got bool
matmul(f4[2, 3], f4[2, 3]) -> inner extents that agree, got float32[2,3] and float32[2,3] with
matmul(f4[2, 3, 4], f4[4, 5]) -> a with 2 dimensions, got float32[2,3,4]
conv2d(f4[1, 4, 5, 5], f4[6, 3, 3, 3], groups=2)
    -> x with 6 channels for w float32[6,3,3,3] and 2 groups, got float32[1,4,5,5]
conv2d(f4[1, 4, 5, 5], f4[5, 2, 3, 3], groups=2) -> outputs in 2 equal groups, got float32[5,2,3,3]
conv2d(f4[1, 1, 2, 2], f4[1, 1, 3, 3])
    -> an image that holds window (3, 3) with padding (0, 0, 0, 0), got float32[1,1,2,2]
conv2d(f4[1, 1, 5, 5], f4[1, 1, 3, 3], strides=(1, 0)) -> two positive strides, got (1, 0)
conv2d(f4[1, 1, 5, 5], f4[1, 1, 3, 3], padding=(1, 1)) -> four non-negative paddings, got (1, 1)
conv2d(f4[1, 1, 5, 5], f4[1, 1, 3, 3], dilations=(1, 0)) -> two positive dilations, got (1, 0)
conv2d(f4[1, 1, 5, 5], f4[1, 1, 3, 3], dilations=(1, 3))
    -> an image that holds window (3, 7) with padding (0, 0, 0, 0), got float32[1,1,5,5]
conv2d_input_gradient(f4[1, 1, 4, 4], f4[1, 1, 3, 3], input_shape=(1, 1, 5, 5))
    -> dy of shape (1, 1, 3, 3) for x float32[1,1,5,5] and w float32[1,1,3,3]
conv2d_weight_gradient(f4[1, 2, 3, 3], f4[1, 1, 5, 5], weight_shape=(1, 1, 3, 3)) -> dy of shape (1, 1, 3, 3)
max_pool(f4[1, 1, 4, 4], strides=(2, 2), padding=(2, 0, 0, 0))
    -> padding smaller than the window (2, 2) on every side, got (2, 0, 0, 0)
avg_pool(f4[1, 1, 4, 4], window=(3, 2), strides=(2, 2), padding=(0, 0, 0, 2))
    -> padding smaller than the window (3, 2) on every side, got (0, 0, 0, 2)
max_pool_gather(f4[1, 1, 4, 4], i8[1, 1, 2, 2], strides=(2, 2))
    -> int32[1,1,2,2] for x float32[1,1,4,4], got int64[1,1,2,2]
batch_norm(f4[4], f4[4], f4[4]) -> x of shape (N, C) or (N, C, H, W), got float32[4]
batch_norm(f4[4, 3], f4[4], f4[3]) -> one value per channel, float32[3], got float32[4]
batch_norm_inference(f4[4, 3], f4[3], f4[3], f4[3], f8[3]) -> one value per channel, float32[3], got float64[3]
{NORM}, f4[4, 3], f4[4, 3])
    -> a mask over x, bool[4,3], got float32[4,3]
conv2d_fused(f4[1, 2, 4, 4], f4[3, 2, 1, 1], f4[2], bias=True)
    -> one bias per output channel, float32[3], got float32[2]
conv2d_fused(f4[1, 2, 4, 4], f4[3, 2, 1, 1], f4[1, 2, 4, 4], residual=True)
    -> a residual like y, float32[1,3,4,4], got float32[1,2,4,4]
matmul_fused(f4[2, 3], f4[3, 4], bias=True) -> 3 inputs, got 2
matmul_fused(f4[2, 3], f4[3, 4], f4[2], bias=True) -> one bias per column, float32[4], got float32[2]
elementwise(f4[2], f4[3], f4[()], program='add 0 1; mul 3 2', outputs=(4,))
    -> inputs of one shape or of shape (), got [(2,), (3,), ()]
elementwise(i8[2], {NEG}) -> input of dtype float32 or float64 or bfloat16, got int64[2]
elementwise(f4[2], f4[()], program='neg 1; mul 0 2', outputs=(3, 2))
    -> outputs computed from inputs of shape (2,), got outputs (3, 2) of 'neg 1; mul 0 2'
matmul_elementwise(f4[4, 3], f4[5, 2], product=0, {NEG})
    -> inner extents that agree, got float32[4,3] and float32[5,2] with
matmul_elementwise(f4[3, 4], f4[4, 2], f4[3, 2], product=2, {SUB})
    -> the product among the program's 2 inputs, got product=2
matmul_elementwise(f4[3, 4], f4[4, 2], product=-1, {NEG})
    -> the product among the program's 1 inputs, got product=-1
matmul_elementwise(f4[3, 4], f4[4, 2], f4[2, 3], product=1, {SUB})
    -> inputs of one shape or of shape (), got [(2, 3), (3, 2)]
matmul_elementwise(f4[3, 4], f4[4, 2], f8[3, 2], product=1, {SUB})
    -> inputs of one dtype, got float64[3,2], float32[3,2]
matmul_elementwise(f4[3, 4], f4[4, 2], f4[()], product=1, program='neg 0; mul 1 2', outputs=(2,))
    -> outputs computed from inputs of shape (3, 2), got outputs (2,) of
matmul_elementwise(f4[2, 2], product=0, {NEG}) -> at least 2 inputs, got 1
matmul_elementwise(f4[2, 2], f4[2, 2], product=0, dtype='float64', {NEG})
    -> a result of dtype float32 for float32[2,2], got float64
channel_window_sum(f4[4, 3], size=4) -> an odd positive size, got 4
softmax_cross_entropy(f4[4, 3], i8[3]) -> one label per row of logits float32[4,3], got int64[3]
softmax_cross_entropy_gradient(f4[4, 3], i8[3], f4[4])
    -> one label per row of probabilities float32[4,3], got int64[3]
softmax_cross_entropy_gradient(f4[4, 3], i8[4], f4[4, 1]) -> a gradient of the loss, float32[4], got float32[4,1]
sigmoid_cross_entropy(f4[4], f4[3]) -> targets like the logits, float32[4], got float32[3]
dropout_mask({STEP}, shape=(2, 3), dtype='float32', rate=1.0) -> a rate within [0, 1), got 1.0
dropout_mask({STEP}, shape=(3, 3), dtype='float32') -> one index per row of float32[3,3], got int64[2]
dropout_mask({STEP}, shape=(2, 3), dtype='float32', first=-1) -> a first draw of 0 or more, got -1
random_normal(shape=(2,), dtype='int32') -> a float dtype, got int32[2]
assign(f4[2], f4[3]) -> a value like the variable, float32[2], got float32[3]
batch_norm(b2[4, 3], b2[3], b2[3]) -> one value per channel, float32[3], got bfloat16[3]
batch_norm_inference(b2[4, 3], f4[3], f4[3], b2[3], b2[3]) -> one value per channel, float32[3], got bfloat16[3]
batch_norm_gradient(b2[4, 3], f4[3], f4[3], f4[3], f4[4, 3]) -> dy like x, bfloat16[4,3], got float32[4,3]
matmul_bias_gradient(f4[4, 3], f4[4, 2], dtype='bfloat16')
    -> a result of dtype float32 for float32[3,2], got bfloat16
matmul_fused(b2[4, 3], b2[3, 2], dtype='float64')
    -> a result of dtype bfloat16 or float32 for bfloat16[4,2], got float64
conv2d_weight_gradient(b2[1, 2, 3, 3], b2[1, 1, 3, 3], weight_shape=(2, 1, 1, 1), dtype='float64')
    -> a result of dtype bfloat16 or float32 for bfloat16[1,2,3,3], got float64
truncate_to_bfloat16(f8[2]) -> input of dtype float32, got float64[2]
"""
"""Each row is a node as text (see ``built``), then the expected and the actual value that the error must name."""

ROWS = [tuple(row.split(" -> ")) for row in re.sub(r"\n +", " ", REFUSALS).strip().splitlines()]


@pytest.mark.parametrize(("call", "expected"), ROWS)
def test_error_names_the_node_the_op_and_the_broken_rule(call: str, expected: str) -> None:
    op = call.partition("(")[0]
    with pytest.raises(ShapeError) as caught:
        built(call)
    assert str(caught.value).startswith(f"node {op!r}: op {op!r}: expected {expected}")


def test_program_with_an_unknown_function_is_refused() -> None:
    with pytest.raises(ShapeError, match=r"node 'elementwise': step 0 of an element-wise program: no 'log' of \(0,\)"):
        built("elementwise(f4[2], program='log 0', outputs=(1,))")


def x_of(graph: Graph) -> Tensor:
    return ops.placeholder(graph, (2, 3, 4), "float32", name="x")


# Extents of -1, negative axes, reductions over all axes, and outputs whose specs are attributes of the node.
SPECS: list[tuple[Callable[[Graph, Tensor], Tensor | Sequence[Tensor]], str]] = [
    (lambda graph, x: ops.reshape(graph, x, (2, -1)), "float32[2,12]"),
    (lambda graph, x: ops.reduce_sum(graph, x, [-1, 0]), "float32[3]"),
    (lambda graph, x: ops.argmax(graph, x, -2), "int64[2,4]"),
    (lambda graph, x: ops.concat(graph, [x, x], -1), "float32[2,3,8]"),
    (lambda graph, x: ops.split(graph, x, -1, [1, 3]), "float32[2,3,1] float32[2,3,3]"),
    (lambda graph, x: ops.reduce_mean(graph, x), "float32[]"),
    (lambda graph, x: ops.reduce_mean(graph, x, keepdims=True), "float32[1,1,1]"),
    (lambda graph, x: ops.recv(graph, key="k", source="/task:1", shape=(2,), dtype="int32"), "int32[2]"),
    (lambda graph, x: graph.nodes[ops.send(graph, x, key="k", destination="/task:1")].tensors, ""),
]


@pytest.mark.parametrize(("build", "expected"), SPECS, ids=[expected or "send" for _, expected in SPECS])
def test_builders_return_tensors_of_the_expected_specs(
    build: Callable[[Graph, Tensor], Tensor | Sequence[Tensor]], expected: str
) -> None:
    graph = Graph()
    found = build(graph, x_of(graph))
    specs = [graph.spec(each) for each in ([found] if isinstance(found, Tensor) else found)]
    assert " ".join(map(str, specs)) == expected


@pytest.mark.parametrize("shape", [(5, -1), (-1, -1), (0, -1)])
def test_extent_of_minus_1_that_does_not_fit_is_refused(shape: tuple[int, ...]) -> None:
    graph = Graph()
    with pytest.raises(ShapeError, match=r"op 'reshape': expected a shape for (the )?24 elements"):
        ops.reshape(graph, x_of(graph), shape)


@pytest.mark.parametrize("array", [np.arange(6, dtype=">i4").reshape(2, 3).T, np.array(True), np.zeros((0, 2), "f4")])
def test_constant_holds_its_array(array: np.ndarray) -> None:
    graph = Graph()
    (value,) = evaluate(graph, [ops.constant(graph, array)], {})
    np.testing.assert_array_equal(value, array)


def test_constant_of_an_unsupported_dtype_is_refused() -> None:
    with pytest.raises(ShapeError, match=r"op 'constant': expected an array of dtype float32, .*, got float16"):
        ops.constant(Graph(), np.zeros(2, np.float16))


def test_dtype_of_numpy_is_stored_by_name() -> None:
    graph = Graph()
    x = ops.placeholder(graph, (2,), np.dtype("float64"))  # type: ignore[arg-type]
    assert type(graph.spec(x).dtype) is str


def test_assign_is_colocated_with_its_variable() -> None:
    graph = Graph()
    w = ops.variable(graph, (2, 3, 4), "float32", name="w")
    update = ops.assign(graph, w, x_of(graph))
    assert graph.nodes[update.node].colocate_with == ("w",)
    assert graph.spec(update) == graph.spec(w)


def test_only_the_listed_ops_are_stateful_or_have_no_kernels() -> None:
    by_executor = {"placeholder", "variable", "assign", "send", "recv"}
    assert {op for op, d in OPS.items() if d.executed_by == "executor"} == by_executor
    assert {op for op, d in OPS.items() if d.executed_by == "communicator"} == {"collective_sum"}
    assert {op for op, d in OPS.items() if d.stateful} == by_executor - {"placeholder"} | {"collective_sum"}
