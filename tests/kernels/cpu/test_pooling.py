"""Max pooling in machine code: NaN, ties, layouts of positions, refused nodes. ``test_table.py`` compares the rest."""

from typing import Any

import numpy as np
import pytest

from runner.engine.run.kernel_table import load_kernels
from runner.kernels.contract import Array, Kernel, Layout
from runner.kernels.cpu.machine_code.pooling import Pooling, write_module
from tests.kernels.cpu.layout_cases import POOLS, slid
from tests.kernels.cpu.onednn.checking import IMAGE_TAGS, kernels, layout, normal
from tests.kernels.cpu.onednn.test_layouts import attributes_of
from tests.kernels.harness import Ran, Shaped, arranged, exact, run_node

EXAMPLE = ((2, 20, 9, 8), (3, 3), (2, 2), (1, 1, 1, 1))


def kernel() -> Kernel:
    return load_kernels().find("max_pool", "cpu", "llvm")


def pooled(geometry: Any, x: Array, tag: str) -> Ran:
    offered = [layout(Shaped.of(x), tag)]
    return run_node(kernel(), attributes_of(*geometry[1:]), [x], offered, registry=kernels())


def truth(geometry: Any, x: Array) -> list[Array]:
    return exact("max_pool", [x], attributes_of(*geometry[1:]))


@pytest.mark.parametrize("tag", IMAGE_TAGS)
@pytest.mark.parametrize("geometry", POOLS)
def test_a_maximum_over_nan_is_nan(geometry: Any, tag: str) -> None:
    x = normal(1, *geometry[0])
    x.flat[:: x.size // 7] = np.nan
    ran = pooled(geometry, x, tag)
    assert ran.tags[0] == [tag] == [ran.arrangement.outputs[0].tag], "images keep their layout"
    (y, _), (wanted, _) = ran.outputs, truth(geometry, x)
    assert 0 < np.isnan(wanted).sum() < wanted.size
    np.testing.assert_array_equal(y, wanted.astype(np.float32))


@pytest.mark.parametrize("tag", IMAGE_TAGS)
@pytest.mark.parametrize("value", [0.0, -np.inf, np.inf])
def test_the_first_of_equal_values_is_the_maximum(value: float, tag: str) -> None:
    x = np.full(EXAMPLE[0], value, np.float32)
    for came, wanted in zip(pooled(EXAMPLE, x, tag).outputs, truth(EXAMPLE, x), strict=True):
        np.testing.assert_array_equal(came, wanted)


@pytest.mark.parametrize("tag", IMAGE_TAGS[1:])
@pytest.mark.parametrize("window", [(3, 3), (15, 17), (16, 16), (16, 17)])
def test_positions_have_the_layout_that_the_gradient_takes(window: tuple[int, int], tag: str) -> None:
    geometry = ((2, 20, 18, 18), window, (2, 2), (1, 1, 1, 1))
    ours = pooled(geometry, normal(1, *geometry[0]), tag).arrangement
    result = (*geometry[0][:2], *slid(*geometry))
    onednn = kernels().find("max_pool", "cpu", "onednn")
    outputs = [Shaped(result, "float32"), Shaped(result, "int32")]
    theirs = arranged(onednn, attributes_of(*geometry[1:]), [Shaped(geometry[0], "float32")], outputs, ours.inputs)
    assert ours.outputs == theirs.outputs


def test_other_layouts_and_empty_images_are_refused() -> None:
    def arranged(shape: tuple[int, ...], given: Layout | None) -> object:
        outputs = [Shaped((*shape[:2], 1, 1), "float32"), Shaped((*shape[:2], 1, 1), "int32")]
        window = attributes_of((2, 2), (2, 2), (0, 0, 0, 0))
        return kernel().arrange(window, [Shaped(shape, "float32")], outputs, [given])

    assert arranged((2, 16, 2, 2), Layout("ABcd16b16a", 16 * 16 * 16)) is None
    assert arranged((0, 16, 2, 2), None) is None
    assert arranged((2, 16, 2, 2), None) is not None


def test_machine_code_has_priority_over_onednn_which_ignores_nan() -> None:
    assert load_kernels().of("max_pool", "cpu")[0].library == "llvm"


@pytest.mark.parametrize("lanes", [4, 8, 16])
def test_code_is_generated_for_every_vector_width(lanes: int) -> None:
    for inner in (1, 16, 20):
        assert "define void" in write_module(
            Pooling("float32", (3, 3), (2, 2), (1, 1, 1, 1), inner, min(lanes, inner), in_bytes=True)
        )
