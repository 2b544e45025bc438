"""Local response normalisation over layouts, window sizes and exponents, with both meanings of alpha."""

from __future__ import annotations

import pytest

from tests.kernels.cpu.onednn.checking import IMAGE_TAGS, check, floats, normal

SETTINGS = [
    pytest.param({"size": 5, "alpha": 1e-2, "beta": 0.75, "k": 2.0, "divide_by_size": True}, id="usual"),
    pytest.param({"size": 5, "alpha": 1e-2, "beta": 0.75, "k": 1.0, "divide_by_size": False}, id="alpha of the sum"),
    pytest.param({"size": 3, "alpha": 0.1, "beta": 0.5, "k": 1.0, "divide_by_size": False}, id="size 3"),
    pytest.param({"size": 7, "alpha": 0.1, "beta": 0.75, "k": 1.0, "divide_by_size": True}, id="size 7"),
    pytest.param({"size": 9, "alpha": 0.1, "beta": 0.6, "k": 2.0, "divide_by_size": False}, id="size 9"),
]
SHAPES = [(2, 32, 5, 6), (2, 20, 5, 6), (1, 3, 4, 4), (2, 48, 3, 3)]


def _taken(shape: tuple[int, ...], tag: str) -> str:
    return "" if tag == "acdb" and shape[1] % 16 else tag


@pytest.mark.parametrize("tag", IMAGE_TAGS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("setting", SETTINGS)
def test_forward(setting: dict[str, float], shape: tuple[int, ...], tag: str) -> None:
    ran = check("local_response_normalization", setting, [3 * normal(1, *shape)], [floats(*shape)], [tag])
    assert ran.tags == ([_taken(shape, tag)], [_taken(shape, tag)])


@pytest.mark.parametrize("tag", IMAGE_TAGS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("setting", SETTINGS)
def test_the_gradient(setting: dict[str, float], shape: tuple[int, ...], tag: str) -> None:
    arrays = [3 * normal(1, *shape), normal(2, *shape)]
    ran = check("local_response_normalization_gradient", setting, arrays, [floats(*shape)], [tag, tag])
    assert ran.tags == ([_taken(shape, tag)] * 2, [_taken(shape, tag)])


def test_what_is_no_image_is_normalised_too() -> None:
    setting = {"size": 5, "alpha": 0.1, "beta": 0.75, "k": 2.0, "divide_by_size": False}
    x, dy = normal(1, 3, 32), normal(2, 3, 32)
    check("local_response_normalization", setting, [x], [floats(3, 32)])
    check("local_response_normalization_gradient", setting, [x, dy], [floats(3, 32)])


def test_the_gradient_brings_dy_to_where_x_is() -> None:
    setting = {"size": 5, "alpha": 0.1, "beta": 0.75, "k": 2.0, "divide_by_size": False}
    shape = (2, 32, 3, 3)
    arrays = [normal(1, *shape), normal(2, *shape)]
    ran = check("local_response_normalization_gradient", setting, arrays, [floats(*shape)], ["aBcd16b", ""])
    assert ran.tags == (["aBcd16b", "aBcd16b"], ["aBcd16b"])
