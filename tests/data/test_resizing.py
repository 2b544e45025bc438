"""Resizing of images: machine code against NumPy, and both against Pillow."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from runner.data.resizing import Box, Bytes, plain_across, plain_down, resized, weighted
from runner.kernels.cpu.machine_code import resizing


def image_of(seed: int, height: int, width: int) -> Bytes:
    """Return an image (height, width, 4) with many white pixels, whose sums are the largest."""
    rng = np.random.default_rng(seed)
    found = rng.integers(0, 256, (height, width, 4), np.uint8)
    found[rng.random((height, width)) < 0.3] = 255
    return found


def by_pillow(pixels: Bytes, box: Box, height: int, width: int) -> Bytes:
    whole = Image.frombuffer("RGBX", (pixels.shape[1], pixels.shape[0]), pixels, "raw", "RGBX", 0, 1)
    return np.asarray(whole.resize((width, height), Image.Resampling.BILINEAR, box))


SIDE = st.integers(1, 60)
BOUNDS = st.tuples(st.floats(0, 0.9), st.floats(0.01, 1))
"""The start of a region, and the fraction of the remaining length that the region contains."""


@given(st.integers(0, 999), st.tuples(SIDE, SIDE), st.tuples(SIDE, SIDE), BOUNDS, BOUNDS)
def test_a_region_is_resized_as_by_pillow(
    seed: int, size: tuple[int, int], target: tuple[int, int], rows: tuple[float, float], columns: tuple[float, float]
) -> None:
    pixels, (height, width) = image_of(seed, *size), size
    top, left = rows[0] * height, columns[0] * width
    box = (left, top, left + columns[1] * (width - left), top + rows[1] * (height - top))
    found = resized(pixels, box, *target)
    assert (found.shape, found.dtype) == ((*target, 4), np.uint8)
    np.testing.assert_allclose(found.astype(int), by_pillow(pixels, box, *target), atol=1)
    np.testing.assert_array_equal(resized(pixels, box, *target, mirrored=True), found[:, ::-1])


def test_an_image_of_the_same_size_is_unchanged() -> None:
    pixels = image_of(0, 9, 13)
    np.testing.assert_array_equal(resized(pixels, (0, 0, 13, 9), 9, 13), pixels)


@pytest.mark.parametrize(("side", "terms"), [(7, 2), (16, 3), (33, 5), (60, 8), (100, 12)])
@pytest.mark.parametrize("other", [1, 5, 16])
def test_machine_code_gives_the_bytes_of_numpy(side: int, terms: int, other: int) -> None:
    sums = weighted(side, 0.3, side - 0.2, 17)
    assert terms - 1 <= sums.terms <= terms + 1
    across, down = (plain_across, resizing.across, (other, side)), (plain_down, resizing.down, (side, other))
    for plain, compiled, shape in (across, down):
        pixels = image_of(side, *shape)
        given = (pixels, sums.starts, sums.weights)
        np.testing.assert_array_equal(compiled(*given), plain(*given), strict=True)


def test_sums_of_many_terms_are_computed_by_numpy() -> None:
    pixels, box = image_of(0, 200, 30), (0.0, 0.0, 30.0, 200.0)
    assert weighted(200, 0, 200, 10).terms > resizing.MOST_TERMS
    np.testing.assert_allclose(resized(pixels, box, 10, 20).astype(int), by_pillow(pixels, box, 10, 20), atol=1)
