"""A table of cases for all ops: op -> sample inputs, attributes, and the number of derivatives to check.

Samples are farther from kinks (0 for |x|, ties for a maximum) than the step of the difference quotients.
"""

import itertools
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tests.samples import (
    PRECISION,
    Case,
    Sample,
    Shape,
    booleans,
    distinct,
    integers,
    normal,
    off_zero,
    permuted,
    positive,
    single,
    value,
)

_BROADCASTS = (
    (normal(3, 5), normal(3, 5)),
    (normal(2, 3, 1), normal(3, 4)),
    (normal(), normal(2, 3)),
    (normal(1, 1), normal(3)),
)


def _binary(**changes: Any) -> list[Case]:
    return [Case(pair, **changes) for pair in _BROADCASTS]


def _unary(*samples: Sample, **changes: Any) -> list[Case]:
    return [Case((sample,), **changes) for sample in samples]


def _reduction(sample: Callable[..., Sample], orders: int = 2) -> list[Case]:
    return [
        Case((sample(3, 4, 5),), {"axes": axes, "keepdims": keepdims}, orders)
        for axes in [(0,), (1, 2), (0, 2), (0, 1, 2)]
        for keepdims in (False, True)
    ]


def _geometry(
    strides: tuple[int, int], padding: tuple[int, int, int, int], groups: int, dilations: tuple[int, int] = (1, 1)
) -> dict[str, Any]:
    return {"strides": strides, "padding": padding, "dilations": dilations, "groups": groups}


_CONVOLUTIONS = (
    # shapes of x, w and y, and geometry
    ((2, 3, 7, 6), (4, 3, 3, 2), (2, 4, 3, 8), _geometry((2, 1), (1, 0, 2, 1), 1)),
    ((2, 4, 5, 7), (6, 2, 3, 3), (2, 6, 5, 4), _geometry((1, 2), (1, 1, 1, 1), 2)),
    ((3, 3, 4, 5), (3, 1, 2, 3), (3, 3, 3, 3), _geometry((1, 1), (0, 0, 0, 0), 3)),
    ((1, 2, 3, 3), (5, 2, 1, 1), (1, 5, 3, 3), _geometry((1, 1), (0, 0, 0, 0), 1)),
    ((2, 1, 8, 8), (2, 1, 3, 3), (2, 2, 2, 2), _geometry((3, 4), (0, 0, 0, 0), 1)),
    ((2, 2, 7, 8), (4, 1, 3, 2), (2, 4, 4, 3), _geometry((1, 2), (1, 0, 0, 1), 2, (2, 3))),
    ((1, 3, 9, 5), (2, 3, 2, 3), (1, 2, 3, 5), _geometry((2, 1), (0, 1, 2, 2), 1, (4, 2))),
)

_POOLS = (
    # shapes of x and y, and geometry
    ((2, 3, 6, 4), (2, 3, 3, 2), {"window": (2, 2), "strides": (2, 2), "padding": (0, 0, 0, 0)}),
    ((1, 2, 7, 5), (1, 2, 4, 3), {"window": (3, 3), "strides": (2, 2), "padding": (1, 1, 0, 2)}),
    ((2, 1, 5, 6), (2, 1, 2, 6), {"window": (2, 3), "strides": (3, 1), "padding": (0, 0, 1, 1)}),
)


def _average(count_padding: bool) -> dict[str, Any]:
    return {"count_padding": count_padding}


def _positions(shape: tuple[int, ...], window: tuple[int, ...]) -> Sample:
    return integers(math.prod(window), *shape, dtype="int32")


_RESPONSES = (
    {"size": 5, "alpha": 0.5, "beta": 0.75, "k": 2.0, "divide_by_size": False},
    {"size": 3, "alpha": 0.9, "beta": 0.5, "k": 1.0, "divide_by_size": True},
)

_FUSIONS = [
    {"bias": bias, "residual": residual, "relu": relu}
    for bias in (False, True)
    for residual in (False, True)
    for relu in (False, True)
]


