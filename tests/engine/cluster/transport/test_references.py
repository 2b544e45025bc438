"""References to tensors: bounds, lengths and dtypes are checked before an array is made."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.engine.cluster.transport.references import (
    DTYPES,
    MAX_RANK,
    ArenaTensor,
    dtype_name,
    nbytes_of,
    view_bytes,
)
from runner.system.schema import Record, Violation

SCHEMA = Record(ArenaTensor)
ARENA = {"dtype": "float32", "shape": [2, 3], "arena": "a", "offset": 64, "length": 24, "epoch": 1}


def test_reference_round_trip() -> None:
    assert SCHEMA.write(SCHEMA.read(ARENA, "x"), "x") == ARENA


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"shape": [-1, 3]}, r"x\.shape\[0\]: -1, expected a whole number from 0"),
        ({"shape": [2.0, 3]}, r"x\.shape\[0\]: 2\.0"),
        ({"shape": [True, 3]}, r"x\.shape\[0\]: True"),
        ({"shape": [1] * (MAX_RANK + 1)}, "expected a list of at most 8"),
        ({"shape": "23"}, "expected a list"),
        ({"dtype": "object"}, "'object', expected one of bool, uint8, int32, int64, float32, float64, bfloat16"),
        ({"dtype": ["float32"]}, "expected one of bool"),
        ({"offset": -64}, r"x\.offset: -64"),
        ({"offset": 2**63}, r"x\.offset: 9223372036854775808"),
        ({"length": 25}, r"length: 25 bytes, but float32\[2, 3\] takes 24"),
        ({"epoch": None}, r"x\.epoch: None"),
        ({"arena": "n" * 200}, "text of at most 128"),
        ({"extra": 1}, r"unknown \['extra'\]"),
    ],
)
def test_malformed_reference_is_refused(change: dict[str, object], reason: str) -> None:
    with pytest.raises(Violation, match=reason):
        SCHEMA.read(ARENA | change, "x")


def test_product_of_dimensions_does_not_overflow() -> None:
    # In 64 bits this product is 0, and a check done there would pass.
    with pytest.raises(Violation, match="length: 0 bytes, but uint8"):
        ArenaTensor("uint8", (2**32, 2**32), "a", 0, 0, 1)
    assert nbytes_of("float64", (2**62,) * MAX_RANK) == 8 * 2**496


def test_view_requires_the_exact_length() -> None:
    with pytest.raises(Violation, match=r"here: 23 bytes, but float32\[2, 3\] takes 24"):
        view_bytes(memoryview(bytes(23)), "float32", (2, 3), "here")


@pytest.mark.parametrize("shape", [(0, 2**62), (2**63 - 1, 0), (0, 2**32, 2**32), (1, 0, 2**61)])
def test_overflowing_shape_without_bytes_is_refused(shape: tuple[int, ...]) -> None:
    assert nbytes_of("float32", shape) == 0
    with pytest.raises(Violation, match=r"here: float32\[.*\], expected at most 9223372036854775807 bytes"):
        view_bytes(memoryview(b""), "float32", shape, "here")


def test_view_of_writable_memory_is_read_only() -> None:
    memory = bytearray(8)
    view = view_bytes(memoryview(memory), "float64", (), "here")
    memory[:] = np.float64(1.5).tobytes()
    assert view == 1.5
    assert view.shape == ()
    assert not view.flags.writeable


def test_boolean_is_zero_or_one() -> None:
    assert view_bytes(memoryview(b"\x00\x01"), "bool", (2,), "here").tolist() == [False, True]
    with pytest.raises(Violation, match="byte 2 in a tensor of booleans"):
        view_bytes(memoryview(b"\x00\x02"), "bool", (2,), "here")


def test_unsupported_dtype_is_refused() -> None:
    for dtype in ("float16", ">f4", "object", "U1", "complex64"):
        with pytest.raises(Violation, match="expected one of bool, uint8"):
            dtype_name(np.zeros(1, dtype))
    assert [dtype_name(np.zeros(1, name)) for name in DTYPES] == list(DTYPES)


@given(st.sampled_from(sorted(DTYPES)), st.lists(st.integers(0, 4), max_size=4))
def test_nbytes_equal_those_of_numpy(dtype: str, shape: list[int]) -> None:
    assert nbytes_of(dtype, shape) == np.zeros(shape, dtype).nbytes
