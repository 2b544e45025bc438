"""Convolution kernels on an emulated GPU, where the reference kernels stand in for the plans of cuDNN."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runner.kernels.contract import Choice, KernelError
from runner.kernels.gpu.cudnn import convolution
from runner.kernels.gpu.cudnn.graphs import Convolution
from runner.kernels.registry import Registry
from tests.kernels.gpu.emulation import EmulatedRuntime
from tests.kernels.gpu.libraries import GpuWithLibraries, ReferencePlanner
from tests.kernels.gpu.running import chosen, drawn_for, offers_for, registry_of, require_close, run_choice, run_op
from tests.kernels.harness import Shaped, node_of, reference
from tests.op_cases import CASES

OPS = ("conv2d", "conv2d_fused", "conv2d_input_gradient", "conv2d_weight_gradient", "conv2d_weight_bias_gradient")
ONE = {"strides": (1, 1), "padding": (1, 1, 1, 1), "dilations": (1, 1), "groups": 1}


@pytest.fixture
def planner() -> ReferencePlanner:
    """Return a planner whose plans compute with the reference kernels."""
    return ReferencePlanner()


@pytest.fixture
def runtime(compiled_sources: Path, planner: ReferencePlanner) -> GpuWithLibraries:
    """Return an emulated GPU with cuDNN."""
    return GpuWithLibraries(compiled_sources, planner=planner)


@pytest.fixture
def registry(runtime: GpuWithLibraries) -> Registry:
    """Return a registry with only the cuDNN kernels."""
    return registry_of(runtime, convolution)


def normal(*shape: int, dtype: str = "float32") -> np.ndarray[Any, Any]:
    """Return normally distributed numbers."""
    return np.random.default_rng(7).standard_normal(shape).astype(dtype)


INPUTS = [normal(2, 3, 5, 5), normal(4, 3, 3, 3)]


def choice_of(registry: Registry) -> Choice:
    """Return the chosen kernel for a convolution of INPUTS, with its arrangement."""
    specs = [Shaped.of(each) for each in INPUTS]
    return chosen(registry, node_of("conv2d", INPUTS, ONE), specs, offers_for(specs, None), None)


@pytest.mark.parametrize("op", ["conv2d_weight_gradient", "conv2d_weight_bias_gradient"])
def test_gradients_of_bfloat16_filters_may_be_float32_and_bias_sums_are_not_rounded(
    runtime: GpuWithLibraries, registry: Registry, op: str
) -> None:
    inputs = [normal(3, 40, 20, 20, dtype="bfloat16"), normal(3, 2, 20, 20, dtype="bfloat16")]
    attributes = {**ONE, "weight_shape": (40, 2, 3, 3), "dtype": "float32"}
    found = run_op(runtime, op, inputs, attributes, registry=registry)
    wide = [each.astype(np.float32) for each in inputs]
    expected = reference(op, wide, attributes)
    require_close(found[:1], [expected[0].astype("bfloat16").astype(np.float32)], 1e-2)
    assert (found[0].view(np.uint32) & 0xFFFF == 0).all()
    require_close(found[1:], expected[1:], 2e-5)


def test_images_and_filters_have_their_channels_last(registry: Registry) -> None:
    inputs = [normal(2, 3, 5, 5), normal(4, 3, 3, 3), normal(4)]
    node = node_of("conv2d_fused", inputs, {**ONE, "bias": True, "residual": False, "relu": True})
    specs = [Shaped.of(each) for each in inputs]
    arrangement = chosen(registry, node, specs, offers_for(specs, None), None).arrangement
    assert [layout.tag for layout in (*arrangement.inputs, *arrangement.outputs)] == ["nhwc", "nhwc", "", "nhwc"]


@pytest.mark.parametrize(("workspace", "scratch"), [(131, 256 + 256), (0, 0)])
def test_scratch_memory_has_room_to_align_the_workspace(
    runtime: GpuWithLibraries, registry: Registry, planner: ReferencePlanner, workspace: int, scratch: int
) -> None:
    planner.workspace_bytes = workspace
    choice = choice_of(registry)
    assert choice.arrangement.scratch_bytes == scratch
    found = run_choice(runtime, node_of("conv2d", INPUTS, ONE), choice, INPUTS)
    require_close(found, reference("conv2d", INPUTS, ONE), 2e-5)
    planner.workspace_bytes = 1000
    with pytest.raises(ValueError, match=r"cuDNN has no plan for .* with \d+ bytes of workspace, as arranged"):
        run_choice(runtime, node_of("conv2d", INPUTS, ONE), choice, INPUTS)


def test_images_without_elements_are_refused(
    runtime: GpuWithLibraries, registry: Registry, planner: ReferencePlanner
) -> None:
    with pytest.raises(KernelError):
        run_op(runtime, "conv2d", [normal(0, 3, 5, 5), normal(4, 3, 3, 3)], ONE, registry=registry)
    assert planner.asked == []


@pytest.mark.parametrize("op", OPS)
def test_a_convolution_without_a_plan_is_refused(
    runtime: GpuWithLibraries, registry: Registry, planner: ReferencePlanner, op: str
) -> None:
    planner.refuses = lambda _: True
    inputs, attributes = drawn_for(op, CASES[op][0], "float64")
    with pytest.raises(KernelError):
        run_op(runtime, op, inputs, attributes, registry=registry)
    assert {type(each) for each in planner.asked} == {Convolution}


def test_without_cudnn_there_are_no_kernels(compiled_sources: Path) -> None:
    assert convolution.kernels(EmulatedRuntime(compiled_sources)) == []
