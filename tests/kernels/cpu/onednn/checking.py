"""Checks that oneDNN kernels agree with the float64 reference in all layouts and keep the padding of blocks zero."""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from runner.kernels.contract import Array, Kernel, Layout, Operand, Spec, plain
from runner.kernels.cpu.loading import register_onednn
from runner.kernels.cpu.onednn.library import Library, load
from runner.kernels.cpu.onednn.memory import BITS, formatted, nbytes, split_tag, viewed
from runner.kernels.registry import Registry
from tests.kernels.harness import Ran, Shaped, converted, exact, is_float, run_node

IMAGE_TAGS = ("", "aBcd16b", "aBcd8b", "acdb")
"""Tags of the layouts of images (N, C, H, W)."""

TOLERANCE = 1e-5
"""Allowed deviation of a float32 result from the float64 one, relative to the largest magnitude of the result."""


@cache
def kernels() -> Registry:
    """Return a registry with only the oneDNN kernels."""
    registry = Registry()
    register_onednn(registry)
    return registry


def library() -> Library:
    return load()


def kernel(op: str) -> Kernel:
    return kernels().find(op, "cpu", "onednn")


def layout(spec: Spec, tag: str) -> Layout:
    """Return the layout of a tensor for a format tag; the empty tag is the plain layout."""
    if not tag:
        return plain(spec)
    prefix, name = split_tag(tag)
    descriptor = formatted(library(), viewed(spec.shape, prefix), spec.dtype, name)
    return Layout(tag, nbytes(library(), descriptor))


def check(
    op: str,
    attributes: Mapping[str, Any],
    arrays: Sequence[Array],
    tags: Sequence[str] | None = None,
    *,
    tolerance: float = TOLERANCE,
) -> Ran:
    """Run the oneDNN kernel on arrays in the layouts of ``tags`` and compare every output with the reference."""
    inputs = [Shaped.of(array) for array in arrays]
    offered = [layout(spec, tag) for spec, tag in zip(inputs, tags or [""] * len(inputs), strict=True)]
    ran = run_node(kernel(op), attributes, arrays, offered, registry=kernels())
    for came, wanted in zip(ran.outputs, exact(op, arrays, attributes), strict=True):
        assert_close(came, wanted, tolerance)
    for operand in ran.outputs_in_memory:
        assert_padding_is_zero(operand)
    return ran


def assert_close(came: Array, wanted: Array, tolerance: float = TOLERANCE) -> None:
    """Require equal values; floats may differ by the tolerance, relative to the largest magnitude in ``wanted``."""
    assert came.shape == wanted.shape
    if is_float(came.dtype.name):
        deviation = np.abs(came.astype(np.float64) - wanted).max()
        assert deviation <= tolerance * np.abs(wanted).max(), f"deviates by {deviation} of {np.abs(wanted).max()}"
    else:
        np.testing.assert_array_equal(came, wanted)


def assert_broken_alike(came: Array, wanted: Array) -> None:
    """Require that both arrays have NaN at the same positions, some but not all, and that other numbers are close."""
    broken = np.isnan(wanted)
    assert 0 < broken.sum() < broken.size
    np.testing.assert_array_equal(np.isnan(came), broken)
    assert_close(came[~broken], wanted[~broken])


def assert_padding_is_zero(operand: Operand) -> None:
    """Require zeros in the padding of blocks that the channels do not fill."""
    if operand.layout.is_plain or split_tag(operand.layout.tag)[0] == BITS:
        return
    there_and_back = converted(kernels(), converted(kernels(), operand, plain(operand.spec)), operand.layout)
    assert np.array_equal(there_and_back.data, operand.data), f"padding of {operand.layout} is not zero"


def normal(seed: int, *shape: int) -> Array:
    """Return normally distributed float32 numbers."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def floats(*shape: int) -> Shaped:
    return Shaped(shape, "float32")
