from __future__ import annotations

from typing import Any

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from runner.engine.transport.codec import pack, unpack
from runner.engine.transport.header import check_frames
from runner.engine.transport.messages import Run
from runner.engine.transport.references import DTYPES, ArenaTensor, InlineTensor
from runner.errors import SecurityError

SHAPES = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=3)


def arrays_of(dtype: str) -> st.SearchStrategy[NDArray[Any]]:
    """Arrays of any bits."""
    if dtype == "bfloat16":
        return hnp.arrays(np.uint16, SHAPES).map(lambda bits: bits.view(DTYPES[dtype]))
    return hnp.arrays(DTYPES[dtype], SHAPES)


ARRAYS = st.sampled_from(sorted(DTYPES)).flatmap(arrays_of)


@given(st.dictionaries(st.text(max_size=4), ARRAYS, max_size=4))
def test_arrays_come_back_to_the_bit(arrays: dict[str, NDArray[Any]]) -> None:
    references, frames = pack(arrays)
    check_frames(Run("p", 0, references), frames)
    back = unpack(references, frames)
    assert list(back) == list(arrays)
    for name, array in arrays.items():
        assert back[name].dtype == array.dtype
        assert back[name].shape == array.shape
        assert back[name].tobytes() == array.tobytes()


@pytest.mark.parametrize("view", [np.s_[::2, :], np.s_[:, ::-1], np.s_[1:, 1:]])
def test_arrays_in_any_memory_order_travel_in_c_order(view: tuple[slice, slice]) -> None:
    array = np.arange(12.0).reshape(3, 4).T[view]
    references, frames = pack({"x": array})
    np.testing.assert_array_equal(unpack(references, frames)["x"], array)


def test_what_comes_back_is_read_only_and_not_copied() -> None:
    array = np.arange(4.0)
    references, frames = pack({"x": array})
    back = unpack(references, frames)["x"]
    assert np.shares_memory(back, array)
    assert not back.flags.writeable


def test_a_reference_to_what_is_not_there_is_refused() -> None:
    with pytest.raises(SecurityError, match="tensor x: frame 3 of 1"):
        unpack({"x": InlineTensor("uint8", (), 3)}, [memoryview(b"a")])
    with pytest.raises(SecurityError, match=r"tensor refused: x: 1 bytes, but float64\[\] takes 8"):
        unpack({"x": InlineTensor("float64", (), 0)}, [memoryview(b"a")])
    with pytest.raises(SecurityError, match=r"tensor x: arena secret, expected one of \[\]"):
        unpack({"x": ArenaTensor("uint8", (), "secret", 0, 1, 0)})