def _fused_convolution(x: Shape, w: Shape, y: Shape, geometry: Mapping[str, Any], fusion: Mapping[str, bool]) -> Case:
    added = [normal(w[0])] * fusion["bias"] + [normal(*y)] * fusion["residual"]
    return Case((normal(*x), normal(*w), *added), {**geometry, **fusion}, 0)


def _fused_product(transpose_a: bool, transpose_b: bool, bias: bool, relu: bool) -> Case:
    a, b = normal(*((4, 3) if transpose_a else (3, 4))), normal(*((5, 4) if transpose_b else (4, 5)))
    attributes = {
        "transpose_a": transpose_a,
        "transpose_b": transpose_b,
        "bias": bias,
        "relu": relu,
        "dtype": PRECISION,
    }
    return Case((a, b, normal(5)) if bias else (a, b), attributes, 0)


_TURNS = (
    # shapes of a and b, and whether each is stored transposed
    ((3, 4), (4, 5), False, False),
    ((3, 4), (5, 4), False, True),
    ((4, 3), (5, 4), True, True),
)


def _consumed_product(
    a_shape: Shape,
    b_shape: Shape,
    product: int,
    text: str,
    outputs: tuple[int, ...],
    *operands: Sample,
    a: bool = True,
    b: bool = False,
) -> Case:
    """Return a case of an element-wise program with a matrix product as operand ``product``. a, b: transpose flags."""
    turned = {"transpose_a": a, "transpose_b": b}
    attributes = {**turned, "dtype": PRECISION, "program": text, "outputs": outputs, "product": product}
    return Case((normal(*a_shape), normal(*b_shape), *operands), attributes, 0)


def _program(text: str, *outputs: int) -> dict[str, Any]:
    return {"program": text, "outputs": outputs}


_STREAM = {"shape": (3, 5), "dtype": PRECISION, "seed": 7, "key": "conv1/w"}

