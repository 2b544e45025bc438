"""Inputs on which kernels often fail: special values, ties, empty tensors, sizes around a tile or a pack.

Only kernels are compared on them; ``tests/op_cases.py`` has the samples for which ops are differentiated too.
"""

import itertools
import math
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
ONE_STEP: Attributes = {"strides": (1, 1), "padding": (0, 0, 0, 0), "groups": 1}


def _functions() -> dict[str, list[Case]]:
    """Special values and integers that overflow, for each function of element-wise programs."""
    of_integers = {"add", "sub", "mul", "neg", "square", "abs", "maximum", "minimum"}
    found: dict[str, list[Case]] = {}
    for op, (count, _) in FUNCTIONS.items():
        found[op] = [Case(pairs(EDGES)[:count])]
        for dtype in INTEGERS if op in of_integers else ():
            limits = np.iinfo(dtype)
            found[op].append(Case(pairs([0, 1, -1, limits.max, limits.min, 123456789], dtype)[:count]))
    found["sub"] += [Case((normal(count), normal(count))) for count in (0, 1, 3, 4, 255, 1023, 40_001)]
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
        found["sub"] += [Case((normal(*one), normal(*other))) for one, other in (shapes, shapes[::-1])]
    return found


def _program(text: str, *outputs: int) -> Attributes:
    return {"program": text, "outputs": outputs}


LITERALS = (0.1, -1e-45, 3.4028235677973366e38, math.inf, -math.inf, -0.0)

BATCHES: tuple[Shape, ...] = (
    (65, 3, 8, 9),  # lines of 32 threads, splits of examples
    (3, 2, 40, 31),  # more pixels than threads
    (17, 5, 13, 11),  # with the channels last 8 channels a block, three of them beyond the last
    (2, 70, 9, 8),  # several blocks of channels
    (300, 70),
)


def _normalization() -> dict[str, list[Case]]:
    epsilon = {"epsilon": 1e-3}
    vectors = {"batch_norm": 2, "batch_norm_relu": 2, "batch_norm_inference": 4}
    ops = ("batch_norm", "batch_norm_gradient", "batch_norm_inference", "batch_norm_relu", "batch_norm_relu_gradient")
    found: dict[str, list[Case]] = {op: [] for op in ops}
    for op, shape in itertools.product(ops, (*BATCHES, (2, 3, 5, 4))):
        image = spread(*shape, scale=1.0, mean=3.0)
        if shape == (2, 3, 5, 4):
            image = but(image, nan=(0, 0))
        inputs = [image, *[positive(shape[1])] * vectors.get(op, 3)]
        inputs += [booleans(*shape)] * ("relu_gradient" in op) + [normal(*shape)] * ("gradient" in op)
        found[op].append(Case(tuple(inputs), epsilon))
    broken = [[1.0, np.nan], [2.0, 3.0]]
    found["batch_norm_relu"].append(Case((values(broken), values([1.0, 1.0]), values([0.0, 0.0])), epsilon))
    return found


def _responses() -> dict[str, list[Case]]:
    found: dict[str, list[Case]] = {}
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
        found.setdefault("channel_window_sum", []).append(Case((x,), {"size": size}))
        found.setdefault(op, []).append(Case((x,), response))
        found.setdefault(f"{op}_gradient", []).append(Case((x, normal(*shape)), response))
    return found


def _window(window: Shape, strides: Shape, padding: Shape) -> Attributes:
    return {"window": window, "strides": strides, "padding": padding}


def _pooling() -> dict[str, list[Case]]:
    """Images of 16 channels, which are read in packs, images without elements, and values that are not finite."""
    found: dict[str, list[Case]] = {}
    add = lambda op, attributes, *inputs: found.setdefault(op, []).append(Case(inputs, attributes))  # noqa: E731
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
    # Positions outside of the image and outside of the window gather nothing.
    outside = np.broadcast_to(np.array([-1, 7])[:, None, None], (1, 2, 3, 3))
    add("max_pool_gather", padded, few(1, 2, 4, 4), values(outside, "int32"))
    return found


