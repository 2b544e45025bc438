"""Split, slice and pad: in blocks if the parts end at blocks, else in C order."""

from typing import Any

import pytest

from tests.kernels.cpu.onednn.checking import check, floats, normal

BLOCKS = "aBcd16b"


@pytest.mark.parametrize(
    ("sizes", "tag", "taken"),
    [
        ((32, 16, 48), BLOCKS, BLOCKS),
        ((32, 16, 20), BLOCKS, BLOCKS),
        ((20, 32, 16), BLOCKS, ""),
        ((24, 40, 8), "aBcd8b", "aBcd8b"),
        ((7, 5, 12), "acdb", "acdb"),
        ((7, 5, 12), "", ""),
        ((20,), BLOCKS, BLOCKS),
    ],
)
def test_split_channels(sizes: tuple[int, ...], tag: str, taken: str) -> None:
    parts = [floats(2, size, 5, 6) for size in sizes]
    attributes = {"axis": 1, "sizes": sizes}
    ran = check("split", attributes, [normal(1, 2, sum(sizes), 5, 6)], parts, [tag], tolerance=0)
    assert ran.tags == ([taken], [taken] * len(sizes))


@pytest.mark.parametrize("tag", ["", BLOCKS, "acdb"])
@pytest.mark.parametrize("axis", [0, 2, 3])
def test_split_other_axes(axis: int, tag: str) -> None:
    shape = [6, 20, 6, 6]
    parts = [floats(*(size if each == axis else extent for each, extent in enumerate(shape))) for size in (1, 3, 2)]
    ran = check("split", {"axis": axis, "sizes": (1, 3, 2)}, [normal(1, *shape)], parts, [tag], tolerance=0)
    assert ran.tags == ([tag], [tag] * 3)


@pytest.mark.parametrize(
    ("begin", "size", "tag", "taken"),
    [
        ((0, 16, 1, 2), (2, 32, 3, 4), BLOCKS, BLOCKS),
        ((1, 32, 0, 0), (1, 20, 5, 6), BLOCKS, BLOCKS),  # to the end
        ((0, 16, 0, 0), (2, 20, 5, 6), BLOCKS, ""),
        ((0, 8, 0, 0), (2, 16, 5, 6), BLOCKS, ""),
        ((1, 3, 1, 2), (1, 4, 2, 3), "acdb", "acdb"),
        ((1, 3, 1, 2), (1, 4, 2, 3), "", ""),
    ],
)
def test_slice(begin: tuple[int, ...], size: tuple[int, ...], tag: str, taken: str) -> None:
    attributes = {"begin": begin, "size": size}
    ran = check("slice", attributes, [normal(1, 2, 52, 5, 6)], [floats(*size)], [tag], tolerance=0)
    assert ran.tags == ([taken], [taken])


@pytest.mark.parametrize(
    ("channels", "low", "high", "tag", "taken"),
    [
        (16, (0, 0, 0, 0), (0, 16, 0, 0), BLOCKS, BLOCKS),
        (16, (0, 16, 1, 0), (0, 3, 2, 1), BLOCKS, BLOCKS),
        (20, (0, 16, 1, 2), (1, 0, 0, 0), BLOCKS, BLOCKS),
        (20, (0, 0, 0, 0), (0, 1, 0, 0), BLOCKS, ""),
        (16, (0, 8, 0, 0), (0, 8, 0, 0), BLOCKS, ""),
        (5, (0, 2, 0, 1), (1, 1, 0, 0), "acdb", "acdb"),
        (5, (0, 2, 0, 1), (1, 1, 0, 0), "", ""),
    ],
)
def test_pad(channels: int, low: tuple[int, ...], high: tuple[int, ...], tag: str, taken: str) -> None:
    shape = (2, channels, 3, 4)
    padded = floats(*(sum(each) for each in zip(shape, low, high, strict=True)))
    ran = check("pad", {"low": low, "high": high}, [normal(1, *shape)], [padded], [tag], tolerance=0)
    assert ran.tags == ([taken], [taken])


@pytest.mark.parametrize(
    ("op", "attributes", "shape", "result"),
    [
        ("split", {"axis": 0, "sizes": (5,)}, (5,), (5,)),
        ("slice", {"begin": (1, 2), "size": (2, 3)}, (4, 6), (2, 3)),
        ("pad", {"low": (1, 0, 2), "high": (0, 1, 0)}, (2, 3, 4), (3, 4, 6)),
    ],
)
def test_other_ranks(op: str, attributes: dict[str, Any], shape: tuple[int, ...], result: tuple[int, ...]) -> None:
    check(op, attributes, [normal(1, *shape)], [floats(*result)], tolerance=0)
