"""float32 to its upper 16 bits and back, by the reference kernels and by the fast kernels."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.engine.graph import ops
from runner.engine.graph.autodiff import gradients
from runner.engine.graph.graph import Graph
from runner.engine.graph.op import ShapeError
from runner.engine.graph.tensor import Tensor
from runner.kernels.registry import Registry
from tests.engine.running import run_once
from tests.oracles import evaluate
from tests.samples import Array

KEPT = {
    "one": (0x3F800000, 0x3F800000),
    "truncated, not rounded up": (0x3F80FFFF, 0x3F800000),
    "truncated, not rounded to even": (0xBFC18000, 0xBFC10000),
    "zero": (0x00000000, 0x00000000),
    "negative zero": (0x80000000, 0x80000000),
    "infinity": (0x7F800000, 0x7F800000),
    "negative infinity": (0xFF800000, 0xFF800000),
    "largest": (0x7F7FFFFF, 0x7F7F0000),
    "subnormal": (0x007FFFFF, 0x007F0000),
    "smallest that is kept": (0x80010000, 0x80010000),
    "largest that becomes zero": (0x8000FFFF, 0x80000000),
    "quiet NaN": (0x7FC00000, 0x7FC00000),
    "NaN by its lowest bit": (0x7F800001, 0x7FC00000),
    "negative NaN by lower bits": (0xFF80FFFF, 0xFFC00000),
    "NaN with a payload": (0xFFA20001, 0xFFE20000),
}


def there_and_back(shape: tuple[int, ...]) -> tuple[Graph, Tensor, list[Tensor]]:
    """Return a graph, its placeholder, and the placeholder truncated to 16 bits and cast back."""
    graph = Graph()
    x = ops.placeholder(graph, shape, "float32")
    narrow = ops.truncate_to_bfloat16(graph, x)
    return graph, x, [narrow, ops.cast(graph, narrow, "float32")]


def from_bits(*bits: int) -> Array:
    return np.array(bits, np.uint32).view(np.float32)


@pytest.mark.parametrize(("before", "after"), KEPT.values(), ids=KEPT.keys())
def test_truncation_keeps_the_upper_16_bits(before: int, after: int) -> None:
    graph, x, fetches = there_and_back((1,))
    narrow, wide = evaluate(graph, fetches, {x: from_bits(before)})
    assert [hex(narrow.view(np.uint16)[0]), hex(wide.view(np.uint32)[0])] == [hex(after >> 16), hex(after)]


@given(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=40))
def test_kernels_have_the_bits_of_the_reference(registry: Registry, bits: list[int]) -> None:
    bits += [before for before, _ in KEPT.values()]
    graph, x, fetches = there_and_back((len(bits),))
    feeds = {x: from_bits(*bits)}
    for came, expected in zip(run_once(graph, registry, fetches, feeds), evaluate(graph, fetches, feeds), strict=True):
        assert came.tobytes() == expected.tobytes()
    finite = np.isfinite(feeds[x])
    cut = from_bits(*(each & 0xFFFF0000 for each in bits))
    np.testing.assert_array_equal(evaluate(graph, fetches, feeds)[1][finite], cut[finite], strict=True)


def test_truncation_takes_only_float32() -> None:
    graph = Graph()
    x = ops.placeholder(graph, (2,), "float64")
    with pytest.raises(ShapeError, match=r"op 'truncate_to_bfloat16': expected input of dtype float32, came float64"):
        ops.truncate_to_bfloat16(graph, x)


def test_truncation_has_no_gradient() -> None:
    graph, x, (_, wide) = there_and_back((2,))
    with pytest.raises(ValueError, match="it is put before transfers by a pass, after gradients exist"):
        gradients(graph, [wide], [x])
