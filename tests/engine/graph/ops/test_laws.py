"""Laws of ops for every shape (adjoints, inverses, broadcasting), and their gradients against central differences."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import BroadcastableShapes, mutually_broadcastable_shapes

from runner.engine.graph import Graph, Tensor, TensorSpec, gradients, ops
from tests.engine.compile.passes.graph_text import Text
from tests.op_cases import all_cases
from tests.oracles import assert_gradients, evaluate
from tests.samples import Array, Case

Ints = tuple[int, ...]

FEW = settings(max_examples=40, deadline=None)


def _run(build: Callable[..., Tensor | Sequence[Tensor]], *arrays: Array, **options: Any) -> list[Array]:
    """Compute the tensors that ``build(graph, *inputs, **options)`` returns. The inputs have the values ``arrays``."""
    graph = Graph()
    inputs = [ops.placeholder(graph, array.shape, array.dtype.name) for array in arrays]
    built = build(graph, *inputs, **options)
    fetches = [built] if isinstance(built, Tensor) else list(built)
    return evaluate(graph, fetches, dict(zip(inputs, arrays, strict=True)))


def _normal(seed: int, *shapes: Sequence[int]) -> list[Array]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape) for shape in shapes]


def _assert_equal_products(pairs: Sequence[tuple[Array, Array]]) -> None:
    """Assert that the inner products of all pairs are equal."""
    products = [float(np.vdot(a, b)) for a, b in pairs]
    scale = 1 + max(float(np.abs(a * b).sum()) for a, b in pairs)
    assert max(products) - min(products) <= 1e-12 * scale, products


@FEW
@given(mutually_broadcastable_shapes(num_shapes=2, max_dims=4, max_side=4), st.integers(0, 99))
def test_unbroadcast_is_the_adjoint_of_broadcasting(shapes: BroadcastableShapes, seed: int) -> None:
    narrow, wide = shapes.input_shapes[0], shapes.result_shape
    x, g = _normal(seed, narrow, wide)
    (broadcast,) = _run(ops.broadcast_to, x, shape=wide)
    (summed,) = _run(ops.unbroadcast, g, shape=narrow)
    assert summed.shape == narrow
    _assert_equal_products([(broadcast, g), (x, summed)])


@FEW
@given(mutually_broadcastable_shapes(num_shapes=2, max_dims=4, max_side=4), st.integers(0, 99))
def test_binary_ops_broadcast_like_numpy(shapes: BroadcastableShapes, seed: int) -> None:
    a, b = _normal(seed, *shapes.input_shapes)
    (total,) = _run(ops.add, a, b)
    assert total.shape == shapes.result_shape
    np.testing.assert_array_equal(total, a + b)


@FEW
@given(st.lists(st.integers(0, 4), min_size=1, max_size=4), st.integers(0, 2), st.integers(0, 99))
def test_concat_undoes_split(sizes: list[int], axis: int, seed: int) -> None:
    shape = [2, 3, 2]
    shape[axis] = sum(sizes)
    (x,) = _normal(seed, shape)
    (back,) = _run(lambda graph, t: ops.concat(graph, ops.split(graph, t, axis, sizes), axis), x)
    np.testing.assert_array_equal(back, x)


@FEW
@given(st.lists(st.tuples(*[st.integers(0, 3)] * 3), min_size=1, max_size=3), st.integers(0, 99))
def test_slice_is_the_adjoint_and_inverse_of_pad(widths: list[tuple[int, int, int]], seed: int) -> None:
    low, inner, high = zip(*widths, strict=True)
    x, g = _normal(seed, inner, [sum(width) for width in widths])
    (padded,), (sliced,) = _run(ops.pad, x, low=low, high=high), _run(ops.slice, g, begin=low, size=inner)
    _assert_equal_products([(padded, g), (x, sliced)])
    (back,) = _run(lambda graph, t: ops.slice(graph, ops.pad(graph, t, low, high), low, inner), x)
    np.testing.assert_array_equal(back, x)


@FEW
@given(
    st.lists(st.tuples(st.integers(0, 6), st.integers(0, 3), st.sampled_from([-3, -1, 1, 2])), max_size=3),
    st.integers(1, 2),
)
def test_slice_selects_like_numpy_and_its_gradient_is_its_adjoint(axes: list[Ints], after: int) -> None:
    begin, size, steps = ([each[k] for each in axes] for k in range(3))
    ends = [first + (count - 1) * step for first, count, step in axes]
    assume(min(ends, default=0) >= 0)
    shape = [max(first, end) + after for first, end in zip(begin, ends, strict=True)]
    x, dy = _normal(0, shape, size)
    (y,) = _run(ops.slice, x, begin=begin, size=size, steps=steps)
    (dx,) = _run(ops.slice_gradient, dy, input_shape=shape, begin=begin, steps=steps)
    np.testing.assert_array_equal(y, x[np.ix_(*(first + step * np.arange(count) for first, count, step in axes))])
    _assert_equal_products([(y, dy), (x, dx)])


@FEW
@given(st.permutations(range(4)), st.integers(0, 99))
def test_permutation_and_its_inverse_cancel(perm: list[int], seed: int) -> None:
    (x,) = _normal(seed, (2, 3, 4, 5))
    inverse = np.argsort(perm).tolist()
    (back,) = _run(lambda graph, t: ops.transpose(graph, ops.transpose(graph, t, perm), inverse), x)
    np.testing.assert_array_equal(back, x)


@FEW
@given(st.integers(1, 5), st.lists(st.integers(0, 4), max_size=6), st.integers(0, 99))
def test_scatter_add_is_the_adjoint_of_gather(extra: int, indices: list[int], seed: int) -> None:
    params, g = _normal(seed, (5, extra), (len(indices), extra))
    chosen = np.array(indices, np.int64)
    (gathered,), (scattered,) = _run(ops.gather, params, chosen), _run(ops.scatter_add, chosen, g, rows=5)
    _assert_equal_products([(gathered, g), (params, scattered)])


_SMALL = st.integers(1, 3)
_PADDING = st.tuples(*[st.integers(0, 2)] * 4)


@FEW
@given(
    st.tuples(_SMALL, _SMALL, _SMALL, _SMALL),
    st.tuples(_SMALL, _SMALL),
    st.tuples(st.integers(1, 2), _SMALL),
    st.tuples(st.integers(5, 7), st.integers(4, 7)),
    _PADDING,
    st.integers(0, 99),
)
def test_gradients_of_convolution_are_its_adjoints(
    sizes: Ints, strides: Ints, dilations: Ints, image: Ints, padding: Ints, seed: int
) -> None:
    examples, groups, inputs, outputs = sizes
    x_shape = (examples, groups * inputs, *image)
    w_shape = (groups * outputs, inputs, 3, 2)
    geometry: dict[str, Any] = {"strides": strides, "padding": padding, "dilations": dilations, "groups": groups}
    x, w = _normal(seed, x_shape, w_shape)
    (y,) = _run(ops.conv2d, x, w, **geometry)
    (dy,) = _normal(seed + 1, y.shape)
    (dx,) = _run(ops.conv2d_input_gradient, dy, w, input_shape=x_shape, **geometry)
    (dw,) = _run(ops.conv2d_weight_gradient, dy, x, weight_shape=w_shape, **geometry)
    _assert_equal_products([(y, dy), (x, dx), (w, dw)])


@FEW
@given(st.tuples(_SMALL, _SMALL), st.tuples(_SMALL, _SMALL), _PADDING, st.booleans(), st.integers(0, 99))
def test_pool_gradients_are_adjoints_of_pools(
    window: Ints, strides: Ints, padding: Ints, count: bool, seed: int
) -> None:
    padding = tuple(min(p, window[i // 2] - 1) for i, p in enumerate(padding))
    geometry: dict[str, Any] = {"window": window, "strides": strides, "padding": padding}
    x, g = _normal(seed, (2, 2, 5, 4), (2, 2, 5, 4))
    y, argmax = _run(ops.max_pool, x, **geometry)
    (mean,) = _run(ops.avg_pool, x, count_padding=count, **geometry)
    (dy,) = _normal(seed + 1, y.shape)
    (gathered,) = _run(ops.max_pool_gather, g, argmax, **geometry)
    (scattered,) = _run(ops.max_pool_gradient, dy, argmax, input_shape=x.shape, **geometry)
    (mean_back,) = _run(ops.avg_pool_gradient, dy, input_shape=x.shape, count_padding=count, **geometry)
    _assert_equal_products([(gathered, dy), (g, scattered)])
    _assert_equal_products([(mean, dy), (x, mean_back)])
    (again,) = _run(ops.max_pool_gather, x, argmax, **geometry)
    np.testing.assert_array_equal(again, y)


@FEW
@given(st.integers(1, 8), st.sampled_from([1, 3, 5, 7]), st.integers(0, 99))
def test_channel_window_sum_is_its_own_adjoint(channels: int, size: int, seed: int) -> None:
    a, b = _normal(seed, (2, channels, 3), (2, channels, 3))
    (sum_of_a,), (sum_of_b,) = (_run(ops.channel_window_sum, each, size=size) for each in (a, b))
    _assert_equal_products([(sum_of_a, b), (a, sum_of_b)])


_DIFFERENTIABLE = [
    pytest.param(op, case, id=label)
    for op, case, label in all_cases()
    if case.orders > 0 and any(array.dtype == np.float64 for array in case.draw(seed=0))
]


@pytest.mark.parametrize(("op", "case"), _DIFFERENTIABLE)
def test_gradient_agrees_with_central_differences(op: str, case: Case) -> None:
    """Check the gradient of all float outputs together and, if there are several, of each output alone."""
    arrays = case.draw(seed=1)
    _, _, built = case.build(op)
    floats = [port for port, spec in enumerate(built.outputs) if spec.is_float]
    for ports in [floats] if len(floats) == 1 else [floats, *([port] for port in floats)]:
        graph, inputs, node = case.build(op)
        xs = [tensor for tensor in inputs if graph.spec(tensor).is_float]
        feeds = dict(zip(inputs, arrays, strict=True))
        assert_gradients(graph, [node[port] for port in ports], xs, feeds, np.random.default_rng(2), case.orders)


ONES = [1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("text", "x", "expected"),
    [
        # At a tie, the first of two equal operands receives the gradient, as does the first maximum in a window.
        ("b = fill(value=1.0, shape=(3,), dtype='float64'); y = maximum(x, b)", ONES, [1, 1, 1]),
        ("b = fill(value=1.0, shape=(3,), dtype='float64'); y = maximum(b, x)", ONES, [0, 0, 0]),
        ("b = fill(value=1.0, shape=(3,), dtype='float64'); y = minimum(x, b)", ONES, [1, 1, 1]),
        ("b = fill(value=1.0, shape=(3,), dtype='float64'); y = minimum(b, x)", ONES, [0, 0, 0]),
        ("y, argmax = max_pool(x, window=(2, 2), strides=(2, 2))", [[[[1.0, 1.0], [1.0, 1.0]]]], [1, 0, 0, 0]),
        # Equal maxima of reduce_max share the gradient.
        ("y = reduce_max(x, axes=(1,))", [[1.0, 5.0, 5.0], [3.0, 3.0, 3.0]], [0, 0.5, 0.5, 1 / 3, 1 / 3, 1 / 3]),
        # The derivative at a kink is zero.
        ("y = relu(x)", [0.0], [0]),
        ("y = abs(x)", [0.0], [0]),
        # stop_gradient treats its input as a constant; a cast to integers and back has no gradient.
        ("s = stop_gradient(x); y = mul(x, s)", [2.0, -3.0], [2.0, -3.0]),
        ("y = stop_gradient(x)", [1.0], None),
        ("y = sign(x)", [1.0], None),
        ("i = cast(x, dtype='int32'); y = cast(i, dtype='float64')", [1.0], None),
    ],
)
def test_gradient_at_ties_kinks_and_stop_gradient(text: str, x: list[float], expected: list[float] | None) -> None:
    parsed = Text.parse(f"x = input{np.shape(x)}; {text}", "float64")
    (dx,) = gradients(parsed.graph, parsed.names("y"), parsed.names("x"))
    if expected is None:
        assert dx is None
    else:
        assert dx is not None
        (found,) = evaluate(parsed.graph, [dx], {parsed.tensors["x"]: np.array(x)})
        np.testing.assert_allclose(found.ravel(), expected)


def test_gradient_of_a_cast_has_the_dtype_of_its_input() -> None:
    graph = Graph()
    x = ops.placeholder(graph, (2,), "float32")
    (dx,) = gradients(graph, [ops.cast(graph, x, "float64")], [x])
    assert dx is not None
    assert graph.spec(dx) == TensorSpec((2,), "float32")
    (value,) = evaluate(graph, [dx], {x: np.ones(2, np.float32)})
    assert value.tolist() == [1, 1]
