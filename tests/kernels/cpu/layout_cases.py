"""Shapes around the sizes at which CPU kernels use different code: blocks of 8 or 16 channels, whole vectors, tiles.

``tests/kernels/cpu/test_table.py`` compares kernels on LAYOUT_CASES and WIDENED; other tests use some of its shapes.
"""

import itertools
import math
from collections import defaultdict
from dataclasses import replace
from typing import Any

from tests.kernels.special_cases import Attributes
from tests.samples import PRECISION, Case, Shape, booleans, few, integers, normal, positive, spread

LAYERS: dict[str, tuple[Shape, Shape, Attributes]] = {
    name: (x, w, {"strides": strides, "padding": padding, "dilations": (*dilations, 1, 1)[:2], "groups": groups})
    for name, x, w, strides, padding, groups, *dilations in [
        ("few channels", (2, 3, 20, 19), (16, 3, 5, 4), (2, 3), (1, 2, 0, 1), 1),
        ("whole blocks", (2, 32, 6, 6), (48, 32, 3, 3), (1, 1), (1, 1, 1, 1), 1),
        ("blocks not full", (3, 20, 9, 8), (50, 20, 5, 5), (1, 1), (0, 0, 0, 0), 1),
        ("asymmetric", (2, 24, 7, 9), (20, 24, 3, 2), (2, 1), (0, 2, 1, 0), 1),
        ("one of one channel", (1, 1, 12, 12), (6, 1, 5, 5), (1, 1), (0, 0, 0, 0), 1),
        ("one pixel", (1, 17, 1, 1), (5, 17, 1, 1), (1, 1), (0, 0, 0, 0), 1),
        ("one pixel of one channel", (5, 1, 1, 1), (17, 1, 1, 1), (1, 1), (2, 1, 2, 1), 1),
        ("1x1", (2, 32, 6, 6), (64, 32, 1, 1), (1, 1), (0, 0, 0, 0), 1),
        ("1x1 with strides", (2, 32, 7, 7), (16, 32, 1, 1), (2, 2), (0, 0, 0, 0), 1),
        ("two groups", (2, 32, 6, 6), (64, 16, 3, 3), (1, 1), (1, 1, 1, 1), 2),
        ("odd groups", (2, 12, 6, 5), (20, 3, 3, 3), (1, 1), (1, 1, 1, 1), 4),
        ("depthwise", (2, 32, 6, 6), (32, 1, 3, 3), (1, 1), (1, 1, 1, 1), 32),
        ("odd depthwise", (2, 20, 6, 6), (40, 1, 3, 3), (2, 2), (1, 1, 1, 1), 20),
        ("window as large as the image", (2, 16, 5, 5), (10, 16, 5, 5), (1, 1), (0, 0, 0, 0), 1),
        ("dilated", (2, 32, 9, 8), (48, 32, 3, 3), (1, 1), (2, 2, 2, 2), 1, 2, 2),
        ("dilated with strides", (2, 20, 11, 12), (24, 20, 3, 2), (2, 1), (1, 0, 2, 1), 1, 2, 3),
        ("dilated in groups", (2, 32, 9, 9), (32, 16, 3, 3), (1, 1), (3, 3, 3, 3), 2, 3, 3),
        ("dilated depthwise", (2, 32, 9, 9), (32, 1, 3, 3), (1, 1), (2, 2, 2, 2), 32, 2, 2),
        ("tiles", (2, 32, 16, 14), (48, 32, 3, 3), (1, 1), (1, 1, 1, 1), 1),
        ("tiles beyond the edges", (3, 16, 13, 15), (32, 16, 3, 3), (1, 1), (0, 2, 1, 0), 1),
        ("tiles and wide padding", (2, 16, 14, 13), (16, 16, 3, 3), (1, 1), (3, 3, 4, 2), 1),
        ("dilated with few channels", (2, 3, 12, 12), (16, 3, 3, 3), (2, 2), (2, 2, 2, 2), 1, 2, 2),
    ]
}
FUSED = (
    "few channels",
    "whole blocks",
    "asymmetric",
    "1x1 with strides",
    "two groups",
    "depthwise",
    "dilated",
    "tiles beyond the edges",
)
"""Names of the layers that are tested with every combination of bias, residual and ReLU."""

