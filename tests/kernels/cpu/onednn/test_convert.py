"""Conversions of layouts: exact for every pair of formats, and refused for layouts without a common prefix."""

import itertools

import numpy as np
import pytest

from runner.kernels.contract import Array, Layout, plain
from tests.kernels.cpu.onednn.checking import IMAGE_TAGS, assert_padding_is_zero, kernel, kernels, layout, normal
from tests.kernels.harness import Shaped, call_bound, converted, filled, holding

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


def _there_and_back(array: Array, before: Layout, after: Layout) -> Array:
    """Convert through both layouts into plain memory, even if the layouts are equal."""
    operand = holding(array)
    for wanted in (before, after, plain(operand.spec)):
        arrangement = kernel("convert").arrange({}, [operand.spec], [operand.spec], [operand.layout, wanted])
        assert arrangement is not None
        assert (arrangement.inputs, arrangement.outputs) == ((operand.layout,), (wanted,))
        result = filled(operand.spec, wanted)
        call_bound(kernel("convert"), {}, arrangement, [operand], [result])
        operand = result
        assert_padding_is_zero(operand)
    return operand.array


@pytest.mark.parametrize(("shape", "before", "after"), PAIRS)
def test_every_pair_of_formats(shape: tuple[int, ...], before: str, after: str) -> None:
    array = normal(1, *shape)
    spec = Shaped.of(array)
    np.testing.assert_array_equal(_there_and_back(array, layout(spec, before), layout(spec, after)), array)


@pytest.mark.parametrize("dtype", ["int32", "bool", "uint8"])
@pytest.mark.parametrize("tag", ["", "aBcd16b", "acdb"])
def test_other_dtypes_than_floats(dtype: str, tag: str) -> None:
    array = np.random.default_rng(1).integers(0, 2, (2, 20, 3, 3)).astype(dtype)
    spec = Shaped.of(array)
    np.testing.assert_array_equal(_there_and_back(array, layout(spec, tag), layout(spec, "aBcd8b")), array)


@pytest.mark.parametrize("name", ["abcd", "aBcd16b"])
def test_positions_in_bytes(name: str) -> None:
    array = np.arange(2 * 16 * 2 * 4, dtype=np.int32).reshape(2, 16, 2, 4)
    in_bytes = Layout(f"u8:{name}", array.size)
    np.testing.assert_array_equal(_there_and_back(array, plain(Shaped.of(array)), in_bytes), array)


@pytest.mark.parametrize("name", ["abcd", "aBcd8b", "acdb"])
@pytest.mark.parametrize("wanted", ["", "acdb"])
def test_truth_values_in_bits(name: str, wanted: str) -> None:
    values = np.random.default_rng(1).integers(0, 2, (2, 16, 3, 3)).astype(bool)
    spec = Shaped.of(values)
    as_bytes = converted(kernels(), holding(values), layout(spec, name))
    bits = filled(spec, Layout(f"bits:{name}", values.size // 8))
    bits.data[:] = np.packbits(as_bytes.data, bitorder="little")
    result = converted(kernels(), bits, layout(spec, wanted))
    np.testing.assert_array_equal(converted(kernels(), result, plain(spec)).array, values)


@pytest.mark.parametrize(
    ("spec", "before", "after"),
    [
        pytest.param(Shaped((4, 6), "float32"), "t:ab", "ba", id="different views"),
        pytest.param(Shaped((4, 6), "float32"), "", "somebody:else's", id="a layout of another library"),
        pytest.param(Shaped((4, 16), "bool"), "", "bits:ab", id="packing into bits"),
        pytest.param(Shaped((), "float32"), "", "", id="no axes"),
        pytest.param(Shaped((0, 3), "float32"), "", "", id="nothing in it"),
        pytest.param(Shaped((4, 6), "int64"), "", "", id="a dtype that oneDNN does not know"),
    ],
)
def test_unsupported_conversions_are_refused(spec: Shaped, before: str, after: str) -> None:
    layouts = [Layout(tag, spec.nbytes) for tag in (before, after)]
    assert kernel("convert").arrange({}, [spec], [spec], layouts) is None


def test_open_layouts_are_refused() -> None:
    spec = Shaped((4, 6), "float32")
    assert kernel("convert").arrange({}, [spec], [spec], [plain(spec), None]) is None
