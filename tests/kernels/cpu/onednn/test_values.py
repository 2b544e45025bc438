"""Values of oneDNN kernels: conversions, casts, accuracy of functions, NaN before a ReLU, masks of a ReLU, softmax.

``tests/kernels/cpu/test_table.py`` compares the other values with the float64 reference.
"""

import itertools
from typing import Any

import numpy as np
import pytest

from runner.kernels.contract import Array, Layout, Operand, plain
from runner.kernels.cpu.onednn.convert import _steps
from runner.kernels.cpu.onednn.linear import FEW_ROWS, LARGE, TRANSPOSED_ROWS
from runner.kernels.cpu.onednn.memory import BITS
from runner.kernels.memory import numpy_dtype
from tests.kernels.cpu.layout_cases import FUSED, LAYERS, PRODUCTS, convolved
from tests.kernels.cpu.onednn.checking import (
    IMAGE_TAGS,
    assert_broken_alike,
    assert_close,
    assert_padding_is_zero,
    check,
    floats,
    kernel,
    kernels,
    layout,
    library,
    normal,
)
from tests.kernels.cpu.onednn.test_layouts import EPSILON, NORMALISED
from tests.kernels.harness import Ran, Shaped, arranged, call_bound, converted, exact, filled, holding, run, run_node

has_bfloat16 = pytest.mark.skipif("bfloat16" not in library().dtypes, reason="oneDNN has no bfloat16 on this CPU")

WEIGHT_TAGS = ("", "ABcd16b16a", "ABcd16a16b", "Acdb16a", "Bcda16b", "abcd")
GROUPED_TAGS = ("", "g2:aBCde16c16b", "g2:aBCde16b16c", "g2:aBcde8b", "g2:abcde")
MATRIX_TAGS = ("", "AB16b16a", "BA16a16b", "ba")
TRANSPOSED_TAGS = ("", "t:AB16b16a", "t:BA16a16b", "t:ab", "t:ba")

PAIRS = [
    pytest.param(shape, before, after, id=f"{shape} {before or 'plain'} to {after or 'plain'}")
    for shape, tags in [
        ((2, 20, 3, 5), IMAGE_TAGS),
        ((3, 32, 1, 1), IMAGE_TAGS),
        ((20, 33, 3, 2), WEIGHT_TAGS),
        ((12, 33, 3, 2), GROUPED_TAGS),
        ((19, 33), MATRIX_TAGS),
        ((19, 33), TRANSPOSED_TAGS),
    ]
    for before, after in itertools.product(tags, repeat=2)
]


def _moved(op: str, operand: Operand, dtype: str, wanted: Layout | None) -> Operand:
    """Run "convert" or "cast" even if the tensor already has the layout ``wanted``; None keeps the tensor's layout."""
    result, attributes = Shaped(operand.spec.shape, dtype), {"dtype": dtype} if op == "cast" else {}
    offered = [operand.layout, *([wanted] if wanted else [])]
    arrangement = arranged(kernel(op), attributes, [operand.spec], [result], offered)
    assert [*arrangement.inputs, *arrangement.outputs][: len(offered)] == offered
    found = filled(result, arrangement.outputs[0])
    call_bound(kernel(op), attributes, arrangement, [operand], [found])
    assert_padding_is_zero(found)
    return found


def _there_and_back(array: Array, before: Layout, after: Layout) -> Array:
    """Convert an array into the first layout, then into the second, and then into plain memory."""
    operand = holding(array)
    for wanted in (before, after, plain(operand.spec)):
        operand = _moved("convert", operand, array.dtype.name, wanted)
    return operand.array


@pytest.mark.parametrize(("shape", "before", "after"), PAIRS)
def test_conversions_between_all_formats_keep_values(shape: tuple[int, ...], before: str, after: str) -> None:
    array = normal(1, *shape)
    spec = Shaped.of(array)
    np.testing.assert_array_equal(_there_and_back(array, layout(spec, before), layout(spec, after)), array)


