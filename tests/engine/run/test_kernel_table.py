"""Loading of the kernels that a process needs."""

from pathlib import Path
from unittest.mock import Mock, call

import numpy as np
import pytest

from runner.engine.graph import OPS, GpuOptions, Gpus, TensorSpec, local_cluster
from runner.engine.graph.op import ByDecomposition, OpDef, register
from runner.engine.graph.ops.common import decomposition, like_input
from runner.engine.run.kernel_table import kernels_for, load_gpu_kernels, load_kernels
from runner.errors import ResourceError
from runner.kernels.contract import KernelError
from runner.kernels.gpu.cuda import GpusError
from tests.kernels import harness
from tests.kernels.gpu.emulation import EmulatedRuntime
from tests.op_cases import all_cases
from tests.plugin_tables import restored_tables


def test_only_reference_kernels_compute_float64_arrays_on_the_cpu() -> None:
    tried = 0
    for op, case, label in all_cases():
        graph, inputs, node = case.build(op)
        specs = [graph.spec(tensor) for tensor in inputs]
        if OPS[op].executed_by == "kernel" and any(s.dtype == "float64" and s.shape for s in (*specs, *node.outputs)):
            choice = load_kernels().choose(op, "cpu", node.attributes, specs, node.outputs, [None] * len(specs))
            assert choice.kernel.library == "numpy", label
            tried += 1
    assert tried > 100


def test_op_without_numpy_kernel_is_computed_by_its_decomposition_and_rounded_once() -> None:
    step = 2.0**-8  # Half a unit in the last place of 1 in bfloat16.
    op = OpDef("raised", like_input(), ByDecomposition(), 1, decompose=decomposition(lambda _, x: [x + step + step]))
    x, specs = np.array([1.0, 0.5], "bfloat16"), [TensorSpec((2,), "bfloat16")]
    with restored_tables():
        register(op)
        ran = harness.run(load_kernels().find("raised", "cpu", "numpy"), {}, specs, specs, [x])
    np.testing.assert_array_equal(ran.outputs[0], np.array([1.0 + 2 * step, 0.5 + 2 * step], "bfloat16"))


def test_decomposition_into_an_op_without_numpy_function_is_refused() -> None:
    rest = (like_input(), ByDecomposition(), 1)
    parts = OpDef("parts", *rest, decompose=lambda graph, inputs, _: graph.add("whole", inputs).tensors)
    whole = OpDef("whole", *rest, decompose=lambda graph, inputs, _: graph.add("neg", inputs).tensors)
    specs = [TensorSpec((2,), "float32")]
    expected = "op 'parts' has no kernel, and op 'whole' of its decomposition has no NumPy function"
    with restored_tables():
        for definition in (whole, parts):
            register(definition)
        kernel = load_kernels().find("parts", "cpu", "numpy")
        with pytest.raises(KernelError, match=expected):
            harness.run(kernel, {}, specs, specs, [np.zeros(2, "float32")])


USE = GpuOptions(tf32=True, compare_plans=True, code_folder="/kept")
ON_GPUS = local_cluster(1, gpus=Gpus((2,), use=USE)).devices


def test_gpus_are_opened_once_and_only_if_a_device_needs_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opening = Mock(side_effect=[GpusError("CUDA finds none; check CUDA_VISIBLE_DEVICES"), EmulatedRuntime(tmp_path)])
    monkeypatch.setattr("runner.kernels.gpu.cuda.open_gpus", opening)
    load_gpu_kernels.cache_clear()
    try:
        assert kernels_for(local_cluster(1).devices) is load_kernels()
        opening.assert_not_called()
        with pytest.raises(ResourceError, match=r"^CUDA finds none; check CUDA_VISIBLE_DEVICES$"):
            kernels_for(ON_GPUS)
        found = kernels_for(ON_GPUS)
        assert kernels_for(ON_GPUS) is found
    finally:
        load_gpu_kernels.cache_clear()
    assert opening.mock_calls == [call(True, compare_plans=True, code_folder="/kept", home=2)] * 2
    assert found.device_types("conv2d") == {"cpu", "gpu"}
    assert load_kernels().device_types("conv2d") == {"cpu"}
