"""Kernels in machine code that work along rows: cross-entropies of few classes, and sums of rows or whole arrays."""

import cffi
import numpy as np
import pytest

from runner.engine.graph import Graph, ops
from runner.engine.run.kernel_table import load_kernels
from runner.errors import RunnerError
from runner.kernels.contract import Array, Buffers, Kernel, NativeCall, plain
from runner.kernels.cpu.dispatch import SIGNATURE
from runner.kernels.memory import allocate
from tests.engine.compile.passes.graph_text import assert_same_bits
from tests.engine.running import CPU_0, Bench
from tests.kernels.cpu.onednn.checking import assert_close
from tests.kernels.harness import Shaped, arranged, exact, filled, holding, reference, run_node

LOSS, GRADIENT = "softmax_cross_entropy", "softmax_cross_entropy_gradient"
SHAPES = [(1, 1), (1, 10), (32, 10), (7, 3), (2, 1000), (3, 8), (2, 17)]
ROUNDING = 2e-6
"""Relative tolerance: rounding the difference of two logits changes its exponential by this relative error."""


def kernel(op: str) -> Kernel:
    return load_kernels().find(op, "cpu", "llvm")


def logits_of(shape: tuple[int, int]) -> Array:
    return 4 * np.random.default_rng(1).standard_normal(shape).astype(np.float32)


def labels_of(shape: tuple[int, int], dtype: str) -> Array:
    return np.random.default_rng(2).integers(0, shape[1], shape[0]).astype(dtype)


@pytest.fixture(params=["llvm", "onednn"])
def library(request: pytest.FixtureRequest) -> str:
    """Return the name of a library with a kernel of the cross-entropy."""
    return str(request.param)


def losses(library: str, logits: Array, labels: Array) -> list[Array]:
    """Return losses and probabilities."""
    with np.errstate(all="ignore"):  # as the executor does in every step
        return run_node(load_kernels().find(LOSS, "cpu", library), {}, [logits, labels]).outputs


@pytest.mark.parametrize("label_dtype", ["int32", "int64"])
@pytest.mark.parametrize("shape", SHAPES)
def test_loss_and_probabilities_equal_the_reference(library: str, shape: tuple[int, int], label_dtype: str) -> None:
    logits, labels = logits_of(shape), labels_of(shape, label_dtype)
    labels[0], labels[-1] = 0, shape[1] - 1
    for came, expected in zip(losses(library, logits, labels), exact(LOSS, [logits, labels]), strict=True):
        assert_close(came, expected, ROUNDING)


def test_large_logits_do_not_overflow(library: str) -> None:
    logits = np.array([[0, 2000, 1999], [0, 2000, 0], [-3e38, 0, 0], [1e30, 1e30, 0]], np.float32)
    loss, probabilities = losses(library, logits, np.array([0, 1, 1, 2]))
    np.testing.assert_allclose(loss, [2000 + np.log1p(np.exp(-1)), 0, np.log(2), 1e30], rtol=1e-6)
    np.testing.assert_allclose(probabilities[1:], [[0, 1, 0], [0, 0.5, 0.5], [0.5, 0.5, 0]], rtol=1e-6)


def test_the_loss_of_a_certain_prediction_is_small_but_not_zero(library: str) -> None:
    loss, _ = losses(library, np.array([[0, 8], [0, 12], [0, 30]], np.float32), np.array([1, 1, 1]))
    # oneDNN rounds probabilities near 1, and therefore these losses, to multiples of 6e-8.
    tolerance = {"llvm": {"rtol": 3e-3}, "onednn": {"rtol": 0, "atol": 1.2e-7}}[library]
    np.testing.assert_allclose(loss, np.log1p(np.exp([-8.0, -12.0, -30.0])), **tolerance)