@has_bfloat16
def test_layouts_that_have_no_fast_conversion_are_converted_by_way_of_c_order() -> None:
    array = normal(1, 48, 32, 1, 1).astype(numpy_dtype("bfloat16"))
    spec = Shaped.of(array)
    before, after = layout(spec, "AcdB16b48a2b"), layout(spec, "BcdA16a32b2a")
    assert [step[3] for step in _steps(library(), spec, before, spec, after)] == [plain(spec), after]
    np.testing.assert_array_equal(_there_and_back(array, before, after), array)


@pytest.mark.parametrize("dtype", ["int32", "bool", "uint8"])
@pytest.mark.parametrize("tag", ["", "aBcd16b", "acdb"])
def test_conversions_keep_integers_and_booleans(dtype: str, tag: str) -> None:
    array = np.random.default_rng(1).integers(0, 2, (2, 20, 3, 3)).astype(dtype)
    spec = Shaped.of(array)
    np.testing.assert_array_equal(_there_and_back(array, layout(spec, tag), layout(spec, "aBcd8b")), array)


@pytest.mark.parametrize("name", ["abcd", "aBcd16b"])
def test_positions_can_be_stored_as_bytes(name: str) -> None:
    array = np.arange(2 * 16 * 2 * 4, dtype=np.int32).reshape(2, 16, 2, 4)
    in_bytes = Layout(f"u8:{name}", array.size)
    np.testing.assert_array_equal(_there_and_back(array, plain(Shaped.of(array)), in_bytes), array)


