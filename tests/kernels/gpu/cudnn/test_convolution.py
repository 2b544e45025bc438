"""The kernels around cuDNN's plans: what goes where, on an emulated GPU whose plans compute with reference kernels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runner.kernels.contract import KernelError
from runner.kernels.gpu.cudnn import convolution
from runner.kernels.gpu.cudnn.description import Convolution
from runner.kernels.gpu.layouts import CHANNELS_LAST
from runner.kernels.registry import Registry
from tests.kernels.gpu.cudnn.planning import ReferencePlanner, RuntimeWithCudnn
from tests.kernels.gpu.running import (
    DTYPES,
    chosen,
    drawn,
    node_of,
    offers_for,
    reference,
    registry_of,
    require_close,
    run_choice,
    run_op,
)
from tests.kernels.harness import Shaped
from tests.op_cases import CASES

OPS = ("conv2d", "conv2d_fused", "conv2d_input_gradient", "conv2d_weight_gradient", "conv2d_weight_bias_gradient")
TOLERANCES = {"float32": 2e-5, "float64": 1e-12, "bfloat16": 2e-2}
ONE = {"strides": (1, 1), "padding": (1, 1, 1, 1), "groups": 1}


@pytest.fixture
def planner() -> ReferencePlanner:
    """Plans that compute with the reference kernels."""
    return ReferencePlanner()


@pytest.fixture(params=[False, True], ids=["first_thread_first", "last_thread_first"])
def runtime(request: pytest.FixtureRequest, compiled_sources: Path, planner: ReferencePlanner) -> RuntimeWithCudnn:
    """An emulated GPU that has a cuDNN."""
    gpu = RuntimeWithCudnn(compiled_sources, reversed=request.param)
    gpu.planner = planner
    return gpu


@pytest.fixture
def registry(runtime: RuntimeWithCudnn) -> Registry:
    """Kernels of cuDNN alone."""
    return registry_of(runtime, convolution)


def normal(*shape: int, dtype: str = "float32") -> np.ndarray[Any, Any]:
    """Any numbers."""
    return np.random.default_rng(7).standard_normal(shape).astype(dtype)


@pytest.mark.parametrize("layouts", [None, CHANNELS_LAST])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", OPS)
def test_the_cases_of_the_table(
    runtime: RuntimeWithCudnn, registry: Registry, op: str, dtype: str, layouts: str | None
) -> None:
    for case in CASES[op]:
        inputs, attributes = drawn(case, dtype)
        found = run_op(runtime, op, inputs, attributes, layouts, registry=registry)
        require_close(found, reference(op, inputs, attributes), TOLERANCES[dtype])


@pytest.mark.parametrize("op", ["conv2d_weight_gradient", "conv2d_weight_bias_gradient"])
def test_filters_of_bfloat16_are_widened_and_sums_of_the_bias_are_not_rounded(
    runtime: RuntimeWithCudnn, registry: Registry, op: str
) -> None:
    inputs = [normal(3, 40, 20, 20, dtype="bfloat16"), normal(3, 2, 20, 20, dtype="bfloat16")]
    attributes = {**ONE, "weight_shape": (40, 2, 3, 3), "dtype": "float32"}
    found = run_op(runtime, op, inputs, attributes, registry=registry)
    wide = [each.astype(np.float32) for each in inputs]
    expected = reference(op, wide, attributes)
    require_close(found[:1], [expected[0].astype("bfloat16").astype(np.float32)], 1e-2)
    assert (found[0].view(np.uint32) & 0xFFFF == 0).all()
    require_close(found[1:], expected[1:], 2e-5)


def test_every_image_and_filter_has_its_channels_last(runtime: RuntimeWithCudnn, registry: Registry) -> None:
    inputs = [normal(2, 3, 5, 5), normal(4, 3, 3, 3), normal(4)]
    node = node_of("conv2d_fused", inputs, {**ONE, "bias": True, "residual": False, "relu": True})
    specs = [Shaped.of(each) for each in inputs]
    arrangement = chosen(registry, node, specs, offers_for(specs, None), None).arrangement
    assert [layout.tag for layout in (*arrangement.inputs, *arrangement.outputs)] == ["nhwc", "nhwc", "", "nhwc"]


def test_scratch_memory_holds_an_aligned_workspace_wherever_it_begins(
    runtime: RuntimeWithCudnn, registry: Registry
) -> None:
    inputs = [normal(2, 3, 5, 5), normal(4, 3, 3, 3)]
    specs = [Shaped.of(each) for each in inputs]
    node = node_of("conv2d", inputs, ONE)
    assert chosen(registry, node, specs, offers_for(specs, None), None).arrangement.scratch_bytes == 256 + 256


def test_a_plan_without_workspace_asks_for_no_scratch_memory(
    runtime: RuntimeWithCudnn, registry: Registry, planner: ReferencePlanner
) -> None:
    planner.workspace_bytes = 0
    inputs = [normal(2, 3, 5, 5), normal(4, 3, 3, 3)]
    specs = [Shaped.of(each) for each in inputs]
    node = node_of("conv2d", inputs, ONE)
    assert chosen(registry, node, specs, offers_for(specs, None), None).arrangement.scratch_bytes == 0
    require_close(run_op(runtime, "conv2d", inputs, ONE, registry=registry), reference("conv2d", inputs, ONE), 2e-5)


def test_a_plan_that_wants_more_than_was_arranged_is_refused(
    runtime: RuntimeWithCudnn, registry: Registry, planner: ReferencePlanner
) -> None:
    inputs = [normal(2, 3, 5, 5), normal(4, 3, 3, 3)]
    specs = [Shaped.of(each) for each in inputs]
    node = node_of("conv2d", inputs, ONE)
    choice = chosen(registry, node, specs, offers_for(specs, None), None)
    planner.workspace_bytes = 1000
    with pytest.raises(ValueError, match=r"cuDNN has no plan for .* with 256 bytes of workspace, as they"):
        run_choice(runtime, node, choice, inputs)


def test_images_without_elements_are_left_to_others(
    runtime: RuntimeWithCudnn, registry: Registry, planner: ReferencePlanner
) -> None:
    with pytest.raises(KernelError):
        run_op(runtime, "conv2d", [normal(0, 3, 5, 5), normal(4, 3, 3, 3)], ONE, registry=registry)
    assert planner.asked == []


@pytest.mark.parametrize("op", OPS)
def test_what_cudnn_has_no_plan_for_is_left_to_others(
    runtime: RuntimeWithCudnn, registry: Registry, planner: ReferencePlanner, op: str
) -> None:
    planner.refuses = lambda _: True
    inputs, attributes = drawn(CASES[op][0], "float64")
    with pytest.raises(KernelError):
        run_op(runtime, op, inputs, attributes, registry=registry)
    assert {type(each) for each in planner.asked} == {Convolution}


def test_without_cudnn_there_are_no_kernels_of_it(compiled_sources: Path) -> None:
    assert convolution.kernels(RuntimeWithCudnn(compiled_sources)) == []