POOLS: tuple[tuple[Shape, Shape, Shape, Shape], ...] = (
    # x, window, strides, padding
    ((2, 20, 9, 8), (3, 3), (2, 2), (0, 0, 0, 0)),
    ((2, 20, 9, 8), (3, 3), (2, 2), (0, 1, 0, 1)),  # windows that extend beyond the image
    ((2, 32, 8, 8), (2, 2), (2, 2), (1, 1, 1, 1)),
    ((1, 16, 7, 6), (3, 2), (1, 2), (2, 1, 1, 0)),
    ((3, 5, 8, 8), (1, 1), (2, 2), (0, 0, 0, 0)),
    ((1, 16, 20, 20), (17, 17), (3, 3), (0, 0, 0, 0)),  # a byte cannot number all positions
)
BATCHES: tuple[Shape, ...] = ((4, 20, 5, 6), (2, 32, 3, 3), (1, 3, 7, 7), (6, 48, 1, 1), (8, 10), (8, 32), (7, 1))
RESPONSES: tuple[Attributes, ...] = (
    {"size": 5, "alpha": 1e-2, "beta": 0.75, "k": 2.0, "divide_by_size": True},
    {"size": 5, "alpha": 1e-2, "beta": 0.75, "k": 1.0, "divide_by_size": False},
    {"size": 3, "alpha": 0.1, "beta": 0.5, "k": 1.0, "divide_by_size": False},
    {"size": 7, "alpha": 0.1, "beta": 0.75, "k": 1.0, "divide_by_size": True},
    {"size": 9, "alpha": 0.1, "beta": 0.6, "k": 2.0, "divide_by_size": False},
    {"size": 1, "alpha": 0.1, "beta": 0.75, "k": 2.0, "divide_by_size": True},
)
PRODUCTS: tuple[tuple[int, int, int], ...] = (
    # rows, inner extent, columns. First line: fewer weights than linear.LARGE; second line: at least as many.
    *((1, 1, 1), (7, 33, 17), (1, 17, 33), (33, 1, 7), (17, 7, 1), (3, 1000, 10)),
    *((1, 400, 1000), (4, 131, 1001), (7, 1000, 133), (33, 257, 517), (300, 131, 1001)),
)


def slid(x: Shape, window: Shape, strides: Shape, padding: Shape) -> Shape:
    """Return the number of positions of a sliding window along rows and along columns."""
    top, bottom, left, right = padding
    return (x[2] + top + bottom - window[0]) // strides[0] + 1, (x[3] + left + right - window[1]) // strides[1] + 1


def convolved(x: Shape, w: Shape, geometry: Attributes) -> Shape:
    """Return the shape of the convolution of images of shape x with filters of shape w."""
    covered = tuple((size - 1) * step + 1 for size, step in zip(w[2:], geometry["dilations"], strict=True))
    return (x[0], w[0], *slid(x, covered, geometry["strides"], geometry["padding"]))


LAYOUT_CASES: defaultdict[str, list[Case]] = defaultdict(list)


def add(op: str, attributes: Attributes, *inputs: Any) -> None:
    LAYOUT_CASES[op].append(Case(inputs, attributes))