@pytest.mark.parametrize("name", ["abcd", "aBcd8b", "acdb"])
@pytest.mark.parametrize("wanted", ["", "acdb"])
def test_booleans_can_be_stored_as_bits(name: str, wanted: str) -> None:
    values = np.random.default_rng(1).integers(0, 2, (2, 16, 3, 3)).astype(bool)
    spec = Shaped.of(values)
    as_bytes = converted(kernels(), holding(values), layout(spec, name))
    bits = filled(spec, Layout(f"bits:{name}", values.size // 8))
    bits.data[:] = np.packbits(as_bytes.data, bitorder="little")
    result = converted(kernels(), bits, layout(spec, wanted))
    np.testing.assert_array_equal(converted(kernels(), result, plain(spec)).array, values)


WEIGHTS = (20, 33, 3, 2)
NARROW_TAGS = ("", "ABcd8b16a2b", "acdb")
"""Layouts of bfloat16 weights. oneDNN requests the second layout, which stores input channels in pairs."""
CASTS = list(itertools.product(("", "ABcd16b16a", "Acdb16a"), NARROW_TAGS))


def _cast(array: Array, dtype: str, source: str, result: str | None) -> Array:
    """Cast an array from the layout ``source`` to the layout ``result``; None keeps the layout of the source."""
    operand = converted(kernels(), holding(array), layout(Shaped.of(array), source))
    wanted = None if result is None else layout(Shaped(array.shape, dtype), result)
    found = _moved("cast", operand, dtype, wanted)
    assert result is not None or found.layout == layout(found.spec, source)
    return converted(kernels(), found, plain(found.spec)).array


@has_bfloat16
@pytest.mark.parametrize(
    ("dtype", "source", "result"),
    [
        *(("bfloat16", wide, narrow) for wide, narrow in CASTS),
        *(("float32", narrow, wide) for wide, narrow in CASTS),
        *(("bfloat16", tag, None) for tag in ("", "ABcd16b16a", "acdb")),
    ],
)
def test_casts_round_to_nearest(dtype: str, source: str, result: str | None) -> None:
    array = normal(1, *WEIGHTS).astype("float32" if dtype == "bfloat16" else "bfloat16")
    np.testing.assert_array_equal(_cast(array, dtype, source, result), array.astype(dtype))


@has_bfloat16
def test_a_source_with_an_open_layout_is_treated_as_plain() -> None:
    x, y = Shaped((4, 6), "float32"), Shaped((4, 6), "bfloat16")
    arrangement = arranged(kernel("cast"), {"dtype": "bfloat16"}, [x], [y], [None])
    assert (arrangement.inputs, arrangement.outputs) == ((plain(x),), (plain(y),))


@has_bfloat16
def test_casts_of_ties_infinities_and_nan_equal_those_of_numpy() -> None:
    values = [1 + 2**-8, 1 + 3 * 2**-8, -(1 + 2**-8), np.inf, -np.inf, np.nan, 3.4e38, 0.0, -0.0]
    array = np.array(values, np.float32)
    came = _cast(array, "bfloat16", "", None)
    np.testing.assert_array_equal(came.astype(np.float32), array.astype("bfloat16").astype(np.float32))
    np.testing.assert_array_equal(np.signbit(came[-2:]), [False, True])


ACCURACY = 5e-7
"""Allowed relative deviation of functions of one variable from the float64 result."""

LEAST = float(np.exp(-86.6))
"""For results below this value, kernels may return zero."""

EXACT = {"exp": np.exp, "sigmoid": lambda x: 1 / (1 + np.exp(-x)), "tanh": np.tanh}


def _computed(op: str, x: Array) -> Array:
    return run_node(kernel(op), {}, [x]).outputs[0]


@pytest.mark.parametrize("op", EXACT)
def test_functions_are_accurate_also_at_their_limits(op: str) -> None:
    rng = np.random.default_rng(1)
    tiny = rng.choice([-1, 1], 20_000) * np.exp(rng.uniform(-60, 0, 20_000))
    x = np.concatenate([rng.uniform(-86.5, 88, 100_000), rng.uniform(-6, 6, 100_000), tiny]).astype(np.float32)
    np.testing.assert_allclose(_computed(op, x), EXACT[op](x.astype(np.float64)), rtol=ACCURACY)
    x = np.array([-np.inf, -3e38, -104, 104, 3e38, np.inf], np.float32)
    with np.errstate(over="ignore"):
        limits = EXACT[op](x.astype(np.float64)).astype(np.float32)
    np.testing.assert_allclose(_computed(op, x), limits, rtol=ACCURACY, atol=LEAST)
    assert not np.isfinite(_computed(op, np.array([np.nan] * 17, np.float32))).any()


def _layer(name: str) -> tuple[list[Array], dict[str, Any]]:
    """Return x, w, bias and residual of a layer, and its attributes."""
    x, w, geometry = LAYERS[name]
    y = convolved(x, w, geometry)
    arrays = [normal(1, *x), normal(2, *w), normal(3, w[0]), normal(4, *y)]
    return arrays, {**geometry, "bias": True, "residual": True, "relu": True}


@pytest.mark.parametrize("name", FUSED)
def test_nan_passes_the_relu_of_a_convolution(name: str) -> None:
    arrays, attributes = _layer(name)
    arrays[0][0, 0, 0, 0] = np.nan
    _assert_nan_passes("conv2d_fused", attributes, arrays)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("m", "k", "n"), [(7, 33, 17), (4, 131, 1001), (300, 131, 1001)])
def test_nan_passes_the_relu_of_a_product(m: int, k: int, n: int, bias: bool) -> None:
    arrays = [normal(1, m, k), normal(2, k, n), *[normal(3, n)] * bias]
    arrays[1][0, -1] = np.nan
    attributes = {"transpose_a": False, "transpose_b": False, "bias": bias, "relu": True, "dtype": "float32"}
    _assert_nan_passes("matmul_fused", attributes, arrays)


def _assert_nan_passes(op: str, attributes: dict[str, Any], arrays: list[Array]) -> None:
    ran = run_node(kernel(op), attributes, arrays, registry=kernels())
    assert_broken_alike(ran.outputs[0], exact(op, arrays, attributes)[0])


def test_the_table_has_products_on_both_sides_of_each_size_limit() -> None:
    small = [size for size in PRODUCTS if size[1] * size[2] < LARGE]
    wide = [size for size in PRODUCTS if size not in small]
    assert small
    one, few, below, within, above = (rows for rows, _, _ in wide)
    assert one < few == FEW_ROWS < below < TRANSPOSED_ROWS.start < within < TRANSPOSED_ROWS.stop < above


def test_softmax_of_large_logits_equals_the_reference() -> None:
    check("softmax", {}, [np.array([[0, 2000, 1999], [-1e30, 3e38, 0]], np.float32)])


SHAPE = (4, 20, 5, 6)


def _batch(shape: tuple[int, ...]) -> list[Array]:
    """Return x, with a mean away from zero, gamma and beta."""
    return [2 * normal(1, *shape) + 1, normal(2, shape[1]), 0.1 * normal(3, shape[1])]


def _with_relu(shape: tuple[int, ...], tag: str, arrays: list[Array] | None = None) -> Ran:
    vector = plain(floats(shape[1]))
    offered = [layout(floats(*shape), tag), vector, vector]
    with np.errstate(all="ignore"):  # as the executor does in every step
        return run_node(kernel("batch_norm_relu"), EPSILON, arrays or _batch(shape), offered, registry=kernels())


@pytest.mark.parametrize("broken", [0, 1, 2], ids=["x", "gamma", "beta"])
@pytest.mark.parametrize(("shape", "tag"), NORMALISED)
def test_nan_passes_the_relu_of_batch_normalization(shape: tuple[int, ...], tag: str, broken: int) -> None:
    arrays = _batch(shape)
    arrays[broken].flat[-1] = np.nan
    ran = _with_relu(shape, tag, arrays)
    assert np.isnan(ran.outputs[0]).all()
    assert np.isnan(exact("batch_norm_relu", arrays, EPSILON)[0])[:, -1].all()


@pytest.mark.parametrize(("shape", "tag"), NORMALISED)
def test_nan_from_a_mean_that_overflows_passes_the_relu(shape: tuple[int, ...], tag: str) -> None:
    arrays = _batch(shape)
    arrays[0][:, 0] = 3e38
    assert np.isnan(_with_relu(shape, tag, arrays).outputs[0][:, 0]).all()


def test_relu_of_infinity_is_not_nan() -> None:
    arrays = _batch(SHAPE)
    arrays[2][3] = np.inf
    y = _with_relu(SHAPE, "", arrays).outputs[0]
    assert np.isposinf(y[:, 3]).all()
    assert np.isfinite(y[:, :3]).all()


def _gradient(forward: Ran, mask: Layout | None = None, *, in_place: bool = False) -> Ran | None:
    """Run the gradient with x in the layout of the forward pass; None if the kernel refuses the layout of the mask."""
    _, mean, variance, positive = forward.outputs
    x, gamma, _ = _batch(positive.shape)
    arrays = [x, gamma, mean, variance, positive, normal(6, *x.shape)]
    image, kept = forward.arrangement.inputs[0], forward.outputs_in_memory[3]
    offered = [image, *[plain(floats(len(gamma)))] * 3, mask or kept.layout, image]
    op, inputs = "batch_norm_relu_gradient", [Shaped.of(array) for array in arrays]
    outputs = [inputs[0], inputs[1], inputs[1]]
    if kernel(op).arrange(EPSILON, inputs, outputs, offered) is None:
        return None
    values = [*arrays[:4], kept if mask is None else positive, arrays[5]]
    ran = run(kernel(op), EPSILON, inputs, outputs, values, offered, registry=kernels(), in_place=in_place)
    for came, wanted in zip(ran.outputs, exact(op, arrays, EPSILON), strict=True):
        assert_close(came, wanted)
    assert_padding_is_zero(ran.outputs_in_memory[0])
    return ran


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize(("shape", "tag"), NORMALISED)
def test_the_gradient_with_relu_equals_the_reference(shape: tuple[int, ...], tag: str, in_place: bool) -> None:
    forward = _with_relu(shape, tag)
    ran = _gradient(forward, in_place=in_place)
    assert ran is not None
    assert ran.arrangement.inputs[4] == forward.arrangement.outputs[3], "nothing is converted"
    assert ran.arrangement.inputs[0] == ran.arrangement.inputs[5] == forward.arrangement.inputs[0]


def test_a_plain_mask_is_refused_if_masks_are_bits_and_converted_if_masks_are_bytes() -> None:
    """oneDNN stores a mask as bits with AVX-512 and as bytes without it."""
    forward = _with_relu((2, 16, 3, 3), "aBcd16b")
    kept = forward.arrangement.outputs[3]
    ran = _gradient(forward, plain(forward.outputs_in_memory[3].spec))
    assert (ran is None) == kept.tag.startswith(BITS)
    assert ran is None or ran.arrangement.inputs[4] == kept