def _random() -> dict[str, list[Case]]:
    stream = {"seed": 7, "key": "conv1/w", "dtype": PRECISION}
    shapes: tuple[Shape, ...] = ((), (0, 4), (1000,), (1001,), (2, 3, 4, 5))
    uniform, usual = {"low": -1.0, "high": 3.1}, {"mean": 1.0, "stddev": 0.1}
    masked: tuple[Shape, ...] = ((3, 5), (4,), (0, 4), (2, 0), (3, 2, 3, 3), (2, 515))
    step = values((1 << 33) + 4, "int64")
    return {
        "random_uniform": [Case((), {**stream, "shape": shape, **uniform}) for shape in shapes],
        "random_normal": [Case((), {**stream, "shape": shape, **usual}) for shape in shapes],
        "dropout_mask": [
            Case((step, integers(1 << 40, shape[0])), {**stream, "shape": shape, "rate": rate, "first": first})
            for shape, first, rate in itertools.product(masked, (0, 3, 8), (0.4, 0.0, 0.999))
        ],
    }


def _reductions() -> dict[str, list[Case]]:
    found: dict[str, list[Case]] = {}
    axes_of_images = [(0, 2, 3), (1,), (0, 2), (2, 3), (), (0, 1, 2, 3), (1, 3)]
    long: list[tuple[Shape, Shape]] = [
        ((9000,), (0,)),
        ((3000, 3), (0,)),
        ((3, 4100), (1,)),
        ((2, 40, 2000), (0, 2)),
    ]
    numbers = ([np.nan, 1, np.nan], [-np.inf] * 3, [2, np.inf, np.nan], [1, 5, 5])
    limits = values([[-5, 2**30], [-7, 2**30], [-9, -3]], "int64")
    for op in ("reduce_sum", "reduce_mean", "reduce_max"):
        shapes = [((3, 5, 7, 4), axes) for axes in axes_of_images]
        found[op] = [
            Case((normal(*shape),), {"axes": axes, "keepdims": keep})
            for shape, axes in shapes
            for keep in (False, True)
        ]
        found[op] += [Case((normal(*shape),), {"axes": axes, "keepdims": False}) for shape, axes in long]
    over_rows = {"axes": (0,), "keepdims": False}
    found["reduce_max"] += [Case((values(each),), over_rows) for each in numbers]
    found["reduce_sum"] += [Case((normal(*shape),), over_rows) for shape in ((0, 3), (3, 0), (0,))]
    for op in ("reduce_sum", "reduce_max"):
        found[op] += [Case((limits,), over_rows), Case((few(5, 4, dtype="int32"),), over_rows)]
    found["argmax"] = [Case((few(3, 11, 5, 4),), {"axis": axis}) for axis in range(4)]
    found["argmax"] += [Case((values(each),), {"axis": 0}) for each in numbers]
    found["argmax"] += [Case((limits,), {"axis": 0}), Case((few(5, 4, dtype="int32"),), {"axis": 0})]
    widened: list[tuple[Shape, Shape]] = [
        ((2, 5, 1, 1), (2, 5, 3, 4)),
        ((1, 5, 3, 4), (2, 5, 3, 4)),
        ((), (2, 0)),
        ((5, 1, 1), (2, 5, 3, 4)),
    ]
    found["broadcast_to"] = [
        Case((sample,), {"shape": wide})
        for shape, wide in widened
        for sample in (normal(*shape), booleans(*shape), few(*shape, dtype="int64"))
    ]
    return found


def _shapes() -> dict[str, list[Case]]:
    """Rearrangements of images, of integers, and of empty tensors."""
    found: dict[str, list[Case]] = {}
    images: list[tuple[str, list[Shape], Attributes]] = [
        ("reshape", [(2, 3, 4, 5)], {"shape": (2, 60)}),
        ("reshape", [(2, 8, 1, 1)], {"shape": (16,)}),
        ("transpose", [(2, 3, 4, 5)], {"perm": (3, 1, 0, 2)}),
        ("concat", [(2, 3, 4, 5), (2, 4, 4, 5), (2, 0, 4, 5)], {"axis": 1}),
        ("concat", [(2, 3, 1, 5), (2, 3, 4, 5)], {"axis": 2}),
        ("split", [(2, 8, 3, 3)], {"axis": 1, "sizes": (2, 4, 2)}),
        ("slice", [(3, 4, 5, 6)], {"begin": (1, 0, 2, 1), "size": (2, 4, 3, 4)}),
        ("pad", [(2, 3, 4, 2)], {"low": (0, 1, 2, 0), "high": (1, 0, 1, 1)}),
    ]
    empty: list[tuple[str, list[Shape], Attributes]] = [
        ("reshape", [(0, 3)], {"shape": (3, 0)}),
        ("transpose", [(0, 3)], {"perm": (1, 0)}),
        ("concat", [(0, 3), (0, 2)], {"axis": 1}),
        ("slice", [(4, 5)], {"begin": (1, 5), "size": (2, 0)}),
        ("pad", [(0, 2)], {"low": (1, 0), "high": (1, 1)}),
        ("pad", [(0, 2)], {"low": (0, 0), "high": (0, 1)}),
    ]
    for op, shapes, attributes in images + empty:
        found.setdefault(op, []).append(Case(tuple(numbered(*shape) for shape in shapes), attributes))
    for op, shapes, attributes in images:
        found[op].append(Case(tuple(numbered(*shape, dtype="uint8") for shape in shapes), attributes))
    return found