@pytest.mark.parametrize("broken", [np.nan, np.inf])
@pytest.mark.parametrize("place", [0, 3, 9])
def test_a_logit_that_is_not_finite_gives_a_nan_loss(library: str, broken: float, place: int) -> None:
    logits = np.zeros((2, 10), np.float32)
    logits[1, place] = broken
    loss, _ = losses(library, logits, np.array([0, 0]))
    np.testing.assert_array_equal(np.isnan(loss), [False, True])


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("label_dtype", ["int32", "int64"])
@pytest.mark.parametrize("shape", [*SHAPES, (100, 100)])
def test_the_gradient_has_the_bits_of_the_reference(shape: tuple[int, int], label_dtype: str, in_place: bool) -> None:
    dloss = np.random.default_rng(3).standard_normal(shape[0]).astype(np.float32)
    arrays = [logits_of(shape), labels_of(shape, label_dtype), dloss]
    ran = run_node(kernel(GRADIENT), {}, arrays, in_place=in_place)
    np.testing.assert_array_equal(ran.outputs[0], reference(GRADIENT, arrays)[0], strict=True)


@pytest.mark.parametrize("label_dtype", ["int32", "int64"])
@pytest.mark.parametrize("label", [-1, 3, 2**31 - 1])
@pytest.mark.parametrize("op", [LOSS, GRADIENT])
def test_a_label_out_of_range_has_a_status_and_a_message(op: str, label: int, label_dtype: str) -> None:
    logits, labels = logits_of((3, 3)), np.array([0, label, 1], label_dtype)
    arrays = [logits, labels] if op == LOSS else [logits, labels, np.ones(3, np.float32)]
    outputs = [Shaped((3,), "float32"), Shaped.of(logits)] if op == LOSS else [Shaped.of(logits)]
    made = kernel(op)
    inputs = tuple(holding(array) for array in arrays)
    arrangement = arranged(made, {}, [each.spec for each in inputs], outputs)
    there = tuple(filled(spec, layout) for spec, layout in zip(outputs, arrangement.outputs, strict=True))
    call = made.bind({}, arrangement, Buffers(inputs, there, allocate(0)))
    assert isinstance(call, NativeCall)
    assert call.explain is not None
    assert cffi.FFI().cast(SIGNATURE, call.function)(*call.arguments) == 1
    assert call.explain(1) == f"IndexError: op {op!r}: index {label} at [1] is outside 0..2"


@pytest.mark.parametrize("label", [10, -1])
@pytest.mark.parametrize(("batch", "check_finite"), [(2, False), (2, True), (1000, False)])
def test_the_message_of_a_wrong_label_is_the_same_for_all_kernels(batch: int, check_finite: bool, label: int) -> None:
    """The kernel of a batch of 2 is in machine code, that of a batch of 1000 is oneDNN's."""
    graph = Graph()
    logits = ops.placeholder(graph, (batch, 10), "float32", name="logits")
    labels = ops.placeholder(graph, (batch,), "int64", name="labels")
    loss, _ = ops.softmax_cross_entropy(graph, ops.neg(graph, logits), labels, name="loss")
    bench = Bench(graph, load_kernels(), [loss], check_finite=check_finite)
    classes = np.arange(batch) % 10
    classes[1] = label
    expected = (
        rf"^node 'loss' \(op '{LOSS}'\) on {CPU_0} failed in step 4: "
        rf"IndexError: op '{LOSS}': index {label} at \[1\] is outside 0\.\.9$"
    )
    with pytest.raises(RunnerError, match=expected):
        bench.run({logits: np.zeros((batch, 10), np.float32), labels: classes}, step=4)


@pytest.mark.parametrize("shape", [(3, 1000), (1, 2049)])
def test_too_many_classes_are_refused(shape: tuple[int, int]) -> None:
    logits, labels = Shaped(shape, "float32"), Shaped(shape[:1], "int64")
    assert kernel(LOSS).arrange({}, [logits, labels], [Shaped(shape[:1], "float32"), logits], [None, None]) is None


CASES = [
    ((), (), ()),
    ((1,), (0,), ()),
    ((7,), (0,), ()),
    ((8,), (0,), ()),
    ((1000,), (0,), ()),
    ((3, 5, 7), (0, 1, 2), ()),
    ((3, 5, 17), (2,), (3, 5)),
    ((3, 5, 17), (1, 2), (3,)),
    ((3, 5), (), (3, 5)),
    ((0,), (0,), ()),
    ((3, 0), (1,), (3,)),
    ((65536,), (0,), ()),
]


def total(x: Array, axes: tuple[int, ...], op: str = "reduce_sum") -> Array:
    return run_node(kernel(op), {"axes": axes, "keepdims": False}, [x]).outputs[0]


