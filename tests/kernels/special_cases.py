"""Inputs on which kernels often fail: special values, ties, empty tensors, and sizes close to those of tiles and packs.

A GPU thread reads a pack of elements in one access. Gradients are checked only on the cases of ``tests/op_cases.py``.
"""

import itertools
import math
from collections import defaultdict
from typing import Any

import numpy as np

from runner.kernels.elementwise import FUNCTIONS
from tests.samples import (
    PRECISION,
    Case,
    Sample,
    Shape,
    booleans,
    but,
    few,
    integers,
    normal,
    numbered,
    pairs,
    positive,
    spread,
    values,
)

Attributes = dict[str, Any]

EDGES = (0.0, -0.0, math.inf, -math.inf, math.nan, 1.0, -1.0, 1e-40, 3e38)
FAR_OUT = (0.0, -0.0, math.inf, -math.inf, math.nan, 1000.0, -1000.0, 1e-30, -2.0)
COMPARISONS = ("greater", "greater_equal", "less", "equal")
INTEGERS = ("int32", "int64")
ONE_STEP: Attributes = {"strides": (1, 1), "padding": (0, 0, 0, 0), "dilations": (1, 1), "groups": 1}


SPECIAL: defaultdict[str, list[Case]] = defaultdict(list)


def add(op: str, attributes: Attributes, *inputs: Sample) -> None:
    SPECIAL[op].append(Case(inputs, attributes))


def _functions() -> None:
    """Add special values for each function of element-wise programs, integers that overflow, and broadcasts."""
    of_integers = {"add", "sub", "mul", "neg", "square", "abs", "maximum", "minimum"}
    for op, (count, _) in FUNCTIONS.items():
        add(op, {}, *pairs(EDGES)[:count])
        for dtype in INTEGERS if op in of_integers else ():
            limits = np.iinfo(dtype)
            add(op, {}, *pairs([0, 1, -1, limits.max, limits.min, 123456789], dtype)[:count])
    for count in (0, 1, 3, 4, 255, 1023, 40_001):
        add("sub", {}, normal(count), normal(count))
    for shapes in (
        ((2, 3, 4, 5), (1, 3, 1, 1)),
        ((2, 3, 4, 5), (5,)),
        ((2, 1, 4, 1), (3, 1, 5)),
        ((2, 3, 4, 5), (2, 3, 4, 5)),
        ((2, 3, 4, 5), ()),
        ((0, 3, 4, 5), (1, 3, 1, 1)),
        ((0, 1), (1, 5)),
        ((2, 1, 2, 1, 2, 1, 2, 1), (1, 3, 1, 3, 1, 3, 1, 3)),
        ((2,) * 10, (2, *(1,) * 9)),
        ((6, 7), (7,)),
    ):
        for one, other in (shapes, shapes[::-1]):
            add("sub", {}, normal(*one), normal(*other))


def _program(text: str, *outputs: int) -> Attributes:
    return {"program": text, "outputs": outputs}


LITERALS = (0.1, -1e-45, 3.4028235677973366e38, math.inf, -math.inf, -0.0)

BATCHES: tuple[Shape, ...] = (
    (65, 3, 8, 9),  # on GPUs: lines of 32 threads and several splits of the examples (see channels.cu)
    (3, 2, 40, 31),  # more pixels than threads
    (17, 5, 13, 11),  # channels last: a block of 8 channels, three of which do not exist
    (2, 70, 9, 8),  # several blocks of channels
    (300, 70),
)


def _normalization() -> None:
    epsilon = {"epsilon": 1e-3}
    vectors = {"batch_norm": 2, "batch_norm_relu": 2, "batch_norm_inference": 4}
    ops = ("batch_norm", "batch_norm_gradient", "batch_norm_inference", "batch_norm_relu", "batch_norm_relu_gradient")
    for op, shape in itertools.product(ops, (*BATCHES, (2, 3, 5, 4))):
        image = spread(*shape, scale=1.0, mean=3.0)
        if shape == (2, 3, 5, 4):
            image = but(image, nan=(0, 0))
        inputs = [image, *[positive(shape[1])] * vectors.get(op, 3)]
        inputs += [booleans(*shape)] * ("relu_gradient" in op) + [normal(*shape)] * ("gradient" in op)
        add(op, epsilon, *inputs)
    broken = [[1.0, np.nan], [2.0, 3.0]]
    add("batch_norm_relu", epsilon, values(broken), values([1.0, 1.0]), values([0.0, 0.0]))