DTYPES = ("float32", "float64", "bfloat16", "int32", "int64", "uint8", "bool")
_BROKEN = (np.nan, np.inf, -np.inf, 1e30, -1e30, -(2.0**31), -(2.0**63), -0.5, 2.0**31, 2.0**63)
_BITS = np.array([0x7F800001, 0xFF80FFFF, 0x7FC00000, 0x7F800000, 0x3F80FFFF, 0x00000001], np.uint32)


def _casts() -> list[Case]:
    """Between all dtypes, and of floats that fit no integer. C leaves negative and large floats as uint8 undefined."""
    numbers = (0, 1, 2.75, 200.5, 1.00390625, 3.14159265358979, 65537.0)
    pairs_of_dtypes = [
        *(("float32", dtype) for dtype in DTYPES),
        *((dtype, "float32") for dtype in DTYPES[1:]),
        *itertools.pairwise(DTYPES[1:]),
        ("bool", "float64"),
    ]
    found = []
    for source, target in pairs_of_dtypes:
        safe = numbers[:4] if target == "uint8" and source not in ("uint8", "bool") else numbers
        found.append(Case((values(safe, source),), {"dtype": target}))
    for source, target in itertools.product(("float32", "float64"), ("int32", "int64", "bool")):
        found.append(Case((values(_BROKEN, source),), {"dtype": target}))
    return found


def _structure() -> dict[str, list[Case]]:
    fills = ((-0.0, "float32"), (0.1, "float64"), (0.1, "bfloat16"), (-3.0, "int64"), (math.nan, "float32"))
    return {
        "cast": _casts(),
        "truncate_to_bfloat16": [Case((lambda rng: _BITS.view(np.float32),))],
        "fill": [
            Case((), {"value": number, "shape": shape, "dtype": dtype})
            for number, dtype in (*fills, (1e60, "float32"))
            for shape in ((), (0, 3), (5, 301))
        ],
        "identity": [Case((normal(2, 3, 4, 5),))],
        "convert": [Case((normal(2, 3, 4, 5),))],
        "stop_gradient": [Case((normal(2, 3, 4, 5),))],
    }


def _rows() -> dict[str, list[Case]]:
    """Losses, softmax and rows by number."""
    found: dict[str, list[Case]] = {}
    for op in ("softmax", "log_softmax"):
        shapes: tuple[Shape, ...] = ((3, 1), (17, 10), (5, 37), (2, 1000), (1, 2051), (0, 4))
        found[op] = [Case((spread(*shape),)) for shape in shapes]
        zeros = values(np.zeros((2, 40)))
        found[op] += [Case((but(zeros, nan=(0, 33)),))]
        found[op] += [Case((but(zeros, at=((1, column), 1000.0)),)) for column in (0, 17, 39)]
    loss = "softmax_cross_entropy"
    for rows, classes in ((19, 10), (3, 1000), (0, 3)):
        batch = (spread(rows, classes, scale=5.0), integers(classes, rows))
        found.setdefault(loss, []).append(Case(batch))
        found.setdefault(f"{loss}_gradient", []).append(Case((*batch, normal(rows))))
    logits = but(spread(2, 3, 4, 5), at=((0, 0, 0, slice(3)), (np.nan, 0, 200)))
    found["sigmoid_cross_entropy"] = [Case((logits, positive(2, 3, 4, 5)))]
    found["gather"] = [
        Case((sample, values([[5, 0], [5, 2]], "int64")))
        for columns in (1, 3, 8)
        for sample in (normal(6, columns), *(few(6, columns, dtype=d) for d in ("uint8", "bool", "int64")))
    ]
    found["gather"] += [Case((normal(4, 0), values([1, 3], "int64"))), Case((normal(4, 2), integers(4, 0)))]
    found["scatter_add"] = [
        Case((integers(5, 300), spread(300, 3, scale=1000.0)), {"rows": 7}),
        Case((integers(5, 300), few(300, 3, dtype="int32")), {"rows": 7}),
        Case((integers(3, 0), normal(0, 2)), {"rows": 3}),
        Case((values([1], "int64"), normal(1, 0)), {"rows": 3}),
    ]
    found["one_hot"] = [Case((integers(3, 0, dtype="int32"),), {"depth": 3, "dtype": PRECISION})]
    return found


