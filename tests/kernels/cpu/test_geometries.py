"""Fast CPU kernels of convolutions, pooling and parts of images agree with the reference in any geometry."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from runner.kernels.contract import Array
from tests.kernels.cpu.test_table import REGISTRY, check
from tests.kernels.harness import reference

Pair = tuple[int, int]
Call = tuple[str, dict[str, Any], list[Array]]
EXTENTS = st.sampled_from([1, 1, 2, 3, 5, 8, 13])
CHANNELS = st.sampled_from([1, 2, 3, 8, 16, 17, 24])


@dataclass(frozen=True)
class Geometry:
    """Windows that move over images. images: (N, C, H, W). outputs: K, the channels of a convolution's results."""

    images: tuple[int, int, int, int]
    outputs: int
    groups: int
    window: Pair
    strides: Pair
    dilations: Pair
    padding: tuple[int, int, int, int]

    @property
    def positions(self) -> Pair:
        """The numbers of positions of the windows, (H, W); below 1 if no window fits."""
        found = []
        for axis in (0, 1):
            extent = self.images[2 + axis] + sum(self.padding[2 * axis : 2 * axis + 2])
            covered = (self.window[axis] - 1) * self.dilations[axis] + 1
            found.append((extent - covered) // self.strides[axis] + 1)
        return found[0], found[1]


@st.composite
def geometries(draw: st.DrawFn, *, pooled: bool = False) -> Geometry:
    """Draw windows with at least one position; the padding of pooled images is smaller than the window."""
    groups = 1 if pooled else draw(st.sampled_from([1, 1, 2, 16]))
    images = draw(st.sampled_from([1, 2, 5])), groups * draw(CHANNELS), draw(EXTENTS), draw(EXTENTS)
    window = draw(st.tuples(*[st.sampled_from([1, 2, 3, 5])] * 2))
    strides = draw(st.sampled_from([(1, 1), (2, 2), (2, 1), (1, 3)]))
    dilations = (1, 1) if pooled else draw(st.sampled_from([(1, 1), (1, 1), (2, 2), (1, 3)]))
    most = [extent - 1 if pooled else 3 for extent in window for _ in range(2)]
    padding = draw(st.tuples(*(st.integers(0, limit) for limit in most)))
    found = Geometry(images, groups * draw(CHANNELS), groups, window, strides, dilations, padding)
    assume(min(found.positions) > 0)
    return found


def convolutions(drawn: Geometry, normal: Callable[..., Array]) -> list[Call]:
    geometry = {name: getattr(drawn, name) for name in ("strides", "padding", "dilations", "groups")}
    x = normal(*drawn.images)
    w = normal(drawn.outputs, drawn.images[1] // drawn.groups, *drawn.window)
    dy = normal(drawn.images[0], drawn.outputs, *drawn.positions)
    of_weights = {**geometry, "weight_shape": w.shape, "dtype": "float32"}
    return [
        ("conv2d", geometry, [x, w]),
        ("conv2d_input_gradient", {**geometry, "input_shape": x.shape}, [dy, w]),
        ("conv2d_weight_gradient", of_weights, [dy, x]),
        ("conv2d_weight_bias_gradient", of_weights, [dy, x]),
        ("conv2d_fused", {**geometry, "bias": True, "residual": True, "relu": True}, [x, w, normal(len(w)), dy]),
    ]


def pooling(drawn: Geometry, normal: Callable[..., Array]) -> list[Call]:
    geometry = {name: getattr(drawn, name) for name in ("window", "strides", "padding")}
    x, dy = normal(*drawn.images), normal(*drawn.images[:2], *drawn.positions)
    of_inputs, pad = {**geometry, "input_shape": x.shape}, drawn.padding
    calls: list[Call] = [
        ("max_pool", geometry, [x]),
        ("concat", {"axis": 1}, [x, normal(*drawn.images)]),
        ("pad", {"low": pad, "high": pad[::-1]}, [x]),
        ("reduce_mean", {"axes": (2, 3), "keepdims": True}, [x]),
    ]
    if min(np.subtract(drawn.strides, drawn.window)) >= 0:  # the sums of windows that overlap are rounded
        calls.append(("max_pool_gradient", of_inputs, [dy, reference("max_pool", [x], geometry)[1]]))
    for counted in ({"count_padding": True}, {"count_padding": False}):
        calls += [("avg_pool", geometry | counted, [x]), ("avg_pool_gradient", of_inputs | counted, [dy])]
    return calls


@pytest.mark.parametrize(("pooled", "calls"), [(False, convolutions), (True, pooling)])
def test_kernels_give_the_results_of_the_reference_in_any_geometry(
    pooled: bool, calls: Callable[[Geometry, Callable[..., Array]], list[Call]]
) -> None:
    @settings(max_examples=60)
    @given(geometries(pooled=pooled))
    def compared(drawn: Geometry) -> None:
        rng = np.random.default_rng(0)
        for op, attributes, arrays in calls(drawn, lambda *shape: rng.standard_normal(shape).astype(np.float32)):
            for kernel in REGISTRY.of(op, "cpu"):
                if kernel.library != "numpy" and "float32" in kernel.dtypes:
                    check(kernel, attributes, arrays)

    compared()
