"""Products on an emulated GPU, of our own kernel and of a BLAS, against the reference kernels."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runner.kernels.gpu import cublas, fused_linear, linear, matmul_elementwise
from runner.kernels.gpu.cublas import ColumnMajor, Product, column_major
from runner.kernels.registry import Registry
from tests.kernels.gpu.blas import GpuWithCublas, matrix_at, operated
from tests.kernels.gpu.emulation import EmulatedRuntime
from tests.kernels.gpu.running import DTYPES, drawn, reference, registry_of, require_close, run_op
from tests.kernels.harness import Shaped
from tests.op_cases import CASES

Array = np.ndarray[Any, Any]
OPS = ("matmul", "matmul_fused", "matmul_bias_gradient", "matmul_elementwise")
TOLERANCES = {"float32": 5e-6, "float64": 1e-13, "bfloat16": 2e-2}
TURNS = list(itertools.product((False, True), repeat=2))


@pytest.fixture
def gpu(compiled_sources: Path, monkeypatch: pytest.MonkeyPatch) -> GpuWithCublas:
    """An emulated GPU with cuBLAS, which wants little memory."""
    monkeypatch.setattr(cublas, "WORKSPACE_BYTES", 1000)
    return GpuWithCublas(compiled_sources)


def products(runtime: EmulatedRuntime) -> Registry:
    """All kernels of products."""
    return registry_of(runtime, linear, fused_linear, matmul_elementwise)


def factors(
    m: int, k: int, n: int, transpose_a: bool, transpose_b: bool, dtype: str = "float32"
) -> tuple[list[Array], dict[str, Any]]:
    """Two matrices as stored, and the attributes that say so."""
    rng = np.random.default_rng(8)
    a = rng.standard_normal((k, m) if transpose_a else (m, k)).astype(dtype)
    b = rng.standard_normal((n, k) if transpose_b else (k, n)).astype(dtype)
    return [a, b], {"transpose_a": transpose_a, "transpose_b": transpose_b}


@pytest.mark.parametrize("library", ["cuda", "cublas"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", OPS)
def test_the_cases_of_the_table(gpu: GpuWithCublas, op: str, dtype: str, library: str) -> None:
    registry = products(gpu)
    for case in CASES[op]:
        inputs, attributes = drawn(case, dtype)
        found = run_op(gpu, op, inputs, attributes, registry=registry, library=library)
        require_close(found, reference(op, inputs, attributes), TOLERANCES[dtype])


@pytest.mark.parametrize("library", ["cuda", "cublas"])
@pytest.mark.parametrize("turns", TURNS)
@pytest.mark.parametrize("extents", [(1, 1, 1), (65, 33, 70), (3, 100, 130), (64, 16, 64)])
def test_tiles_that_are_full_and_not(
    gpu: GpuWithCublas, extents: tuple[int, int, int], turns: tuple[bool, bool], library: str
) -> None:
    inputs, attributes = factors(*extents, *turns)
    found = run_op(gpu, "matmul", inputs, attributes, registry=products(gpu), library=library)
    require_close(found, reference("matmul", inputs, attributes), 2e-5)


def test_threads_of_a_tile_wait_for_each_other(either_order: EmulatedRuntime) -> None:
    inputs, attributes = factors(70, 40, 66, True, False)
    found = run_op(either_order, "matmul", inputs, attributes, registry=products(either_order))
    require_close(found, reference("matmul", inputs, attributes), 2e-5)


@pytest.mark.parametrize("extents", [(0, 3, 2), (3, 0, 2), (3, 2, 0)])
def test_empty_factors_are_left_to_our_own_kernel(gpu: GpuWithCublas, extents: tuple[int, int, int]) -> None:
    inputs, attributes = factors(*extents, False, False)
    for op, more, added in (
        ("matmul", {}, []),
        ("matmul_fused", {"bias": True, "relu": True, "dtype": "float32"}, [np.ones(extents[2], "float32")]),
        ("matmul_elementwise", {"dtype": "float32", "program": "square 0", "outputs": (1,), "product": 0}, []),
    ):
        found = run_op(gpu, op, [*inputs, *added], {**attributes, **more}, registry=products(gpu))
        require_close(found, reference(op, [*inputs, *added], {**attributes, **more}))
    assert gpu.native.computed == []


@pytest.mark.parametrize("library", ["cuda", "cublas"])
@pytest.mark.parametrize("fusion", [(True, True), (True, False), (False, True), (False, False)])
@pytest.mark.parametrize("result", ["bfloat16", "float32"])
def test_a_product_of_bfloat16_is_rounded_once(
    gpu: GpuWithCublas, result: str, fusion: tuple[bool, bool], library: str
) -> None:
    # Whole numbers, and sixteenths for the bias: every sum is exact in float32.
    rng = np.random.default_rng(0)
    a, b = rng.integers(-9, 9, (9, 65)).astype("bfloat16"), rng.integers(-9, 9, (20, 65)).astype("bfloat16")
    bias = (rng.integers(-99, 99, 20) / 16).astype("bfloat16")
    attributes = {"transpose_a": False, "transpose_b": True, "bias": fusion[0], "relu": fusion[1], "dtype": result}
    inputs = [a, b, bias] if fusion[0] else [a, b]
    found = run_op(gpu, "matmul_fused", inputs, attributes, registry=products(gpu), library=library)
    require_close(found, reference("matmul_fused", inputs, attributes))


@pytest.mark.parametrize("library", ["cuda", "cublas"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_both_gradients_of_a_long_batch(gpu: GpuWithCublas, dtype: str, library: str) -> None:
    rng = np.random.default_rng(4)
    inputs = [rng.standard_normal(shape).astype(dtype) for shape in ((1500, 3), (1500, 5))]
    op, attributes = "matmul_bias_gradient", {"dtype": "float32"}
    found = run_op(gpu, op, inputs, attributes, registry=products(gpu), library=library)
    exact = reference(op, [each.astype("float64") for each in inputs], {"dtype": "float64"})
    require_close(found, [each.astype("float32") for each in exact], 1e-4)


@pytest.mark.parametrize("library", ["cuda", "cublas"])
def test_outputs_of_a_chain_may_take_the_place_of_its_operands(gpu: GpuWithCublas, library: str) -> None:
    for case in CASES["matmul_elementwise"]:
        inputs, attributes = drawn(case, "float32")
        if len(attributes["outputs"]) == 1:
            found = run_op(
                gpu,
                "matmul_elementwise",
                inputs,
                attributes,
                registry=products(gpu),
                library=library,
                in_place=True,
            )
            require_close(found, reference("matmul_elementwise", inputs, attributes), 5e-6)


def test_nan_passes_a_relu(gpu: GpuWithCublas) -> None:
    a, b = np.array([[np.nan], [-1.0]], "float32"), np.ones((1, 1), "float32")
    attributes = {"transpose_a": False, "transpose_b": False, "bias": False, "relu": True, "dtype": "float32"}
    for library in ("cuda", "cublas"):
        found = run_op(gpu, "matmul_fused", [a, b], attributes, registry=products(gpu), library=library)
        require_close(found, [np.array([[np.nan], [0.0]], "float32")])


@pytest.mark.parametrize("turns", TURNS)
def test_row_major_products_as_column_major_ones(turns: tuple[bool, bool]) -> None:
    (a, b), _ = factors(3, 4, 5, *turns, "float64")
    told = column_major(Product(3, 5, 4, "float64", "float64", *turns))
    first = operated(b.ctypes.data, "float64", told.m, told.k, told.first_leading, told.transpose_first)
    second = operated(a.ctypes.data, "float64", told.k, told.n, told.second_leading, told.transpose_second)
    y = np.zeros((3, 5))
    matrix_at(y.ctypes.data, "float64", told.m, told.n, told.leading)[:] = first @ second
    np.testing.assert_allclose(y, (a.T if turns[0] else a) @ (b.T if turns[1] else b))


def test_the_column_major_product_in_numbers() -> None:
    product = Product(3, 5, 4, "float32", "float32", transpose_a=True)
    assert column_major(product) == ColumnMajor(False, True, 5, 3, 4, 5, 3, 5)


@pytest.mark.parametrize(
    ("dtype", "tf32", "computed"),
    [("float32", False, 68), ("float32", True, 77), ("float64", True, 70), ("bfloat16", True, 68)],
)
def test_only_float32_may_be_computed_in_less(
    compiled_sources: Path, dtype: str, tf32: bool, computed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cublas, "WORKSPACE_BYTES", 1000)
    gpu = GpuWithCublas(compiled_sources, tf32=tf32)
    inputs, attributes = factors(3, 4, 5, False, False, dtype)
    run_op(gpu, "matmul", inputs, attributes, registry=products(gpu))
    assert gpu.native.computed == [computed]


def test_a_handle_is_made_when_a_product_is_bound(gpu: GpuWithCublas) -> None:
    (multiplier,) = (each for each in linear.multipliers(gpu) if each.library == "cublas")
    multiplier.call(linear.Dense(Product(1, 1, 1, "float32", "float32")), 0, 0, 0, 0, 0)
    assert len(gpu.native.handles) == 1


@pytest.mark.parametrize("scratch", [1 << 20, (1 << 20) + 64, (1 << 20) + 1])
def test_a_workspace_is_aligned_within_the_scratch_memory(gpu: GpuWithCublas, scratch: int) -> None:
    (multiplier,) = (each for each in linear.multipliers(gpu) if each.library == "cublas")
    dense = linear.Dense(Product(1, 1, 1, "float32", "float32"))
    multiplier.call(dense, 0, 0, 0, 0, scratch).enqueue(gpu.stream())
    address, nbytes = gpu.native.lent[-1]
    assert address % 256 == 0
    assert scratch <= address <= address + nbytes <= scratch + multiplier.scratch_bytes(dense)


def test_a_workspace_that_is_refused_is_an_error(gpu: GpuWithCublas) -> None:
    functions = replace(gpu.native.functions, set_workspace=lambda handle, address, nbytes: 7)
    library = cublas.CublasLibrary(gpu.native, functions, lambda: 0, tf32=False)
    with pytest.raises(RuntimeError, match=r"cublasSetWorkspace of 1000 bytes at 0x100: status 7"):
        library.enqueue(gpu.stream(), Product(1, 1, 1, "float32", "float32"), 0, 0, 0, 256)


def test_a_product_that_is_refused_is_an_error(gpu: GpuWithCublas) -> None:
    functions = replace(gpu.native.functions, gemm=lambda *told: 15)
    library = cublas.CublasLibrary(gpu.native, functions, lambda: 0, tf32=False)
    with pytest.raises(RuntimeError, match=r"cublasGemmEx of Product\(m=1, n=2, k=3, .*: status 15"):
        library.enqueue(gpu.stream(), Product(1, 2, 3, "float32", "float32"), 0, 0, 0, 256)


def test_every_gpu_has_a_handle_of_its_own(gpu: GpuWithCublas) -> None:
    current = [0]
    library = cublas.CublasLibrary(gpu.native, gpu.native.functions, lambda: current[0], tf32=False)
    for number in (0, 1, 0, 1):
        current[0] = number
        library.prepare()
    assert len(gpu.native.handles) == 2


def test_without_the_library_there_is_only_our_own_kernel(runtime: EmulatedRuntime, gpu: GpuWithCublas) -> None:
    for op in OPS:
        assert [kernel.library for kernel in products(runtime).of(op, "gpu")] == ["cuda"]
        assert [kernel.library for kernel in products(gpu).of(op, "gpu")] == ["cublas", "cuda"]


def test_what_an_int_does_not_count_is_left_to_our_own_kernel(gpu: GpuWithCublas) -> None:
    long, wide, narrow, y = ((2**31, 1), (1, 2), (2**31, 2), (2**31, 2))
    plainly = {"transpose_a": False, "transpose_b": False}
    for op, inputs, outputs, attributes in (
        ("matmul", [long, wide], [y], plainly),
        ("matmul_bias_gradient", [long, narrow], [wide, (2,)], {"dtype": "float32"}),
    ):
        specs, results = ([Shaped(shape, "float32") for shape in shapes] for shapes in (inputs, outputs))
        arranged = {
            library: products(gpu).find(op, "gpu", library).arrange(attributes, specs, results, [None, None])
            for library in ("cublas", "cuda")
        }
        assert arranged["cublas"] is None, op
        assert arranged["cuda"] is not None, op


def test_a_stream_that_is_refused_is_an_error(gpu: GpuWithCublas) -> None:
    functions = replace(gpu.native.functions, set_stream=lambda handle, stream: 1)
    library = cublas.CublasLibrary(gpu.native, functions, lambda: 0, tf32=False)
    stream = gpu.stream()
    with pytest.raises(RuntimeError, match=rf"cublasSetStream of {stream.handle:#x}: status 1"):
        library.enqueue(stream, Product(1, 1, 1, "float32", "float32"), 0, 0, 0, 256)