def _factors(m: int, k: int, n: int, a: bool, b: bool) -> tuple[Sample, Sample]:
    return normal(*((k, m) if a else (m, k))), normal(*((n, k) if b else (k, n)))


def _products() -> dict[str, list[Case]]:
    """Tiles that are full and not, empty factors, NaN before a ReLU, and a long batch."""
    found: dict[str, list[Case]] = {"matmul": [], "matmul_fused": [], "matmul_elementwise": []}
    turns = list(itertools.product((False, True), repeat=2))
    extents = ((1, 1, 1), (65, 33, 70), (3, 100, 130), (64, 16, 64), (70, 40, 66), (0, 3, 2), (3, 0, 2), (3, 2, 0))
    for size, (a, b) in itertools.product(extents, turns):
        turned = {"transpose_a": a, "transpose_b": b}
        found["matmul"].append(Case(_factors(*size, a, b), turned))
        if 0 in size and not a and not b:
            factors, result = _factors(*size, a, b), {**turned, "dtype": PRECISION}
            fused = {**result, "bias": True, "relu": True}
            found["matmul_fused"].append(Case((*factors, normal(size[2])), fused))
            found["matmul_elementwise"].append(Case(factors, {**result, **_program("square 0", 1), "product": 0}))
    plainly = {"transpose_a": False, "transpose_b": False, "dtype": PRECISION}
    column, one = values([[np.nan], [-1.0]]), values([[1.0]])
    found["matmul_fused"].append(Case((column, one), {**plainly, "bias": False, "relu": True}))
    found["matmul_bias_gradient"] = [Case((normal(1500, 3), normal(1500, 5)), {"dtype": PRECISION})]
    return found


def _convolutions() -> dict[str, list[Case]]:
    """More than one tile of pixels, of outputs and of taps, parts of tiles; no examples; windows larger than images."""
    found: dict[str, list[Case]] = {}
    add = lambda op, attributes, *inputs: found.setdefault(op, []).append(Case(inputs, attributes))  # noqa: E731

    def weights(geometry: Attributes, x: Shape, w: Shape, y: Shape, dtype: str = PRECISION) -> None:
        inputs = [spread(*shape, scale=0.1) for shape in (y, x)]
        add("conv2d_weight_bias_gradient", {**geometry, "weight_shape": w, "dtype": dtype}, *inputs)

    many = {"strides": (2, 1), "padding": (1, 2, 2, 1), "groups": 1}
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
    return found


SPECIAL: dict[str, list[Case]] = {
    **_functions(),
    **{op: [Case((values(FAR_OUT),))] for op in ("exp", "log", "log1p", "sigmoid", "tanh")},
    "sign": [Case((values(FAR_OUT),)), Case((values([3, 0, -7], "int64"),))],
    "pow": [Case((values((0.0, -1.7, 3.0, np.inf, 1.1)),), {"exponent": each}) for each in (0.0, 1.0, 2.0)],
    **{op: [Case(pairs(EDGES))] for op in COMPARISONS},
    "select": [
        Case((booleans(37), *[few(37, dtype=dtype)] * 2)) for dtype in ("float32", "bool", "uint8", "int32", "int64")
    ]
    + [Case((booleans(2, 3, 4, 5), normal(2, 3, 4, 5), normal(2, 3, 4, 5)))],
    "elementwise": [
        Case((normal(6, 7), normal(6, 7)), _program("mul 0 #0.9; sub 2 1; add 1 3", 3)),
        Case(
            (values((1.0, -3.0)),),
            _program("; ".join(f"mul 0 #{number!r}" for number in LITERALS), *range(1, 1 + len(LITERALS))),
        ),
        # A compiler that contracts a product and a sum rounds once where two roundings are stated.
        Case((normal(4096),), _program("mul 0 0; sub 1 #0.333; mul 2 0; add 3 1", 4)),
    ],
    **_normalization(),
    **_responses(),
    **_pooling(),
    **_random(),
    **_reductions(),
    **_shapes(),
    **_structure(),
    **_rows(),
    **_products(),
    **_convolutions(),
}
SPECIAL["equal"] += [Case(pairs([0, 1], dtype)) for dtype in ("bool", "uint8", "int32", "int64")]
SPECIAL["relu"].append(Case((normal(2, 3, 4, 5),)))