def _responses() -> None:
    setting = {"alpha": 0.3, "beta": 0.75, "k": 2.0, "divide_by_size": True}
    op = "local_response_normalization"
    for shape, size in (
        ((2, 40, 7, 5), 5),
        ((3, 2, 5, 4), 9),
        ((70, 33), 3),
        ((2, 5, 3, 2, 4), 5),
        ((0, 4, 2, 2), 5),
        ((2, 0, 3, 3), 5),
    ):
        x, response = normal(*shape), {**setting, "size": size}
        add("channel_window_sum", {"size": size}, x)
        add(op, response, x)
        add(f"{op}_gradient", response, x, normal(*shape))


def _window(window: Shape, strides: Shape, padding: Shape) -> Attributes:
    return {"window": window, "strides": strides, "padding": padding}


def _pooling() -> None:
    """Add images of 16 channels, which kernels read in packs, images without elements, and non-finite values."""
    for x, y, geometry in (
        ((2, 16, 7, 8), (2, 16, 3, 4), _window((3, 3), (2, 2), (0, 1, 1, 0))),
        ((2, 16, 7, 8), (2, 16, 7, 3), _window((3, 2), (1, 3), (2, 0, 1, 1))),
        ((0, 4, 6, 6), (0, 4, 3, 3), _window((2, 2), (2, 2), (0, 0, 0, 0))),
        ((2, 0, 6, 6), (2, 0, 3, 3), _window((2, 2), (2, 2), (0, 0, 0, 0))),
    ):
        back, positions = {**geometry, "input_shape": x}, integers(math.prod(geometry["window"]), *y, dtype="int32")
        add("max_pool", geometry, few(*x))
        add("max_pool_gradient", back, few(*y), positions)
        add("max_pool_gather", geometry, few(*x), positions)
        for counted in (False, True):
            add("avg_pool", {**geometry, "count_padding": counted}, few(*x))
            add("avg_pool_gradient", {**back, "count_padding": counted}, few(*y))
    padded, halves = _window((2, 2), (2, 2), (1, 1, 1, 1)), _window((2, 2), (2, 2), (0, 0, 0, 0))
    lowest = values(np.full((1, 1, 4, 4), -np.inf))
    for place, number in itertools.product(range(4), (np.nan, -np.inf)):
        add("max_pool", padded, but(lowest, at=((0, 0, 1 + place // 2, 1 + place % 2), number)))
    zeros, infinite = np.zeros((1, 1, 2, 2), np.int32), values(np.full((1, 1, 2, 2), np.inf))
    add("max_pool_gradient", {**halves, "input_shape": (1, 1, 4, 4)}, infinite, values(zeros, "int32"))
    # Positions outside the image or the window gather nothing.
    outside = np.broadcast_to(np.array([-1, 7])[:, None, None], (1, 2, 3, 3))
    add("max_pool_gather", padded, few(1, 2, 4, 4), values(outside, "int32"))


def _random() -> None:
    stream = {"seed": 7, "key": "conv1/w", "dtype": PRECISION}
    shapes: tuple[Shape, ...] = ((), (0, 4), (1000,), (1001,), (2, 3, 4, 5))
    uniform, usual = {"low": -1.0, "high": 3.1, "part": ()}, {"mean": 1.0, "stddev": 0.1}
    masked: tuple[Shape, ...] = ((3, 5), (4,), (0, 4), (2, 0), (3, 2, 3, 3), (2, 515))
    step = values((1 << 33) + 4, "int64")
    for shape in shapes:
        add("random_uniform", {**stream, "shape": shape, **uniform})
        add("random_normal", {**stream, "shape": shape, **usual})
    for shape, first, rate in itertools.product(masked, (0, 3, 8), (0.4, 0.0, 0.999)):
        mask = {**stream, "shape": shape, "rate": rate, "first": first}
        add("dropout_mask", mask, step, integers(1 << 40, shape[0]))


def _reductions() -> None:
    axes_of_images = [(0, 2, 3), (1,), (0, 2), (2, 3), (), (0, 1, 2, 3), (1, 3)]
    long = [((9000,), (0,)), ((3000, 3), (0,)), ((3, 4100), (1,)), ((2, 40, 2000), (0, 2))]
    numbers = ([np.nan, 1, np.nan], [-np.inf] * 3, [2, np.inf, np.nan], [1, 5, 5])
    limits, over_rows = values([[-5, 2**30], [-7, 2**30], [-9, -3]], "int64"), {"axes": (0,), "keepdims": False}
    for op in ("reduce_sum", "sum_of_squares", "reduce_mean", "reduce_max"):
        for axes, keep in itertools.product(axes_of_images, (False, True)):
            add(op, {"axes": axes, "keepdims": keep}, normal(3, 5, 7, 4))
        for shape, axes in long:
            add(op, {"axes": axes, "keepdims": False}, normal(*shape))
    for each in numbers:
        add("reduce_max", over_rows, values(each))
        add("argmax", {"axis": 0}, values(each))
    for shape in ((0, 3), (3, 0), (0,)):
        add("reduce_sum", over_rows, normal(*shape))
    for op, attributes in (("reduce_sum", over_rows), ("reduce_max", over_rows), ("argmax", {"axis": 0})):
        add(op, attributes, limits)
        add(op, attributes, few(5, 4, dtype="int32"))
    for axis in range(4):
        add("argmax", {"axis": axis}, few(3, 11, 5, 4))
    widened: list[tuple[Shape, Shape]] = [
        ((2, 5, 1, 1), (2, 5, 3, 4)),
        ((1, 5, 3, 4), (2, 5, 3, 4)),
        ((), (2, 0)),
        ((5, 1, 1), (2, 5, 3, 4)),
    ]
    for shape, wide in widened:
        for sample in (normal(*shape), booleans(*shape), few(*shape, dtype="int64")):
            add("broadcast_to", {"shape": wide}, sample)


def _shapes() -> None:
    """Add rearrangements of images, of integers, and of empty tensors."""
    places = {"begin": (2, 0, 4, 1), "steps": (-1, 1, -2, 3)}
    images: list[tuple[str, list[Shape], Attributes]] = [
        ("reshape", [(2, 3, 4, 5)], {"shape": (2, 60)}),
        ("reshape", [(2, 8, 1, 1)], {"shape": (16,)}),
        ("transpose", [(2, 3, 4, 5)], {"perm": (3, 1, 0, 2)}),
        ("concat", [(2, 3, 4, 5), (2, 4, 4, 5), (2, 0, 4, 5)], {"axis": 1}),
        ("concat", [(2, 3, 1, 5), (2, 3, 4, 5)], {"axis": 2}),
        ("split", [(2, 8, 3, 3)], {"axis": 1, "sizes": (2, 4, 2)}),
        ("slice", [(3, 4, 5, 6)], {"begin": (1, 0, 2, 1), "size": (2, 4, 3, 4), "steps": (1,) * 4}),
        ("slice", [(3, 4, 5, 6)], {"size": (3, 4, 3, 2), **places}),
        ("slice_gradient", [(3, 4, 3, 2)], {"input_shape": (3, 4, 5, 6), **places}),
        ("pad", [(2, 3, 4, 2)], {"low": (0, 1, 2, 0), "high": (1, 0, 1, 1)}),
    ]
    empty: list[tuple[str, list[Shape], Attributes]] = [
        ("reshape", [(0, 3)], {"shape": (3, 0)}),
        ("transpose", [(0, 3)], {"perm": (1, 0)}),
        ("concat", [(0, 3), (0, 2)], {"axis": 1}),
        ("slice", [(4, 5)], {"begin": (1, 5), "size": (2, 0), "steps": (1, 1)}),
        ("slice", [(4, 5)], {"begin": (3, 0), "size": (2, 0), "steps": (-3, -1)}),
        ("slice_gradient", [(2, 0)], {"input_shape": (4, 5), "begin": (3, 0), "steps": (-3, -1)}),
        ("pad", [(0, 2)], {"low": (1, 0), "high": (1, 1)}),
        ("pad", [(0, 2)], {"low": (0, 0), "high": (0, 1)}),
    ]
    for op, shapes, attributes in images + empty:
        add(op, attributes, *(numbered(*shape) for shape in shapes))
    for op, shapes, attributes in images:
        add(op, attributes, *(numbered(*shape, dtype="uint8") for shape in shapes))


DTYPES = ("float32", "float64", "bfloat16", "int32", "int64", "uint8", "bool")
_BROKEN = (np.nan, np.inf, -np.inf, 1e30, -1e30, -(2.0**31), -(2.0**63), -0.5, 2.0**31, 2.0**63)
_BITS = np.array([0x7F800001, 0xFF80FFFF, 0x7FC00000, 0x7F800000, 0x3F80FFFF, 0x00000001], np.uint32)


def _casts() -> None:
    """Add casts between all dtypes, also of floats too large for integers, except casts to uint8 undefined in C."""
    numbers = (0, 1, 2.75, 200.5, 1.00390625, 3.14159265358979, 65537.0)
    pairs_of_dtypes = [
        *(("float32", dtype) for dtype in DTYPES),
        *((dtype, "float32") for dtype in DTYPES[1:]),
        *itertools.pairwise(DTYPES[1:]),
        ("bool", "float64"),
    ]
    for source, target in pairs_of_dtypes:
        safe = numbers[:4] if target == "uint8" and source not in ("uint8", "bool") else numbers
        add("cast", {"dtype": target}, values(safe, source))
    for source, target in itertools.product(("float32", "float64"), ("int32", "int64", "bool")):
        add("cast", {"dtype": target}, values(_BROKEN, source))


def _structure() -> None:
    fills = ((-0.0, "float32"), (0.1, "float64"), (0.1, "bfloat16"), (-3.0, "int64"), (math.nan, "float32"))
    for (number, dtype), shape in itertools.product((*fills, (1e60, "float32")), ((), (0, 3), (5, 301))):
        add("fill", {"value": number, "shape": shape, "dtype": dtype})
    add("truncate_to_bfloat16", {}, lambda rng: _BITS.view(np.float32))
    for op in ("identity", "convert", "stop_gradient", "relu"):
        add(op, {}, normal(2, 3, 4, 5))


def _rows() -> None:
    """Add losses, softmax, and rows selected by index."""
    zeros = values(np.zeros((2, 40)))
    for op in ("softmax", "log_softmax"):
        for shape in ((3, 1), (17, 10), (5, 37), (2, 1000), (1, 2051), (0, 4)):
            add(op, {}, spread(*shape))
        add(op, {}, but(zeros, nan=(0, 33)))
        for column in (0, 17, 39):
            add(op, {}, but(zeros, at=((1, column), 1000.0)))
    for rows, classes in ((19, 10), (3, 1000), (0, 3)):
        batch = (spread(rows, classes, scale=5.0), integers(classes, rows))
        add("softmax_cross_entropy", {}, *batch)
        add("softmax_cross_entropy_gradient", {}, *batch, normal(rows))
    logits = but(spread(2, 3, 4, 5), at=((0, 0, 0, slice(3)), (np.nan, 0, 200)))
    add("sigmoid_cross_entropy", {}, logits, positive(2, 3, 4, 5))
    for columns in (1, 3, 8):
        for sample in (normal(6, columns), *(few(6, columns, dtype=d) for d in ("uint8", "bool", "int64"))):
            add("gather", {}, sample, values([[5, 0], [5, 2]], "int64"))
    add("gather", {}, normal(4, 0), values([1, 3], "int64"))
    add("gather", {}, normal(4, 2), integers(4, 0))
    add("scatter_add", {"rows": 7}, integers(5, 300), spread(300, 3, scale=1000.0))
    add("scatter_add", {"rows": 7}, integers(5, 300), few(300, 3, dtype="int32"))
    add("scatter_add", {"rows": 3}, integers(3, 0), normal(0, 2))
    add("scatter_add", {"rows": 3}, values([1], "int64"), normal(1, 0))
    add("one_hot", {"depth": 3, "dtype": PRECISION}, integers(3, 0, dtype="int32"))


def _factors(m: int, k: int, n: int, a: bool, b: bool) -> tuple[Sample, Sample]:
    return normal(*((k, m) if a else (m, k))), normal(*((n, k) if b else (k, n)))


def _products() -> None:
    """Add products with full and partial tiles, with empty factors, with NaN before a ReLU, and with a large batch."""
    turns = list(itertools.product((False, True), repeat=2))
    extents = ((1, 1, 1), (65, 33, 70), (3, 100, 130), (64, 16, 64), (70, 40, 66), (0, 3, 2), (3, 0, 2), (3, 2, 0))
    for size, (a, b) in itertools.product(extents, turns):
        turned = {"transpose_a": a, "transpose_b": b}
        add("matmul", turned, *_factors(*size, a, b))
        if 0 in size and not a and not b:
            factors, result = _factors(*size, a, b), {**turned, "dtype": PRECISION}
            fused = {**result, "bias": True, "relu": True}
            add("matmul_fused", fused, *factors, normal(size[2]))
            add("matmul_elementwise", {**result, **_program("square 0", 1), "product": 0}, *factors)
    plainly = {"transpose_a": False, "transpose_b": False, "dtype": PRECISION}
    column, one = values([[np.nan], [-1.0]]), values([[1.0]])
    add("matmul_fused", {**plainly, "bias": False, "relu": True}, column, one)
    add("matmul_bias_gradient", {"dtype": PRECISION}, normal(1500, 3), normal(1500, 5))


def _convolutions() -> None:
    """Add convolutions with several or partial tiles, with windows larger than images, and without examples."""

    def weights(geometry: Attributes, x: Shape, w: Shape, y: Shape) -> None:
        inputs = [spread(*shape, scale=0.1) for shape in (y, x)]
        add("conv2d_weight_bias_gradient", {**geometry, "weight_shape": w, "dtype": PRECISION}, *inputs)

    many = {**ONE_STEP, "strides": (2, 1), "padding": (1, 2, 2, 1)}
    add("conv2d", many, spread(15, 10, 9, 8, scale=0.1), spread(70, 10, 3, 3, scale=0.1))
    weights(many, (15, 10, 9, 8), (70, 10, 3, 3), (15, 70, 5, 9))
    back = {**many, "input_shape": (2, 70, 9, 8)}
    add("conv2d_input_gradient", back, spread(2, 10, 5, 9, scale=0.1), spread(10, 70, 3, 3, scale=0.1))
    for x, w, y, padding in (
        ((0, 2, 4, 4), (3, 2, 3, 3), (0, 3, 2, 2), (0, 0, 0, 0)),
        ((2, 2, 1, 1), (3, 2, 3, 3), (2, 3, 1, 1), (1, 1, 1, 1)),
    ):
        geometry = {**ONE_STEP, "padding": padding}
        add("conv2d", geometry, normal(*x), normal(*w))
        add("conv2d_input_gradient", {**geometry, "input_shape": x}, normal(*y), normal(*w))
        weights(geometry, x, w, y)
    fused = {**ONE_STEP, "bias": False, "residual": False, "relu": True}
    add("conv2d_fused", fused, values([[[[np.nan, -1.0, 2.0]]]]), values([[[[1.0]]]]))


def _recurrent() -> None:
    """Add LSTMs whose units fill whole vectors, with blocks of rows of several sizes, and with saturated gates."""
    for steps, rows, units, scale in ((3, 13, 32, 1.0), (2, 1, 16, 1.0), (1, 7, 48, 40.0)):
        states = [normal(steps, rows, units)] * 3
        weights = spread(units, 4 * units, scale=0.1)
        gates = spread(steps, rows, 4 * units, scale=scale)
        add("lstm", {}, gates, weights, normal(rows, units), normal(rows, units))
        dh, dc, c = states
        add("lstm_gradient", {}, dh, dc, weights, normal(rows, units), c, spread(steps, rows, 4 * units, scale=0.5))


def _elements() -> None:
    """Add functions that element-wise programs cannot contain, comparisons, selection, and programs."""
    for op in ("exp", "log", "log1p", "sigmoid", "tanh", "sign"):
        add(op, {}, values(FAR_OUT))
    add("sign", {}, values([3, 0, -7], "int64"))
    for exponent in (0.0, 1.0, 2.0):
        add("pow", {"exponent": exponent}, values((0.0, -1.7, 3.0, np.inf, 1.1)))
    for op in COMPARISONS:
        add(op, {}, *pairs(EDGES))
    for dtype in ("bool", "uint8", "int32", "int64"):
        add("equal", {}, *pairs([0, 1], dtype))
        add("select", {}, booleans(37), *[few(37, dtype=dtype)] * 2)
    add("select", {}, booleans(37), *[few(37, dtype="float32")] * 2)
    add("select", {}, booleans(2, 3, 4, 5), normal(2, 3, 4, 5), normal(2, 3, 4, 5))
    add("elementwise", _program("mul 0 #0.9; sub 2 1; add 1 3", 3), normal(6, 7), normal(6, 7))
    literals = "; ".join(f"mul 0 #{number!r}" for number in LITERALS)
    add("elementwise", _program(literals, *range(1, 1 + len(LITERALS))), values((1.0, -3.0)))
    # A compiler that contracts a product and a sum would round once instead of twice.
    add("elementwise", _program("mul 0 0; sub 1 #0.333; mul 2 0; add 3 1", 4), normal(4096))


for _add_family in (
    *(_functions, _elements, _normalization, _responses, _pooling, _random, _reductions, _shapes, _casts, _structure),
    *(_rows, _products, _recurrent, _convolutions),
):
    _add_family()
