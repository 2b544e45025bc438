"""Casts between float32 and bfloat16, between all layouts."""

import itertools

import numpy as np
import pytest

from runner.kernels.contract import Array, Layout, plain
from tests.kernels.cpu.onednn.checking import assert_padding_is_zero, kernel, kernels, layout, normal, refused
from tests.kernels.harness import Shaped, call_bound, converted, filled, holding

pytestmark = pytest.mark.skipif(
    refused("cast", {"dtype": "bfloat16"}, [Shaped((2, 3), "float32")], [Shaped((2, 3), "bfloat16")]),
    reason="oneDNN has no bfloat16 on this CPU",
)

SHAPE = (20, 33, 3, 2)
TAGS = ("", "ABcd16b16a", "Acdb16a")
NARROW_TAGS = ("", "ABcd8b16a2b", "acdb")
"""The second is the layout that oneDNN requests for weights, with pairs of adjacent inputs."""


def _cast(array: Array, dtype: str, *tags: str | None) -> Array:
    """Cast between these layouts; a result without one takes the layout of the source."""
    x, y = Shaped.of(array), Shaped(array.shape, dtype)
    offered = [layout(spec, tag) for spec, tag in zip((x, y), tags, strict=False) if tag is not None]
    arrangement = kernel("cast").arrange({"dtype": dtype}, [x], [y], offered)
    assert arrangement is not None
    assert [*arrangement.inputs, *arrangement.outputs][: len(offered)] == offered
    source, result = converted(kernels(), holding(array), offered[0]), filled(y, arrangement.outputs[0])
    call_bound(kernel("cast"), {"dtype": dtype}, arrangement, [source], [result])
    assert_padding_is_zero(result)
    return converted(kernels(), result, plain(y)).array


@pytest.mark.parametrize(("source", "result"), list(itertools.product(TAGS, NARROW_TAGS)))
def test_float32_to_bfloat16_rounds_to_nearest(source: str, result: str) -> None:
    array = normal(1, *SHAPE)
    np.testing.assert_array_equal(_cast(array, "bfloat16", source, result), array.astype("bfloat16"))


@pytest.mark.parametrize(("source", "result"), list(itertools.product(NARROW_TAGS, TAGS)))
def test_bfloat16_to_float32_is_exact(source: str, result: str) -> None:
    array = normal(1, *SHAPE).astype("bfloat16")
    np.testing.assert_array_equal(_cast(array, "float32", source, result), array.astype("float32"))


@pytest.mark.parametrize("tag", ["", "ABcd16b16a", "acdb"])
def test_a_result_of_open_layout_takes_the_layout_of_the_source(tag: str) -> None:
    array = normal(1, *SHAPE)
    x, y = Shaped.of(array), Shaped(SHAPE, "bfloat16")
    arrangement = kernel("cast").arrange({"dtype": "bfloat16"}, [x], [y], [layout(x, tag)])
    assert arrangement is not None
    assert (arrangement.inputs, arrangement.outputs) == ((layout(x, tag),), (layout(y, tag),))
    np.testing.assert_array_equal(_cast(array, "bfloat16", tag), array.astype("bfloat16"))


def test_a_source_that_is_open_is_taken_plain() -> None:
    x, y = Shaped((4, 6), "float32"), Shaped((4, 6), "bfloat16")
    arrangement = kernel("cast").arrange({"dtype": "bfloat16"}, [x], [y], [None])
    assert arrangement is not None
    assert (arrangement.inputs, arrangement.outputs) == ((plain(x),), (plain(y),))


def test_ties_infinities_and_nan() -> None:
    values = [1 + 2**-8, 1 + 3 * 2**-8, -(1 + 2**-8), np.inf, -np.inf, np.nan, 3.4e38, 0.0, -0.0]
    array = np.array(values, np.float32)
    came = _cast(array, "bfloat16", "")
    np.testing.assert_array_equal(came.astype(np.float32), array.astype("bfloat16").astype(np.float32))
    np.testing.assert_array_equal(np.signbit(came[-2:]), [False, True])


@pytest.mark.parametrize(
    ("x", "y", "offered"),
    [
        pytest.param(Shaped((4,), "bool"), Shaped((4,), "float32"), [None], id="truth values"),
        pytest.param(Shaped((4,), "float32"), Shaped((4,), "int32"), [None], id="whole numbers"),
        pytest.param(Shaped((4,), "float64"), Shaped((4,), "float32"), [None], id="double precision"),
        pytest.param(Shaped((), "float32"), Shaped((), "bfloat16"), [None], id="no axes"),
        pytest.param(
            Shaped((4, 6), "float32"), Shaped((4, 6), "bfloat16"), [Layout("somebody:else's", 96)], id="another library"
        ),
        pytest.param(
            Shaped((4, 6), "float32"),
            Shaped((4, 6), "bfloat16"),
            [Layout("t:ab", 96), Layout("ba", 48)],
            id="two views",
        ),
    ],
)
def test_unsupported_conversions_are_refused(x: Shaped, y: Shaped, offered: list[Layout | None]) -> None:
    assert kernel("cast").arrange({"dtype": y.dtype}, [x], [y], offered) is None
