"""Loops over broadcast tensors: as few axes as say where elements lie."""

from __future__ import annotations

import pytest

from runner.kernels.contract import Layout, plain
from runner.kernels.gpu.broadcasting import Axis, broadcast
from runner.kernels.gpu.layouts import channels_last
from tests.kernels.harness import Shaped


def plainly(*shapes: tuple[int, ...]) -> list[tuple[Shaped, Layout]]:
    specs = [Shaped(shape, "float32") for shape in shapes]
    return [(spec, plain(spec)) for spec in specs]


@pytest.mark.parametrize(
    ("inputs", "result", "wide"),
    [
        ([(3, 5), (3, 5)], (3, 5), (True, True)),
        ([(), (2, 3)], (2, 3), (False, True)),
        ([(1, 1), (3,)], (1, 3), (False, True)),
        ([(1, 3), (3,)], (1, 3), (True, True)),
        ([(), (1,)], (1,), (False, True)),
        ([(0, 1), ()], (0, 5), (True, False)),
        ([(3, 5), (5,)], (3, 5), None),
    ],
)
def test_flat_are_those_that_lie_as_the_result_or_are_one_element(
    inputs: list[tuple[int, ...]], result: tuple[int, ...], wide: tuple[bool, ...] | None
) -> None:
    assert broadcast(plainly(*inputs), *plainly(result)).wide == wide


def test_neighbouring_axes_that_all_inputs_go_along_alike_are_one() -> None:
    loops = broadcast(plainly((2, 3, 4, 5), (1, 3, 1, 1)), *plainly((2, 3, 4, 5)))
    assert loops.axes == (Axis(20, (1, 0)), Axis(3, (20, 1)), Axis(2, (60, 0)))


def test_channels_last_is_walked_from_its_channels_on() -> None:
    x, bias = Shaped((2, 3, 4, 5), "float32"), Shaped((1, 3, 1, 1), "float32")
    loops = broadcast([(x, channels_last(x)), (bias, plain(bias))], (x, channels_last(x)))
    assert loops.axes == (Axis(3, (1, 1)), Axis(40, (3, 0)))
