"""Batch normalization with ReLU: the mask, NaN before the ReLU. ``tests/kernels/cpu/test_table.py`` tests the rest."""

import numpy as np
import pytest

from runner.kernels.contract import Array, Layout, plain
from runner.kernels.cpu.onednn.memory import BITS
from tests.kernels.cpu.onednn import checking
from tests.kernels.cpu.onednn.checking import assert_close, floats, kernel, kernels, normal
from tests.kernels.cpu.onednn.test_layouts import EPSILON, NORMALISED
from tests.kernels.harness import Ran, Shaped, exact, node_of, run, run_node

SHAPE = (4, 20, 5, 6)


def _inputs(shape: tuple[int, ...]) -> list[Array]:
    """Return x, with a mean away from zero, gamma and beta."""
    return [2 * normal(1, *shape) + 1, normal(2, shape[1]), 0.1 * normal(3, shape[1])]


def _with_relu(shape: tuple[int, ...], tag: str, arrays: list[Array] | None = None) -> Ran:
    vector = plain(floats(shape[1]))
    offered = [checking.layout(floats(*shape), tag), vector, vector]
    with np.errstate(all="ignore"):  # as the executor does in every step
        return run_node(kernel("batch_norm_relu"), EPSILON, arrays or _inputs(shape), offered, registry=kernels())


@pytest.mark.parametrize("broken", [0, 1, 2], ids=["x", "gamma", "beta"])
@pytest.mark.parametrize(("shape", "tag"), NORMALISED)
def test_nan_passes_the_relu_to_the_output(shape: tuple[int, ...], tag: str, broken: int) -> None:
    arrays = _inputs(shape)
    arrays[broken].flat[-1] = np.nan
    ran = _with_relu(shape, tag, arrays)
    assert np.isnan(ran.outputs[0]).all()
    assert np.isnan(exact("batch_norm_relu", arrays, EPSILON)[0])[:, -1].all()


@pytest.mark.parametrize(("shape", "tag"), NORMALISED)
def test_nan_from_a_mean_that_overflows_passes_the_relu(shape: tuple[int, ...], tag: str) -> None:
    arrays = _inputs(shape)
    arrays[0][:, 0] = 3e38
    assert np.isnan(_with_relu(shape, tag, arrays).outputs[0][:, 0]).all()


def test_relu_of_infinity_is_not_nan() -> None:
    arrays = _inputs(SHAPE)
    arrays[2][3] = np.inf
    y = _with_relu(SHAPE, "", arrays).outputs[0]
    assert np.isposinf(y[:, 3]).all()
    assert np.isfinite(y[:, :3]).all()


def _gradient(forward: Ran, mask: Layout | None = None, *, in_place: bool = False) -> Ran | None:
    """Run the gradient with x in the layout of the forward pass; None if the kernel refuses the layout of the mask."""
    _, mean, variance, positive = forward.outputs
    x, gamma, _ = _inputs(positive.shape)
    arrays = [x, gamma, mean, variance, positive, normal(6, *x.shape)]
    image, kept = forward.arrangement.inputs[0], forward.outputs_in_memory[3]
    offered = [image, *[plain(floats(len(gamma)))] * 3, mask or kept.layout, image]
    op, node = "batch_norm_relu_gradient", node_of("batch_norm_relu_gradient", arrays, EPSILON)
    inputs = [Shaped.of(array) for array in arrays]
    if kernel(op).arrange(EPSILON, inputs, node.outputs, offered) is None:
        return None
    values = [*arrays[:4], kept if mask is None else positive, arrays[5]]
    ran = run(kernel(op), EPSILON, inputs, node.outputs, values, offered, registry=kernels(), in_place=in_place)
    for came, wanted in zip(ran.outputs, exact(op, arrays, EPSILON), strict=True):
        assert_close(came, wanted)
    checking.assert_padding_is_zero(ran.outputs_in_memory[0])
    return ran


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize(("shape", "tag"), NORMALISED)
def test_the_gradient_with_relu_equals_the_reference(shape: tuple[int, ...], tag: str, in_place: bool) -> None:
    forward = _with_relu(shape, tag)
    ran = _gradient(forward, in_place=in_place)
    assert ran is not None
    assert ran.arrangement.inputs[4] == forward.arrangement.outputs[3], "nothing is converted"
    assert ran.arrangement.inputs[0] == ran.arrangement.inputs[5] == forward.arrangement.inputs[0]


def test_a_plain_mask_is_refused_if_masks_are_bits_and_converted_if_masks_are_bytes() -> None:
    """oneDNN stores a mask as bits with AVX-512 and as bytes without it."""
    forward = _with_relu((2, 16, 3, 3), "aBcd16b")
    kept = forward.arrangement.outputs[3]
    ran = _gradient(forward, plain(forward.outputs_in_memory[3].spec))
    assert (ran is None) == kept.tag.startswith(BITS)
    assert ran is None or ran.arrangement.inputs[4] == kept
