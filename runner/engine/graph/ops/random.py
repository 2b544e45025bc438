"""Random draws by the generator Philox: pure functions of a node's attributes and inputs, the same on every device."""

from collections.abc import Sequence
from typing import Any

from runner.engine.graph.op import Builder, NotDifferentiable, OpDef, Specs, expect, register
from runner.engine.graph.ops.common import declared_spec
from runner.engine.graph.tensor import FLOATS, Tensor, TensorSpec


def random_uniform(
    graph: Builder,
    shape: Sequence[int],
    dtype: str,
    *,
    seed: int,
    key: str,
    low: float = 0.0,
    high: float = 1.0,
    part: Sequence[int] = (),
    name: str | None = None,
) -> Tensor:
    """Add a node for float64 uniform draws from [low, high), cast to ``dtype``; (seed, key) determines the draws.

    part: () or (columns, stride, first). With three numbers, the output is a part of a larger tensor drawn with (seed,
    key): element i is element (i // columns) * stride + first + i % columns of that tensor, both in C order.
    """
    attributes = {**_stream(shape, dtype, seed, key), "low": low, "high": high, "part": tuple(part)}
    return graph.add("random_uniform", (), attributes, name=name)[0]


def random_normal(
    graph: Builder,
    shape: Sequence[int],
    dtype: str,
    *,
    seed: int,
    key: str,
    mean: float = 0.0,
    stddev: float = 1.0,
    name: str | None = None,
) -> Tensor:
    """Add a node for float64 normal draws, cast to ``dtype``; (seed, key) determines the draws."""
    attributes = {**_stream(shape, dtype, seed, key), "mean": mean, "stddev": stddev}
    return graph.add("random_normal", (), attributes, name=name)[0]


def dropout_mask(
    graph: Builder,
    step: Tensor,
    index: Tensor,
    *,
    shape: Sequence[int],
    dtype: str,
    rate: float,
    seed: int,
    key: str,
    first: int = 0,
    name: str | None = None,
) -> Tensor:
    """Add a node for a mask; each element is 0 with probability ``rate``, otherwise 1 / (1 - rate) (inverted dropout).

    step: int64 scalar; index: (N,) int64 global example indices; shape: (N, ...). The draws of a row are a function of
    (seed, key, step, index of the row), independent of the other rows and of N. first: number of draws to skip in
    each row, so that a mask (N, U) equals columns first..first+U-1 of the mask of a wider layer.
    """
    attributes = {**_stream(shape, dtype, seed, key), "rate": rate, "first": first}
    return graph.add("dropout_mask", [step, index], attributes, name=name)[0]


def uniform_rows(
    graph: Builder,
    step: Tensor,
    index: Tensor,
    *,
    shape: Sequence[int],
    dtype: str,
    seed: int,
    key: str,
    name: str | None = None,
) -> Tensor:
    """Add a node for uniform draws from [0, 1), cast to ``dtype``, with one row per example.

    step: int64 scalar; index: (N,) int64 global example indices; shape: (N, ...). The draws of a row are a function of
    (seed, key, step, index of the row), independent of the other rows and of N.
    """
    return graph.add("uniform_rows", [step, index], _stream(shape, dtype, seed, key), name=name)[0]


def _stream(shape: Sequence[int], dtype: str, seed: int, key: str) -> dict[str, object]:
    return {"shape": tuple(shape), "dtype": dtype, "seed": seed, "key": key}


def _infer_draws(*, shape: tuple[int, ...], dtype: str, **others: Any) -> Specs:
    spec = declared_spec(shape, dtype)
    expect(spec.dtype in FLOATS, "a float dtype", spec)
    return [spec]


def _infer_uniform(*, part: tuple[int, ...], **others: Any) -> Specs:
    if part:
        fits = len(part) == 3 and 0 < part[0] <= part[1] and part[2] >= 0
        expect(fits, "a part (columns, stride, first) with 0 < columns <= stride and first >= 0", part)
    return _infer_draws(**others)


def _infer_rows(step: TensorSpec, index: TensorSpec, **stream: Any) -> Specs:
    (drawn,) = _infer_draws(**stream)
    expect(step == TensorSpec((), "int64"), "step as an int64 scalar", step)
    one_per_row = index == TensorSpec(drawn.shape[:1], "int64") and drawn.rank > 0
    expect(one_per_row, f"one index per row of {drawn}", index)
    return [drawn]


def _infer_mask(step: TensorSpec, index: TensorSpec, *, rate: float, first: int, **stream: Any) -> Specs:
    mask = _infer_rows(step, index, **stream)
    expect(0.0 <= rate < 1.0, "a rate within [0, 1)", rate)
    expect(first >= 0, "a first draw of 0 or more", first)
    return mask


_A_DRAW = NotDifferentiable("its output is random")
_UNIFORM = {"low": "float", "high": "float", "part": "ints"}
_STREAM = {"shape": "ints", "dtype": "dtype", "seed": "int", "key": "str"}

register(
    OpDef("random_uniform", _infer_uniform, _A_DRAW, arity=0, attributes={**_STREAM, **_UNIFORM}),
    OpDef("random_normal", _infer_draws, _A_DRAW, arity=0, attributes={**_STREAM, "mean": "float", "stddev": "float"}),
    OpDef("uniform_rows", _infer_rows, _A_DRAW, arity=2, attributes=_STREAM),
    OpDef("dropout_mask", _infer_mask, _A_DRAW, arity=2, attributes={**_STREAM, "rate": "float", "first": "int"}),
)