@pytest.mark.parametrize(("shape", "axes", "result"), CASES)
def test_sums_equal_those_in_float64(shape: tuple[int, ...], axes: tuple[int, ...], result: tuple[int, ...]) -> None:
    x = np.random.default_rng(1).uniform(0.5, 1.5, shape).astype(np.float32)
    np.testing.assert_allclose(total(x, axes), x.astype(np.float64).sum(axis=axes), rtol=1e-7)


@pytest.mark.parametrize("shape", [(0, 3), (1, 2), (2, 3), (5, 7), (33, 16), (2, 67), (3, 4, 5), (40, 5000)])
def test_sums_over_the_first_axis_have_the_bits_of_numpy(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(4)
    x = (rng.standard_normal(shape) * 10.0 ** rng.integers(-8, 8, shape)).astype(np.float32)
    assert_same_bits(total(x, (0,)), x.sum(axis=0))
    zeros = np.full(shape, -0.0, np.float32)
    assert_same_bits(total(zeros, (0,)), zeros.sum(axis=0))


@pytest.mark.parametrize(
    "shape", [(65537,), (1, 70_000), (1000, 1001), (3, 5, 7, 1001), (256, 384, 3, 3), (2048, 1024), ((1 << 22) + 131,)]
)
def test_sums_over_all_axes_of_large_arrays_have_the_bits_of_numpy(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(4)
    x = (rng.standard_normal(shape) * 10.0 ** rng.integers(-8, 8, shape)).astype(np.float32)
    axes = tuple(range(x.ndim))
    assert_same_bits(total(x, axes), x.sum(axis=axes))
    assert_same_bits(total(x, axes, "sum_of_squares"), np.square(x).sum(axis=axes))
    zeros = np.full(shape, -0.0, np.float32)
    assert_same_bits(total(zeros, axes), zeros.sum(axis=axes))


@pytest.mark.parametrize("shape", [(), (7,), (1000,), (3, 5, 7), (256, 256)])
def test_sums_of_squares_of_small_arrays_have_the_bits_of_a_sum_of_rounded_squares(shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(5).standard_normal(shape).astype(np.float32)
    axes = tuple(range(x.ndim))
    assert_same_bits(total(x, axes, "sum_of_squares"), total(np.square(x), axes))


def test_a_sum_adds_vector_lanes_and_then_the_remaining_elements() -> None:
    # Large numbers cancel, so the result depends on the order of the additions in float64.
    rng = np.random.default_rng(2)
    large = rng.standard_normal(102) * 10.0 ** rng.integers(0, 20, 102)
    x = rng.permutation([*large, *-large, 1.0]).astype(np.float32)
    lanes = np.zeros(8)
    for vector in x[:200].reshape(25, 8):
        lanes += vector
    expected = 0.0
    for value in (*lanes, *x[200:]):
        expected += value
    assert total(x, (0,)) == np.float32(expected)
    assert np.float32(x.sum(dtype=np.float64)) != np.float32(expected)


@pytest.mark.parametrize("broken", [np.nan, np.inf])
@pytest.mark.parametrize("place", [0, 9, 18])
def test_nan_and_infinity_reach_the_sum(broken: float, place: int) -> None:
    x = np.zeros(19, np.float32)
    x[place] = broken
    np.testing.assert_array_equal(total(x, (0,)), np.float32(broken))


@pytest.mark.parametrize(
    ("shape", "axes", "dtype"),
    [
        ((3, 30_000), (1,), "float32"),
        ((257, 4), (0,), "float32"),
        ((1000, 1), (0,), "float32"),
        ((3, 4, 5), (0, 2), "float32"),
        ((3,), (0,), "int64"),
        ((3,), (0,), "float64"),
    ],
)
def test_unsupported_sums_are_refused(shape: tuple[int, ...], axes: tuple[int, ...], dtype: str) -> None:
    x = Shaped(shape, dtype)
    kept = tuple(extent for axis, extent in enumerate(shape) if axis not in axes)
    assert (
        kernel("reduce_sum").arrange({"axes": axes, "keepdims": False}, [x], [Shaped(kept, dtype)], [plain(x)]) is None
    )
