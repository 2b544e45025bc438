"""Layouts of local response normalization; the table compares its values."""

import pytest

from tests.kernels.cpu.onednn.checking import IMAGE_TAGS, check, kernel, layout, normal
from tests.kernels.harness import Shaped

USUAL = {"size": 5, "alpha": 0.1, "beta": 0.75, "k": 2.0, "divide_by_size": False}
OP = "local_response_normalization"


@pytest.mark.parametrize(
    ("channels", "size", "dtype", "refused"),
    [
        (32, 5, "float32", ()),
        (20, 5, "float32", ("acdb",)),
        (32, 9, "float32", ()),
        (32, 5, "bfloat16", ()),
        (32, 7, "bfloat16", ("acdb",)),
    ],
)
def test_layouts_with_wrong_gradients_become_plain(channels: int, size: int, dtype: str, refused: tuple[str]) -> None:
    x = Shaped((2, channels, 5, 6), dtype)
    for tag in IMAGE_TAGS:
        found = kernel(f"{OP}_gradient").arrange({**USUAL, "size": size}, [x, x], [x], [layout(x, tag)] * 2)
        if found is None:
            pytest.skip(f"oneDNN has no {dtype} on this CPU")
        taken = "" if tag in refused else tag
        assert [each.tag for each in (*found.inputs, *found.outputs)] == [taken] * 3


def test_the_gradient_converts_dy_to_the_layout_of_x() -> None:
    arrays = [normal(1, 2, 32, 3, 3), normal(2, 2, 32, 3, 3)]
    ran = check(f"{OP}_gradient", USUAL, arrays, [Shaped.of(arrays[0])], ["aBcd16b", ""])
    assert ran.tags == (["aBcd16b", "aBcd16b"], ["aBcd16b"])
