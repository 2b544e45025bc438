"""Changes of colours in machine code: equal bits for every size of vectors, and images of odd sizes."""

from dataclasses import replace

import numpy as np
import pytest

from runner.kernels.cpu.machine_code import colours
from runner.kernels.cpu.machine_code.compiler import host
from tests.data.colours import random_pixels

ALL = [("shift", (0.1, -0.2, 0.05)), ("saturation", (1.3,)), ("hue", (-0.7,)), ("contrast", (0.8,))]


@pytest.mark.parametrize("vector_bytes", [16, 32, 64])
def test_vectors_of_every_size_give_the_same_bits(vector_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    pixels = random_pixels(0, 13, 29)
    expected = colours.changed(pixels, ALL)
    narrow = replace(host(), vector_bytes=vector_bytes)
    monkeypatch.setattr(colours, "host", lambda: narrow)
    monkeypatch.setattr(colours, "_compiled", colours._compiled.__wrapped__)
    np.testing.assert_array_equal(colours.changed(pixels, ALL), expected, strict=True)
    in_bytes = np.rint(pixels * 255).astype(np.uint8)
    np.testing.assert_array_equal(colours.changed(in_bytes, ALL), expected, strict=True)


@pytest.mark.parametrize("order", [ALL, ALL[::-1]], ids=["contrast last", "contrast first"])
@pytest.mark.parametrize("adjacent", [True, False])
def test_bytes_become_numbers_first(order: list[colours.Change], adjacent: bool) -> None:
    pixels = random_pixels(2, 9, 11)
    in_bytes = np.rint(pixels * 255).astype(np.uint8)
    with_fourth = np.concatenate([in_bytes, np.full((1, 9, 11), 7, np.uint8)])
    together = np.ascontiguousarray(with_fourth.transpose(1, 2, 0))[:, :, :3].transpose(2, 0, 1)
    given = together if adjacent else in_bytes
    np.testing.assert_array_equal(colours.changed(given, order), colours.changed(pixels, order), strict=True)


@pytest.mark.parametrize("change", ALL, ids=[name for name, _ in ALL])
@pytest.mark.parametrize("size", [(1, 1), (1, 7), (3, 40)])
def test_a_change_reads_any_layout_and_leaves_its_input(change: colours.Change, size: tuple[int, int]) -> None:
    pixels = random_pixels(1, *size)
    mirrored = pixels[:, :, ::-1]
    before = pixels.copy()
    found = colours.changed(mirrored, [change])
    assert (found.min() >= 0, found.max() <= 1) == (True, True)
    np.testing.assert_array_equal(found, colours.changed(mirrored.copy(), [change]), strict=True)
    np.testing.assert_array_equal(pixels, before)