def _images() -> None:
    for name, (x, w, geometry) in LAYERS.items():
        y = convolved(x, w, geometry)
        image, filters, dy = normal(*x), spread(*w, scale=1 / math.sqrt(math.prod(w[1:]))), normal(*y)
        weights = {**geometry, "weight_shape": w, "dtype": PRECISION}
        add("conv2d", geometry, image, filters)
        add("conv2d_input_gradient", {**geometry, "input_shape": x}, dy, filters)
        add("conv2d_weight_gradient", weights, dy, image)
        add("conv2d_weight_bias_gradient", weights, dy, image)
        for fusion in itertools.product((False, True), repeat=3) if name in FUSED else [(True, True, True)]:
            bias, residual, relu = fusion
            added = [normal(w[0])] * bias + [dy] * residual
            add("conv2d_fused", {**geometry, "bias": bias, "residual": residual, "relu": relu}, image, filters, *added)
    for x, window, strides, padding in POOLS:
        y = (*x[:2], *slid(x, window, strides, padding))
        pool = {"window": window, "strides": strides, "padding": padding}
        # The values are negative, so that a kernel that reads zeros in the padding returns a wrong maximum.
        add("max_pool", pool, spread(*x, scale=1.0, mean=-3.0))
        add("max_pool", pool, few(*x))
        add("max_pool_gradient", {**pool, "input_shape": x}, normal(*y), integers(math.prod(window), *y, dtype="int32"))
        for counted in (False, True):
            add("avg_pool", {**pool, "count_padding": counted}, normal(*x))
            add("avg_pool_gradient", {**pool, "count_padding": counted, "input_shape": x}, normal(*y))
    for shape in BATCHES:
        image, vector = spread(*shape, scale=2.0, mean=1.0), positive(shape[1])
        epsilon = {"epsilon": 1e-3}
        add("batch_norm", epsilon, image, vector, normal(shape[1]))
        add("batch_norm_relu", epsilon, image, vector, normal(shape[1]))
        add("batch_norm_inference", epsilon, image, vector, normal(shape[1]), normal(shape[1]), vector)
        add("batch_norm_gradient", epsilon, image, vector, normal(shape[1]), vector, normal(*shape))
        mask = booleans(*shape)
        add("batch_norm_relu_gradient", epsilon, image, vector, normal(shape[1]), vector, mask, normal(*shape))
    response = "local_response_normalization"
    for shape, setting in itertools.product([(2, 32, 5, 6), (2, 20, 5, 6), (1, 3, 4, 4), (3, 32)], RESPONSES):
        add(response, setting, spread(*shape, scale=3.0))
        add(f"{response}_gradient", setting, spread(*shape, scale=3.0), normal(*shape))
    for op in ("exp", "sigmoid", "tanh", "relu", "neg", "square"):
        for shape in ((2, 32, 5, 3), (2, 20, 5, 3), (7,), (33, 17), (1000,), (1,) * 5):
            add(op, {}, normal(*shape))
    for channels in (16, 20, 64):
        add("broadcast_to", {"shape": (3, channels, 5, 6)}, normal(3, channels, 1, 1))
    for shape, wide in (
        ((5,), (3, 5)),
        ((1, 1, 1), (2, 3, 4)),
        ((4, 1, 3), (2, 4, 5, 3)),
        ((2, 1, 3, 1), (2, 4, 3, 5)),
    ):
        add("broadcast_to", {"shape": wide}, normal(*shape))
    for keepdims in (False, True):
        add("reduce_mean", {"axes": (2, 3), "keepdims": keepdims}, normal(3, 24, 7, 5))


def _matrices() -> None:
    choices = list(itertools.product((False, True), repeat=2))
    for (m, k, n), (a, b) in itertools.product(PRODUCTS, choices):
        turned = {"transpose_a": a, "transpose_b": b}
        factors = (normal(*((k, m) if a else (m, k))), normal(*((n, k) if b else (k, n))))
        add("matmul", turned, *factors)
        for bias, relu in choices if (m, k, n) == (33, 257, 517) or not (a or b) else ():
            fused = {**turned, "bias": bias, "relu": relu, "dtype": PRECISION}
            add("matmul_fused", fused, *factors, *[normal(n)] * bias)
    for m, k, n in PRODUCTS:
        add("matmul_bias_gradient", {"dtype": PRECISION}, normal(m, k), normal(m, n))


_images()
_matrices()

WIDENED = {
    op: [replace(case, attributes={**case.attributes, "dtype": "float32"}) for case in LAYOUT_CASES[op]]
    for op in ("conv2d_weight_gradient", "conv2d_weight_bias_gradient", "matmul_fused", "matmul_bias_gradient")
}
"""The cases of some ops in LAYOUT_CASES, changed to give float32 results also for bfloat16 inputs."""
