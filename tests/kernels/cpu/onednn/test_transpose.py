"""Axes in another order."""

from __future__ import annotations

import pytest

from tests.kernels.cpu.onednn.checking import check, floats, normal, refused
from tests.kernels.harness import Shaped


@pytest.mark.parametrize(
    ("shape", "perm"),
    [
        ((1, 1), (1, 0)),
        ((7, 33), (1, 0)),
        ((1, 40), (1, 0)),
        ((40, 1), (1, 0)),
        ((64, 128), (1, 0)),
        ((5, 6), (0, 1)),
        ((5,), (0,)),
        ((2, 3, 4), (2, 0, 1)),
        ((2, 3, 4, 5), (3, 1, 0, 2)),
        ((2, 17, 3, 5), (0, 2, 3, 1)),
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_element_finds_its_place(shape: tuple[int, ...], perm: tuple[int, ...], dtype: str) -> None:
    result = Shaped(tuple(shape[axis] for axis in perm), dtype)
    ran = check("transpose", {"perm": perm}, [normal(1, *shape).astype(dtype)], [result], tolerance=0)
    assert ran.tags == ([""], [""])


@pytest.mark.parametrize("tag", ["aBcd16b", "acdb"])
def test_images_that_lie_otherwise_are_asked_for_plain(tag: str) -> None:
    ran = check(
        "transpose", {"perm": (1, 0, 3, 2)}, [normal(1, 2, 20, 3, 5)], [floats(20, 2, 5, 3)], [tag], tolerance=0
    )
    assert ran.tags == ([""], [""])


@pytest.mark.parametrize(
    ("x", "perm", "y"),
    [
        (floats(), (), floats()),
        (floats(0, 3), (1, 0), floats(3, 0)),
        (Shaped((2, 3), "int64"), (1, 0), Shaped((3, 2), "int64")),
    ],
    ids=["no axes", "empty", "integers"],
)
def test_what_it_cannot_do_is_left_to_others(x: Shaped, perm: tuple[int, ...], y: Shaped) -> None:
    assert refused("transpose", {"perm": perm}, [x], [y])
