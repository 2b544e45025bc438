"""Concatenation of tensors in different layouts."""

import numpy as np
import pytest

from tests.kernels.cpu.onednn.checking import check, floats, normal, refused
from tests.kernels.harness import Shaped

BLOCKS = "aBcd16b"


@pytest.mark.parametrize(
    ("channels", "tags", "joined"),
    [
        ((32, 16, 48), (BLOCKS, BLOCKS, BLOCKS), BLOCKS),
        ((32, 16, 20), (BLOCKS, BLOCKS, BLOCKS), BLOCKS),  # only the last block is not full
        ((20, 32, 16), (BLOCKS, BLOCKS, BLOCKS), ""),  # the second would start inside a block
        ((32, 16, 64), ("", "aBcd8b", BLOCKS), BLOCKS),
        ((24, 40, 8), ("aBcd8b", "aBcd8b", ""), "aBcd8b"),
        ((7, 5, 12), ("acdb", "acdb", BLOCKS), ""),
        ((7, 12, 5), ("acdb", "acdb", ""), "acdb"),
        ((7, 12, 5), ("", "", ""), ""),
        ((32,), (BLOCKS,), BLOCKS),
    ],
)
def test_channels(channels: tuple[int, ...], tags: tuple[str, ...], joined: str) -> None:
    arrays = [normal(seed, 2, count, 5, 6) for seed, count in enumerate(channels)]
    ran = check("concat", {"axis": 1}, arrays, [floats(2, sum(channels), 5, 6)], tags, tolerance=0)
    assert ran.tags == (list(tags), [joined]), "every input is read as it lies"


@pytest.mark.parametrize("axis", [0, 2, 3])
@pytest.mark.parametrize("tag", ["", BLOCKS, "acdb"])
def test_other_axes(axis: int, tag: str) -> None:
    shape = [2, 20, 3, 4]
    longer = [extent + 1 if each == axis else extent for each, extent in enumerate(shape)]
    joined = [extent + longer[axis] if each == axis else extent for each, extent in enumerate(shape)]
    arrays = [normal(1, *shape), normal(2, *longer)]
    ran = check("concat", {"axis": axis}, arrays, [floats(*joined)], [tag, tag], tolerance=0)
    assert ran.tags[1] == [tag]


@pytest.mark.parametrize("rank", [1, 2, 3, 5])
def test_other_ranks(rank: int) -> None:
    arrays = [normal(1, *[3] * rank), normal(2, *[3] * rank)]
    check("concat", {"axis": rank - 1}, arrays, [floats(*[3] * (rank - 1), 6)], tolerance=0)


def test_whole_numbers() -> None:
    arrays = [np.arange(6, dtype=np.int32).reshape(2, 3), np.arange(4, dtype=np.int32).reshape(2, 2)]
    check("concat", {"axis": 1}, arrays, [Shaped((2, 5), "int32")])


def test_unsupported_tensors_are_refused() -> None:
    numbers = Shaped((2, 3), "int64")
    assert refused("concat", {"axis": 1}, [numbers, numbers], [Shaped((2, 6), "int64")])
    assert refused("concat", {"axis": 1}, [floats(2, 0), floats(2, 3)], [floats(2, 3)])