CASES: dict[str, list[Case]] = {
    # structural
    "identity": _unary(normal(2, 3), normal(), integers(5, 3)),
    "convert": _unary(normal(2, 3), normal(), integers(5, 3)),
    "stop_gradient": _unary(normal(2, 3), orders=0),
    "fill": [
        Case((), {"value": 1.5, "shape": (2, 3), "dtype": PRECISION}, 0),
        Case((), {"value": 3.0, "shape": (), "dtype": "int64"}, 0),
        Case((), {"value": 1.0, "shape": (4,), "dtype": "bool"}, 0),
    ],
    "constant": [
        Case((), {"value": np.arange(6, dtype="<i4").tobytes(), "shape": (2, 3), "dtype": "int32"}, 0),
        Case((), {"value": np.asarray(0.25, "<f8").tobytes(), "shape": (), "dtype": "float64"}, 0),
    ],
    "add_n": [Case((normal(3, 2),)), Case((normal(3, 2),) * 4), Case((normal(), normal()))],
    "all_reduce": [
        Case((normal(3, 2),) * parts, {"group": "g", "rank": rank}) for parts, rank in ((1, 0), (2, 1), (4, 2))
    ],
    "cast": [
        Case((normal(3, 2),), {"dtype": "float64"}),
        Case((normal(3, 2),), {"dtype": "float32"}, 0),
        Case((normal(3, 2),), {"dtype": "int64"}, 0),
        Case((integers(255, 3, 2, dtype="uint8"),), {"dtype": PRECISION}, 0),
        Case((booleans(3),), {"dtype": PRECISION}, 0),
    ],
    "truncate_to_bfloat16": [
        Case((single(normal(3, 2)),), orders=0),
        Case((single(normal()),), orders=0),
        Case((single(normal(2, 0)),), orders=0),
    ],
    # arithmetic
    "add": [*_binary(), Case((integers(9, 3), integers(9, 3)))],
    "sub": _binary(),
    "mul": _binary(),
    "div": [
        Case((normal(3, 5), off_zero(3, 5))),
        Case((normal(2, 3, 1), off_zero(3, 4))),
        Case((normal(), off_zero(2))),
    ],
    "neg": _unary(normal(2, 3), integers(5, 2)),
    "exp": _unary(normal(2, 3), normal()),
    "log": _unary(positive(2, 3), positive()),
    "log1p": _unary(positive(2, 3)),
    "erf": _unary(normal(2, 3), normal()),
    "sqrt": _unary(positive(2, 3)),
    "square": _unary(normal(2, 3), normal()),
    "abs": _unary(off_zero(2, 3)),
    "sign": _unary(off_zero(2, 3), orders=1),
    "pow": [
        *(Case((positive(2, 3),), {"exponent": e}) for e in (-0.75, 0.5, 1.0, 2.0, 3.0)),
        Case((off_zero(2, 3),), {"exponent": 2.0}),
        Case((positive(2, 3),), {"exponent": 0.0}, 1),
    ],
    # comparison
    "greater": _binary(orders=0),
    "greater_equal": _binary(orders=0),
    "less": _binary(orders=0),
    "equal": [*_binary(orders=0), Case((integers(2, 9), integers(2, 9)), orders=0)],
    "select": [Case((booleans(3, 4), normal(3, 4), normal(3, 4))), Case((booleans(3, 1), normal(4), normal(2, 1, 1)))],
    "maximum": [Case((distinct(3, 4), value(0.05, "float64"))), Case((distinct(6, 1), value([0.05], "float64")))],
    "minimum": [Case((distinct(3, 4), value(0.05, "float64"))), Case((distinct(6, 1), value([0.05], "float64")))],
    # activation
    "relu": _unary(off_zero(3, 4), off_zero(2, 2, 3, 3)),
    "relu_gradient": [Case((normal(3, 4), off_zero(3, 4)))],
    "sigmoid": _unary(normal(3, 4), normal()),
    "tanh": _unary(normal(3, 4), normal()),
    "softmax": _unary(normal(3, 4), normal(5), normal(2, 1, 3)),
    "log_softmax": _unary(normal(3, 4), normal(5), normal(2, 1, 3)),
    # reduction
    "reduce_sum": [
        *_reduction(normal),
        Case((normal(3),), {"axes": (), "keepdims": False}),
        Case((integers(9, 4, 3, dtype="int32"),), {"axes": (0,), "keepdims": False}),
    ],
    "sum_of_squares": _reduction(normal, orders=0),
    "reduce_mean": _reduction(normal),
    "reduce_max": [*_reduction(distinct), Case((integers(9, 5),), {"axes": (0,), "keepdims": False})],
    "argmax": [Case((distinct(3, 4, 5),), {"axis": axis}, 0) for axis in range(3)],
    "broadcast_to": [
        Case((normal(3, 1),), {"shape": (2, 3, 4)}),
        Case((normal(),), {"shape": (5,)}),
        Case((normal(3),), {"shape": (3,)}),
    ],
    # shape
    "reshape": [Case((normal(2, 6),), {"shape": (3, 4)}), Case((normal(1),), {"shape": ()})],
    "transpose": [Case((normal(2, 3, 4),), {"perm": (2, 0, 1)}), Case((normal(3),), {"perm": (0,)})],
    "concat": [Case((normal(2, 3), normal(2, 1), normal(2, 4)), {"axis": 1}), Case((normal(3),), {"axis": 0})],
    "split": [
        Case((normal(2, 7, 2),), {"axis": 1, "sizes": (3, 0, 1, 3)}),
        Case((normal(4),), {"axis": 0, "sizes": (4,)}),
    ],
    "slice": [
        Case((normal(4, 5),), {"begin": (1, 0), "size": (2, 3), "steps": (1, 1)}),
        Case((normal(7, 5, 2),), {"begin": (1, 4, 0), "size": (3, 2, 2), "steps": (2, -3, 1)}),
    ],
    "slice_gradient": [
        Case((normal(3, 2, 2),), {"input_shape": (7, 5, 2), "begin": (1, 4, 0), "steps": (2, -3, 1)}),
        Case((normal(2, 3),), {"input_shape": (4, 3), "begin": (1, 2), "steps": (1, -1)}),
    ],
    "pad": [Case((normal(2, 3),), {"low": (1, 0), "high": (0, 2)})],
    # indexing
    "gather": [Case((normal(5, 2), integers(5, 3, 2))), Case((normal(4), integers(4, 7, dtype="int32")))],
    "scatter_add": [
        Case((integers(5, 3, 2), normal(3, 2, 4)), {"rows": 5}),
        Case((integers(2, 9), normal(9)), {"rows": 4}),
    ],
    "add_equal_rows": [Case((integers(4, 7), normal(7, 3))), Case((integers(2, 5, dtype="int32"), normal(5)))],
    "put_rows": [
        Case((normal(6, 3), permuted(6, 4), normal(4, 3)), {}, 0),
        Case((normal(4), permuted(4, 4), normal(4)), {}, 0),
    ],
    "one_hot": [Case((integers(4, 5),), {"depth": 4, "dtype": PRECISION}, 0)],
    # linear
    "matmul": [
        Case(
            (normal(*((4, 3) if ta else (3, 4))), normal(*((5, 4) if tb else (4, 5)))),
            {"transpose_a": ta, "transpose_b": tb},
        )
        for ta in (False, True)
        for tb in (False, True)
    ],
    "matmul_fused": [_fused_product(*choice) for choice in itertools.product((False, True), repeat=4)],
    "matmul_bias_gradient": [
        Case((normal(7, 3), normal(7, 5)), {"dtype": PRECISION}, 0),
        Case((normal(1, 2), normal(1, 4)), {"dtype": PRECISION}, 0),
    ],
    # element-wise chains
    "elementwise": [
        Case((normal(3, 4), normal(3, 4), normal()), _program("mul 0 #0.9; mul 1 2; sub 3 4; add 1 5", 5, 6), 0),
        Case((normal(5), positive(5)), _program("square 0; add 2 #1e-08; sqrt 3; div 1 4; neg 5", 6), 0),
        Case((off_zero(2, 3), normal(2, 3)), _program("relu 0; relu_gradient 1 2; abs 1; minimum 3 4", 5, 3), 0),
        Case((off_zero(2, 3), normal()), _program("relu_gradient 1 0; maximum 2 1; relu_gradient 0 1", 3, 4), 0),
        Case((normal(), positive()), _program("div 0 1", 2), 0),
    ],
    "matmul_elementwise": [
        _consumed_product((7, 3), (7, 5), 1, "mul 0 #0.9; sub 3 1; mul 4 2; add 0 5", (6, 4), normal(3, 5), normal()),
        _consumed_product((7, 3), (7, 5), 0, "mul 0 0", (1,)),
        _consumed_product((1, 2), (1, 1), 2, "mul 2 1; sub 0 3", (4,), normal(2, 1), normal()),
        *(_consumed_product(a, b, 1, "add 0 1; square 2", (3, 2), normal(3, 5), a=x, b=y) for a, b, x, y in _TURNS),
    ],
    # convolution
    "conv2d": [Case((normal(*x), normal(*w)), g) for x, w, _, g in _CONVOLUTIONS],
    "conv2d_input_gradient": [Case((normal(*y), normal(*w)), {**g, "input_shape": x}) for x, w, y, g in _CONVOLUTIONS],
    "conv2d_weight_gradient": [
        Case((normal(*y), normal(*x)), {**g, "weight_shape": w, "dtype": PRECISION}) for x, w, y, g in _CONVOLUTIONS
    ],
    "conv2d_fused": [
        *(_fused_convolution(*_CONVOLUTIONS[0], fusion) for fusion in _FUSIONS),
        *(_fused_convolution(*convolution, _FUSIONS[-1]) for convolution in _CONVOLUTIONS[1:]),
    ],
    "conv2d_weight_bias_gradient": [
        Case((normal(*y), normal(*x)), {**g, "weight_shape": w, "dtype": PRECISION}, 0) for x, w, y, g in _CONVOLUTIONS
    ],
    # pooling
    "max_pool": [Case((distinct(*x),), g) for x, _, g in _POOLS],
    "max_pool_gradient": [
        Case((normal(*y), _positions(y, g["window"])), {**g, "input_shape": x}) for x, y, g in _POOLS
    ],
    "max_pool_gather": [Case((normal(*x), _positions(y, g["window"])), g) for x, y, g in _POOLS],
    "avg_pool": [Case((normal(*x),), {**g, **_average(c)}) for x, _, g in _POOLS for c in (False, True)],
    "avg_pool_gradient": [
        Case((normal(*y),), {**g, **_average(c), "input_shape": x}) for x, y, g in _POOLS for c in (False, True)
    ],
    # normalisation
    "batch_norm": [
        Case((normal(*shape), positive(3), normal(3)), {"epsilon": 1e-3}, tolerance=1e-4)
        for shape in [(5, 3), (2, 3, 3, 2)]
    ],
    "batch_norm_gradient": [
        Case((normal(*shape), positive(3), normal(3), positive(3), normal(*shape)), {"epsilon": 1e-3}, tolerance=1e-4)
        for shape in [(5, 3), (2, 3, 3, 2)]
    ],
    "batch_norm_inference": [
        Case((normal(*shape), positive(3), normal(3), normal(3), positive(3)), {"epsilon": 1e-3})
        for shape in [(5, 3), (2, 3, 3, 2)]
    ],
    "batch_norm_relu": [
        Case((normal(*shape), positive(3), normal(3)), {"epsilon": 1e-3}, 0, tolerance=1e-4)
        for shape in [(5, 3), (2, 3, 3, 2)]
    ],
    "batch_norm_relu_gradient": [
        Case(
            (normal(*shape), positive(3), normal(3), positive(3), booleans(*shape), normal(*shape)),
            {"epsilon": 1e-3},
            0,
            tolerance=1e-4,
        )
        for shape in [(5, 3), (2, 3, 3, 2)]
    ],
    "channel_window_sum": [
        Case((normal(2, 7, 3),), {"size": 5}),
        Case((normal(2, 2),), {"size": 5}),
        Case((normal(1, 4, 2, 2),), {"size": 1}),
    ],
    "local_response_normalization": [Case((normal(2, 7, 2, 3),), r) for r in _RESPONSES],
    "local_response_normalization_gradient": [Case((normal(2, 7, 2, 3), normal(2, 7, 2, 3)), r) for r in _RESPONSES],
    # loss
    "softmax_cross_entropy": [
        Case((normal(5, 4), integers(4, 5))),
        Case((normal(3, 1), integers(1, 3, dtype="int32"))),
    ],
    "softmax_cross_entropy_gradient": [
        Case((positive(5, 4), integers(4, 5), normal(5))),
        Case((positive(3, 1), integers(1, 3, dtype="int32"), normal(3))),
        Case((positive(2, 19), integers(19, 2), normal(2))),
    ],
    "sigmoid_cross_entropy": [Case((off_zero(3, 4), positive(3, 4)))],
    # recurrent
    "lstm": [
        Case((normal(t, n, 4 * h), normal(h, 4 * h), normal(n, h), normal(n, h))) for t, n, h in [(3, 2, 3), (1, 3, 1)]
    ],
    "lstm_gradient": [
        Case(
            (
                *(normal(t, n, h), normal(t, n, h), normal(h, 4 * h), normal(n, h), normal(t, n, h)),
                *[normal(t, n, 4 * h)] * gates,
            ),
            tolerance=1e-4,
        )
        for t, n, h, gates in [(3, 2, 2, 1), (2, 2, 1, 2)]
    ],
    # random
    "random_uniform": [
        Case((), {**_STREAM, "low": -1.0, "high": 3.0, "part": part}, 0) for part in [(), (5, 9, 2), (15, 40, 20)]
    ],
    "random_normal": [Case((), {**_STREAM, "mean": 1.0, "stddev": 0.1}, 0)],
    "uniform_rows": [Case((value(4, "int64"), integers(99, 3)), {**_STREAM}, 0)],
    "dropout_mask": [Case((value(4, "int64"), integers(99, 3)), {**_STREAM, "rate": 0.4, "first": 0}, 0)],
}


def all_cases() -> list[tuple[str, Case, str]]:
    """Return every case with its op and an identifier for test reports."""
    return [
        (op, case, f"{op}-{number}" if len(cases) > 1 else op)
        for op, cases in CASES.items()
        for number, case in enumerate(cases)
    ]
