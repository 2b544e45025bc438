"""The IDX format, against bytes written out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from runner.data.cache import decode_idx, encode_idx

FILE = b"\x00\x00\x08\x02" + b"\x00\x00\x00\x02" + b"\x00\x00\x00\x03" + bytes([1, 2, 3, 4, 5, 6])
ARRAY = np.array([[1, 2, 3], [4, 5, 6]], np.uint8)


def test_encode_writes_the_format():
    assert encode_idx(ARRAY) == FILE


def test_encode_follows_the_order_of_the_elements_not_of_memory():
    assert encode_idx(np.asfortranarray(ARRAY)) == FILE


def test_decode_reads_it():
    np.testing.assert_array_equal(decode_idx(FILE, (2, 3)), ARRAY)


@pytest.mark.parametrize(("data", "shape"), [(FILE, (3, 2)), (FILE[:7], (2, 3)), (b"\x00\x00\x0d" + FILE[3:], (2, 3))])
def test_decode_refuses_another_shape_or_type(data: bytes, shape: tuple[int, ...]):
    with pytest.raises(ValueError, match="not an IDX file of bytes of shape"):
        decode_idx(data, shape)


@pytest.mark.parametrize("data", [FILE[:-1], FILE + b"\x00"])
def test_decode_refuses_a_wrong_length(data: bytes):
    with pytest.raises(ValueError, match="reshape"):
        decode_idx(data, (2, 3))
