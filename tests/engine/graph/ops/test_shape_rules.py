"""Nodes that break an op's rule are refused with the broken condition and the value that came."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from runner.engine.graph import ops
from runner.engine.graph.graph import Graph
from runner.engine.graph.op import ShapeError
from runner.engine.graph.tensor import Tensor
from runner.kernels.elementwise import parse


class Sketch:
    """A graph that adds placeholders by short calls."""

    def __init__(self) -> None:
        self.graph = Graph()

    def x(self, *shape: int, dtype: str = "float32") -> Tensor:
        return ops.placeholder(self.graph, shape, dtype, name="x")


CONSUMED = {
    "transpose_a": False,
    "transpose_b": False,
    "dtype": "float32",
    "program": "neg 0",
    "outputs": (1,),
    "product": 0,
}
"""Attributes of a product that is negated."""

REFUSALS: dict[str, tuple[Callable[[Sketch], object], str]] = {
    "two dtypes": (
        lambda s: ops.add(s.graph, s.x(2), s.x(2, dtype="float64")),
        r"node 'add': op 'add': expected inputs of one dtype, came float32\[2\], float64\[2\]",
    ),
    "integers in a float op": (
        lambda s: ops.exp(s.graph, s.x(2, dtype="int64")),
        r"op 'exp': expected input of dtype float32 or float64 or bfloat16, came int64\[2\]",
    ),
    "truth values in arithmetic": (
        lambda s: ops.neg(s.graph, s.x(2, dtype="bool")),
        r"op 'neg': expected input of dtype float32 or float64 or bfloat16 or int32 or int64, came bool\[2\]",
    ),
    "shapes that do not broadcast": (
        lambda s: ops.mul(s.graph, s.x(2, 3), s.x(2)),
        r"op 'mul': expected shapes that broadcast together, came \(2, 3\), \(2,\)",
    ),
    "a condition that is no truth value": (
        lambda s: ops.select(s.graph, s.x(2), s.x(2), s.x(2)),
        r"op 'select': expected a condition of dtype bool, came float32\[2\]",
    ),
    "relu gradients of two shapes": (
        lambda s: ops.relu_gradient(s.graph, s.x(2), s.x(3)),
        r"expected dy and y of one shape, came float32\[2\] and float32\[3\]",
    ),
    "softmax of a scalar": (
        lambda s: ops.softmax(s.graph, s.x()),
        r"op 'softmax': expected a last axis that is not empty, came float32\[\]",
    ),
    "a fill that does not fit": (
        lambda s: ops.fill(s.graph, 0.5, (2,), "int32"),
        r"op 'fill': expected a value that int32 can hold, came 0.5",
    ),
    "a negative extent": (
        lambda s: ops.placeholder(s.graph, (2, -1), "float32"),
        r"op 'placeholder': expected a shape without negative extents, came \(2, -1\)",
    ),
    "a constant with too few bytes": (
        lambda s: s.graph.add("constant", (), {"value": b"12", "shape": (1,), "dtype": "int32"}),
        r"op 'constant': expected 4 bytes for int32\[1\], came 2",
    ),
    "a sum of two shapes": (
        lambda s: ops.add_n(s.graph, [s.x(2), s.x(3)]),
        r"op 'add_n': expected inputs of one shape, came \[\(2,\), \(3,\)\]",
    ),
    "a sum of nothing": (
        lambda s: ops.add_n(s.graph, []),
        r"op 'add_n': expected at least one input, came none",
    ),
    "parts of two shapes": (
        lambda s: ops.all_reduce(s.graph, [s.x(2), s.x(3)], group="g", rank=0),
        r"op 'all_reduce': expected parts of one shape, came \[\(2,\), \(3,\)\]",
    ),
    "a worker that gives no part": (
        lambda s: ops.all_reduce(s.graph, [s.x(2), s.x(2)], group="g", rank=2),
        r"op 'all_reduce': expected a rank of 2 parts, from 0, came 2",
    ),
    "a device that is not in its group": (
        lambda s: ops.collective_sum(s.graph, s.x(2), group="g", rank=-1, size=2),
        r"op 'collective_sum': expected a rank of 2 parts, from 0, came -1",
    ),
    "an axis too far": (
        lambda s: ops.reduce_sum(s.graph, s.x(2, 3), [2]),
        r"op 'reduce_sum': expected rising axes within 0..1, came \(2,\)",
    ),
    "an axis twice": (
        lambda s: ops.reduce_max(s.graph, s.x(2, 3), [1, -1]),
        r"op 'reduce_max': expected rising axes within 0..1, came \(1, 1\)",
    ),
    "a mean of nothing": (
        lambda s: ops.reduce_mean(s.graph, s.x(0, 3), [0]),
        r"op 'reduce_mean': expected axes with at least one element, came float32\[0,3\]",
    ),
    "a broadcast to fewer axes": (
        lambda s: ops.broadcast_to(s.graph, s.x(2, 3), (3,)),
        r"op 'broadcast_to': expected an input that broadcasts to \(3,\), came float32\[2,3\]",
    ),
    "a broadcast of a wrong extent": (
        lambda s: ops.broadcast_to(s.graph, s.x(2, 3), (2, 4)),
        r"op 'broadcast_to': expected an input that broadcasts to \(2, 4\), came float32\[2,3\]",
    ),
    "a reshape to another size": (
        lambda s: ops.reshape(s.graph, s.x(2, 3), (4,)),
        r"op 'reshape': expected a shape for the 6 elements of float32\[2,3\], came \(4,\)",
    ),
    "no permutation": (
        lambda s: ops.transpose(s.graph, s.x(2, 3), (0, 0)),
        r"op 'transpose': expected a permutation of the 2 axes, came \(0, 0\)",
    ),
    "a concat of unlike shapes": (
        lambda s: ops.concat(s.graph, [s.x(2, 3), s.x(3, 3)], 1),
        r"op 'concat': expected shapes that agree off axis 1, came \[\(2, 3\), \(3, 3\)\]",
    ),
    "split sizes that do not add up": (
        lambda s: ops.split(s.graph, s.x(5), 0, [2, 2]),
        r"op 'split': expected sizes that add up to 5, came \(2, 2\)",
    ),
    "a slice outside": (
        lambda s: ops.slice(s.graph, s.x(4, 5), (1, 3), (3, 3)),
        r"op 'slice': expected a block inside float32\[4,5\], came begin \(1, 3\), size \(3, 3\)",
    ),
    "a slice of too few axes": (
        lambda s: ops.slice(s.graph, s.x(4, 5), (1,), (3,)),
        r"op 'slice': expected a block inside float32\[4,5\], came begin \(1,\), size \(3,\)",
    ),
    "negative padding": (
        lambda s: ops.pad(s.graph, s.x(2), (0,), (-1,)),
        r"op 'pad': expected two non-negative widths for each of the 1 axes, came low \(0,\), high \(-1,\)",
    ),
    "float indices": (
        lambda s: ops.gather(s.graph, s.x(4), s.x(2)),
        r"op 'gather': expected indices of dtype int32 or int64, came float32\[2\]",
    ),
    "updates that do not match": (
        lambda s: ops.scatter_add(s.graph, s.x(2, dtype="int64"), s.x(3, 4), rows=5),
        r"op 'scatter_add': expected updates for indices int64\[2\], came float32\[3,4\]",
    ),
    "one-hot truth values": (
        lambda s: ops.one_hot(s.graph, s.x(2, dtype="int64"), depth=3, dtype="bool"),
        r"op 'one_hot': expected a float dtype, came bool",
    ),
    "inner extents that differ": (
        lambda s: ops.matmul(s.graph, s.x(2, 3), s.x(2, 3)),
        r"op 'matmul': expected inner extents that agree, came float32\[2,3\] and float32\[2,3\] with",
    ),
    "a product of stacks": (
        lambda s: ops.matmul(s.graph, s.x(2, 3, 4), s.x(4, 5)),
        r"op 'matmul': expected a with 2 dimensions, came float32\[2,3,4\]",
    ),
    "channels that do not fit the filters": (
        lambda s: ops.conv2d(s.graph, s.x(1, 4, 5, 5), s.x(6, 3, 3, 3), groups=2),
        r"expected x with 6 channels for w float32\[6,3,3,3\] and 2 groups, came float32\[1,4,5,5\]",
    ),
    "outputs that do not divide into groups": (
        lambda s: ops.conv2d(s.graph, s.x(1, 4, 5, 5), s.x(5, 2, 3, 3), groups=2),
        r"op 'conv2d': expected outputs in 2 equal groups, came float32\[5,2,3,3\]",
    ),
    "an image smaller than the filter": (
        lambda s: ops.conv2d(s.graph, s.x(1, 1, 2, 2), s.x(1, 1, 3, 3)),
        r"expected an image that holds window \(3, 3\) with padding \(0, 0, 0, 0\), came float32\[1,1,2,2\]",
    ),
    "a stride of zero": (
        lambda s: ops.conv2d(s.graph, s.x(1, 1, 5, 5), s.x(1, 1, 3, 3), strides=(1, 0)),
        r"op 'conv2d': expected two positive strides, came \(1, 0\)",
    ),
    "padding of two numbers": (
        lambda s: ops.conv2d(s.graph, s.x(1, 1, 5, 5), s.x(1, 1, 3, 3), padding=(1, 1)),
        r"op 'conv2d': expected four non-negative paddings, came \(1, 1\)",
    ),
    "a dy that is not the output's": (
        lambda s: ops.conv2d_input_gradient(s.graph, s.x(1, 1, 4, 4), s.x(1, 1, 3, 3), input_shape=(1, 1, 5, 5)),
        r"expected dy of shape \(1, 1, 3, 3\) for x float32\[1,1,5,5\] and w float32\[1,1,3,3\]",
    ),
    "a weight gradient for other weights": (
        lambda s: ops.conv2d_weight_gradient(s.graph, s.x(1, 2, 3, 3), s.x(1, 1, 5, 5), weight_shape=(1, 1, 3, 3)),
        r"op 'conv2d_weight_gradient': expected dy of shape \(1, 1, 3, 3\)",
    ),
    "a window wholly inside the padding": (
        lambda s: ops.max_pool(s.graph, s.x(1, 1, 4, 4), window=(2, 2), strides=(2, 2), padding=(2, 0, 0, 0)),
        r"expected padding smaller than the window \(2, 2\) on every side, came \(2, 0, 0, 0\)",
    ),
    "a window outside the image": (
        lambda s: ops.avg_pool(s.graph, s.x(1, 1, 4, 4), window=(3, 2), strides=(2, 2), padding=(0, 0, 0, 2)),
        r"expected padding smaller than the window \(3, 2\) on every side, came \(0, 0, 0, 2\)",
    ),
    "positions of another pool": (
        lambda s: ops.max_pool_gather(
            s.graph, s.x(1, 1, 4, 4), s.x(1, 1, 2, 2, dtype="int64"), window=(2, 2), strides=(2, 2)
        ),
        r"op 'max_pool_gather': expected int32\[1,1,2,2\] for x float32\[1,1,4,4\], came int64\[1,1,2,2\]",
    ),
    "a normalisation of vectors": (
        lambda s: ops.batch_norm(s.graph, s.x(4), s.x(4), s.x(4), epsilon=1e-5),
        r"op 'batch_norm': expected x of shape \(N, C\) or \(N, C, H, W\), came float32\[4\]",
    ),
    "a scale of another size": (
        lambda s: ops.batch_norm(s.graph, s.x(4, 3), s.x(4), s.x(3), epsilon=1e-5),
        r"op 'batch_norm': expected one value per channel, float32\[3\], came float32\[4\]",
    ),
    "a deviation of another dtype": (
        lambda s: ops.batch_norm_inference(
            s.graph, s.x(4, 3), s.x(3), s.x(3), s.x(3), s.x(3, dtype="float64"), epsilon=1e-5
        ),
        r"op 'batch_norm_inference': expected one value per channel, float32\[3\], came float64\[3\]",
    ),
    "a mask of numbers": (
        lambda s: ops.batch_norm_relu_gradient(
            s.graph, s.x(4, 3), s.x(3), s.x(3), s.x(3), s.x(4, 3), s.x(4, 3), epsilon=1e-5
        ),
        r"op 'batch_norm_relu_gradient': expected a mask over x, bool\[4,3\], came float32\[4,3\]",
    ),
    "a bias per input channel": (
        lambda s: ops.conv2d_fused(s.graph, s.x(1, 2, 4, 4), s.x(3, 2, 1, 1), s.x(2)),
        r"op 'conv2d_fused': expected one bias per output channel, float32\[3\], came float32\[2\]",
    ),
    "a residual like the input": (
        lambda s: ops.conv2d_fused(s.graph, s.x(1, 2, 4, 4), s.x(3, 2, 1, 1), residual=s.x(1, 2, 4, 4)),
        r"op 'conv2d_fused': expected a residual like y, float32\[1,3,4,4\], came float32\[1,2,4,4\]",
    ),
    "a bias that is announced but missing": (
        lambda s: s.graph.add(
            "matmul_fused",
            [s.x(2, 3), s.x(3, 4)],
            {"transpose_a": False, "transpose_b": False, "bias": True, "relu": False, "dtype": "float32"},
        ),
        r"op 'matmul_fused': expected 3 inputs, came 2",
    ),
    "a bias per row": (
        lambda s: ops.matmul_fused(s.graph, s.x(2, 3), s.x(3, 4), s.x(2)),
        r"op 'matmul_fused': expected one bias per column, float32\[4\], came float32\[2\]",
    ),
    "a chain over two shapes": (
        lambda s: ops.elementwise(s.graph, [s.x(2), s.x(3), s.x()], parse("add 0 1; mul 3 2", 3, (4,))),
        r"op 'elementwise': expected inputs of one shape or of shape \(\), came \[\(2,\), \(3,\), \(\)\]",
    ),
    "a chain over integers": (
        lambda s: ops.elementwise(s.graph, [s.x(2, dtype="int64")], parse("neg 0", 1, (1,))),
        r"op 'elementwise': expected input of dtype float32 or float64 or bfloat16, came int64\[2\]",
    ),
    "an output of a chain that is a scalar": (
        lambda s: ops.elementwise(s.graph, [s.x(2), s.x()], parse("neg 1; mul 0 2", 2, (3, 2))),
        r"expected outputs computed from inputs of shape \(2,\), came outputs \(3, 2\) of 'neg 1; mul 0 2'",
    ),
    "a chain in no language": (
        lambda s: s.graph.add("elementwise", [s.x(2)], {"program": "log 0", "outputs": (1,)}),
        r"node 'elementwise': step 0 of an element-wise program: no 'log' of \(0,\)",
    ),
    "a consumed product of factors that do not fit": (
        lambda s: ops.matmul_elementwise(s.graph, s.x(4, 3), s.x(5, 2), [], parse("neg 0", 1, (1,)), product=0),
        r"op 'matmul_elementwise': expected inner extents that agree, came float32\[4,3\] and float32\[5,2\] with ",
    ),
    "a product outside the program's inputs": (
        lambda s: ops.matmul_elementwise(
            s.graph, s.x(3, 4), s.x(4, 2), [s.x(3, 2)], parse("sub 0 1", 2, (2,)), product=2
        ),
        r"op 'matmul_elementwise': expected the product among the program's 2 inputs, came product=2",
    ),
    "a consumed product before the program's inputs": (
        lambda s: ops.matmul_elementwise(s.graph, s.x(3, 4), s.x(4, 2), [], parse("neg 0", 1, (1,)), product=-1),
        r"op 'matmul_elementwise': expected the product among the program's 1 inputs, came product=-1",
    ),
    "an operand and a product of two shapes": (
        lambda s: ops.matmul_elementwise(
            s.graph, s.x(3, 4), s.x(4, 2), [s.x(2, 3)], parse("sub 0 1", 2, (2,)), product=1
        ),
        r"op 'matmul_elementwise': expected inputs of one shape or of shape \(\), came \[\(2, 3\), \(3, 2\)\]",
    ),
    "an operand and a product of two dtypes": (
        lambda s: ops.matmul_elementwise(
            s.graph, s.x(3, 4), s.x(4, 2), [s.x(3, 2, dtype="float64")], parse("sub 0 1", 2, (2,)), product=1
        ),
        r"op 'matmul_elementwise': expected inputs of one dtype, came float64\[3,2\], float32\[3,2\]",
    ),
    "an output of a consumed product that is a scalar": (
        lambda s: ops.matmul_elementwise(
            s.graph, s.x(3, 4), s.x(4, 2), [s.x()], parse("neg 0; mul 1 2", 2, (2,)), product=1
        ),
        r"op 'matmul_elementwise': expected outputs computed from inputs of shape \(3, 2\), came outputs \(2,\) of ",
    ),
    "a consumed product of one factor": (
        lambda s: s.graph.add("matmul_elementwise", [s.x(2, 2)], CONSUMED),
        r"op 'matmul_elementwise': expected at least 2 inputs, came 1",
    ),
    "a consumed product in double precision": (
        lambda s: s.graph.add("matmul_elementwise", [s.x(2, 2), s.x(2, 2)], {**CONSUMED, "dtype": "float64"}),
        r"op 'matmul_elementwise': expected a result of dtype float32 for float32\[2,2\], came float64",
    ),
    "an even window of channels": (
        lambda s: ops.channel_window_sum(s.graph, s.x(4, 3), size=4),
        r"op 'channel_window_sum': expected an odd positive size, came 4",
    ),
    "labels for another batch": (
        lambda s: ops.softmax_cross_entropy(s.graph, s.x(4, 3), s.x(3, dtype="int64")),
        r"expected one label per row of logits float32\[4,3\], came int64\[3\]",
    ),
    "labels for other probabilities": (
        lambda s: ops.softmax_cross_entropy_gradient(s.graph, s.x(4, 3), s.x(3, dtype="int64"), s.x(4)),
        r"expected one label per row of probabilities float32\[4,3\], came int64\[3\]",
    ),
    "the gradient of another loss": (
        lambda s: ops.softmax_cross_entropy_gradient(s.graph, s.x(4, 3), s.x(4, dtype="int64"), s.x(4, 1)),
        r"expected a gradient of the loss, float32\[4\], came float32\[4,1\]",
    ),
    "targets of another shape": (
        lambda s: ops.sigmoid_cross_entropy(s.graph, s.x(4), s.x(3)),
        r"op 'sigmoid_cross_entropy': expected targets like the logits, float32\[4\], came float32\[3\]",
    ),
    "a dropout of everything": (
        lambda s: ops.dropout_mask(
            s.graph,
            s.x(dtype="int64"),
            s.x(2, dtype="int64"),
            shape=(2, 3),
            dtype="float32",
            rate=1.0,
            seed=0,
            key="drop",
        ),
        r"op 'dropout_mask': expected a rate within \[0, 1\), came 1.0",
    ),
    "a mask with other rows": (
        lambda s: ops.dropout_mask(
            s.graph,
            s.x(dtype="int64"),
            s.x(2, dtype="int64"),
            shape=(3, 3),
            dtype="float32",
            rate=0.5,
            seed=0,
            key="drop",
        ),
        r"op 'dropout_mask': expected one index per row of float32\[3,3\], came int64\[2\]",
    ),
    "a mask of draws before the first": (
        lambda s: ops.dropout_mask(
            s.graph,
            s.x(dtype="int64"),
            s.x(2, dtype="int64"),
            shape=(2, 3),
            dtype="float32",
            rate=0.5,
            seed=0,
            key="drop",
            first=-1,
        ),
        r"op 'dropout_mask': expected a first draw from 0, came -1",
    ),
    "integer draws": (
        lambda s: ops.random_normal(s.graph, (2,), "int32", seed=0, key="w"),
        r"op 'random_normal': expected a float dtype, came int32\[2\]",
    ),
    "an assignment of another shape": (
        lambda s: ops.assign(s.graph, ops.variable(s.graph, (2,), "float32"), s.x(3)),
        r"op 'assign': expected a value like the variable, float32\[2\], came float32\[3\]",
    ),
}


@pytest.mark.parametrize(("build", "message"), REFUSALS.values(), ids=REFUSALS.keys())
def test_the_op_of_a_broken_rule_is_named(build: Callable[[Sketch], object], message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        build(Sketch())


def test_refused_node_does_not_change_the_graph() -> None:
    sketch = Sketch()
    x = sketch.x(2)
    with pytest.raises(ShapeError):
        ops.matmul(sketch.graph, x, x)
    assert list(sketch.graph.nodes) == ["x"]
