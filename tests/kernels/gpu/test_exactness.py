"""GPU kernels beyond ``test_table.py``: exact results, division of work, refused values, and registered kernels."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runner.engine.graph import OPS, Device
from runner.engine.run.wires import platform_of
from runner.kernels.contract import plain
from runner.kernels.gpu import elementwise, linear, normalization, reduction, rows, structural, windows
from runner.kernels.gpu.channels import THREADS, division
from runner.kernels.gpu.layouts import CHANNELS_LAST, channels_last, strides
from runner.kernels.gpu.loading import register_gpus
from runner.kernels.gpu.platform import GpuPlatform
from runner.kernels.gpu.windows import Geometry
from runner.kernels.philox import bits, key
from runner.kernels.registry import Registry
from tests.kernels.gpu.emulation import EmulatedRuntime
from tests.kernels.gpu.libraries import GpuWithCublas
from tests.kernels.gpu.running import Array, drawn_for, registry_of, require_close, run_op
from tests.kernels.harness import Shaped, reference
from tests.op_cases import CASES


def compare(runtime: EmulatedRuntime, module: Any, op: str, inputs: list[Array], attributes: dict[str, Any]) -> None:
    """Require that the kernel of a module gives the bits of the reference."""
    found = run_op(runtime, op, inputs, attributes, registry=registry_of(runtime, module))
    require_close(found, reference(op, inputs, attributes))


@pytest.mark.parametrize("exponent", [0.0, 1.0, 2.0])
def test_whole_powers_are_exact(runtime: EmulatedRuntime, exponent: float) -> None:
    values = np.array([0.0, -1.7, 3.0, np.inf, 1.1], "float32")
    compare(runtime, elementwise, "pow", [values], {"exponent": exponent})


def test_64_bit_offsets_find_the_same_elements(runtime: EmulatedRuntime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runner.kernels.gpu.element_kernels._SMALL", 0)
    inputs = [np.arange(120, dtype="float32").reshape(2, 3, 4, 5), np.arange(3, dtype="float32").reshape(1, 3, 1, 1)]
    compare(runtime, elementwise, "sub", inputs, {})


def test_the_loss_of_a_certain_prediction_is_small_but_not_zero(runtime: EmulatedRuntime) -> None:
    inputs = [np.array([[40.0, 0.0, 0.0]], "float32"), np.array([0])]
    found, _ = run_op(runtime, "softmax_cross_entropy", inputs, {}, registry=registry_of(runtime, rows))
    np.testing.assert_allclose(found, [2 * np.exp(-40.0)], rtol=0.05, atol=2e-16)


@pytest.mark.parametrize("above", [0.0, 0.5])
def test_a_draw_is_compared_with_the_rate_exactly(runtime: EmulatedRuntime, above: float) -> None:
    word = int(bits(key(7, "conv1/w"), np.zeros(1, np.int64), 1, 4)[0, 0])
    given = {"seed": 7, "key": "conv1/w", "shape": (1, 1), "dtype": "float64", "first": 0}
    given["rate"] = (word + above) * 2.0**-32
    inputs = [np.asarray(4, "int64"), np.zeros(1, "int64")]
    (found,) = run_op(runtime, "dropout_mask", inputs, given, registry=registry_of(runtime, structural))
    assert (found[0, 0] == 0) == (above > 0)
    require_close([found], reference("dropout_mask", inputs, given))


@pytest.mark.parametrize("library", ["cuda", "cublas"])
@pytest.mark.parametrize("fusion", list(itertools.product((False, True), repeat=2)))
@pytest.mark.parametrize("result", ["bfloat16", "float32"])
def test_a_product_of_bfloat16_is_rounded_once(
    compiled_sources: Path, result: str, fusion: tuple[bool, bool], library: str
) -> None:
    # The factors are whole numbers and the biases multiples of 1/16, so every sum is exact in float32.
    gpu, rng = GpuWithCublas(compiled_sources), np.random.default_rng(0)
    a, b = rng.integers(-9, 9, (9, 65)).astype("bfloat16"), rng.integers(-9, 9, (20, 65)).astype("bfloat16")
    bias = (rng.integers(-99, 99, 20) / 16).astype("bfloat16")
    attributes = {"transpose_a": False, "transpose_b": True, "bias": fusion[0], "relu": fusion[1], "dtype": result}
    inputs = [a, b, bias] if fusion[0] else [a, b]
    found = run_op(gpu, "matmul_fused", inputs, attributes, registry=registry_of(gpu, linear), library=library)
    require_close(found, reference("matmul_fused", inputs, attributes))


def test_weight_gradients_of_bfloat16_images_may_be_float32(runtime: EmulatedRuntime) -> None:
    op = "conv2d_weight_bias_gradient"
    inputs, attributes = drawn_for(op, CASES[op][0], "bfloat16")
    attributes["dtype"] = "float32"
    registry = registry_of(runtime, windows)
    found = run_op(runtime, op, inputs, attributes, CHANNELS_LAST, registry=registry)
    require_close(found, reference(op, inputs, attributes), 2**-7)


def test_there_may_be_more_partial_sums_of_a_channel_than_rows_of_threads(compiled_sources: Path) -> None:
    gpu, rng = EmulatedRuntime(compiled_sources), np.random.default_rng(2)
    gpu.multiprocessors = 20
    shape = (1200, 64)
    cut = division(gpu.multiprocessors, Shaped(shape, "bfloat16"), channels_last=True)
    assert cut.splits > THREADS // cut.width
    vectors = [rng.uniform(0.5, 2, 64).astype("float32") for _ in range(3)]
    inputs = [rng.normal(3, 1, shape).astype("bfloat16"), *vectors, rng.normal(0, 1, shape).astype("bfloat16")]
    op, epsilon = "batch_norm_gradient", {"epsilon": 1e-3}
    found = run_op(gpu, op, inputs, epsilon, registry=registry_of(gpu, normalization))
    require_close(found, reference(op, inputs, epsilon), 2**-7)


def test_the_variance_of_large_numbers_is_accurate(runtime: EmulatedRuntime) -> None:
    x = (1e4 + np.arange(3000).reshape(-1, 1) % 3).astype(np.float32)
    inputs = [x, np.ones(1, np.float32), np.zeros(1, np.float32)]
    registry = registry_of(runtime, normalization)
    _, _, variance = run_op(runtime, "batch_norm", inputs, {"epsilon": 1e-3}, registry=registry)
    assert variance[0] == pytest.approx(2 / 3, rel=1e-5)


def test_the_special_cases_are_divided_into_several_parts() -> None:
    """With a single part, ``test_table.py`` would not cover the addition of parts."""
    multiprocessors = EmulatedRuntime.multiprocessors
    for shape, last in [((65, 3, 8, 9), False), ((17, 5, 13, 11), True)]:
        assert division(multiprocessors, Shaped(shape, "float32"), last).splits > 1
    many = {"strides": (2, 1), "padding": (1, 2, 2, 1), "dilations": (1, 1), "groups": 1}
    geometry = Geometry(many, (15, 10, 9, 8), (70, 10, 3, 3), (15, 70, 5, 9), channels_last=False)
    assert geometry.splits(multiprocessors)[0] > 1
    assert all(windows.pack_of(dtype, 16) > 1 for dtype in ("float32", "bfloat16"))
    for shape, axes in [((9000,), (0,)), ((3000, 3), (0,)), ((3, 4100), (1,)), ((2, 40, 2000), (0, 2))]:
        near = strides(shape, plain(Shaped(shape, "float32")))
        assert reduction.reduced_shape(shape, near, axes).slices > 1


@pytest.mark.parametrize("last", [False, True])
def test_the_bias_gradient_of_a_convolution_fills_the_gpu(last: bool) -> None:
    images = Shaped((128, 64, 55, 55), "float32")
    lying = channels_last(images) if last else plain(images)
    found = reduction.reduced_shape(images.shape, strides(images.shape, lying), (0, 2, 3))
    assert found.blocks * found.slices >= reduction.ENOUGH_BLOCKS
    assert found.across == (32 if last else 1)


def test_every_thread_adds_at_least_one_term_and_not_too_many() -> None:
    count = 10_000_000
    found = reduction.reduced_shape((count, 1024), (1024, 1), (0,))
    assert found.length * found.across / 256 <= reduction.MOST_PER_THREAD
    assert found.slices * found.length >= count
    # Every thread that works on a row of a softmax has at least one element.
    assert [rows.depth_of(columns) for columns in (1, 4, 5, 10, 1000, 100_000)] == [1, 1, 2, 4, 256, 256]


SCORES = np.zeros((7, 4), "float32")
LABELS = np.array([0, 1, 2, 4, 3, 36, 1])
INDICES = np.array([[0, 3, 1], [2, -7, 4]])
MANY = np.zeros(1000, "int64")
MANY[[300, 556, 999]] = 8, 9, 10


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize(
    ("op", "inputs", "attributes", "index", "place"),
    [
        ("gather", [SCORES[:4], INDICES], {}, -7, "1, 1"),
        ("scatter_add", [INDICES, np.zeros((2, 3, 2), "float32")], {"rows": 4}, -7, "1, 1"),
        ("one_hot", [INDICES], {"depth": 4, "dtype": "float32"}, -7, "1, 1"),
        ("gather", [SCORES[:4], MANY], {}, 8, "300"),
        ("softmax_cross_entropy", [SCORES, LABELS], {}, 4, "3"),
        ("softmax_cross_entropy", [SCORES, LABELS - 1], {}, -1, "0"),
        ("softmax_cross_entropy_gradient", [SCORES, LABELS, SCORES[:, 0]], {}, 4, "3"),
        ("softmax_cross_entropy_gradient", [SCORES, LABELS - 1, SCORES[:, 0]], {}, -1, "0"),
    ],
)
def test_the_error_names_the_first_index_out_of_range(
    runtime: EmulatedRuntime,
    op: str,
    inputs: list[Array],
    attributes: dict[str, Any],
    index: int,
    place: str,
    dtype: str,
) -> None:
    inputs = [each.astype(dtype) if each.dtype == "int64" else each for each in inputs]
    expected = rf"op '{op}': index {index} at \[{place}\] is outside 0\.\.3$"
    with pytest.raises(RuntimeError, match=f"^IndexError: {expected}"):
        run_op(runtime, op, inputs, attributes, registry=registry_of(runtime, rows))
    with pytest.raises(IndexError, match=f"^{expected}"):
        reference(op, inputs, attributes)


def test_a_registry_extended_by_gpus_has_one_of_our_kernels_for_every_op(
    runtime: EmulatedRuntime, registry: Registry
) -> None:
    extended = registry.copy()
    register_gpus(extended, runtime)
    ops = [name for name, definition in OPS.items() if definition.executed_by == "kernel"]
    extended.require(ops, "gpu")
    assert [op for op in ops if "cuda" not in {kernel.library for kernel in extended.of(op, "gpu")}] == []
    device = Device("/job:worker/task:0/device:gpu:0", gpu=0)
    assert isinstance(platform_of(device, extended), GpuPlatform)
    assert registry.device_types("conv2d") == {"cpu"}, "the registry itself does not change"
    assert "gpu" not in registry.platforms
