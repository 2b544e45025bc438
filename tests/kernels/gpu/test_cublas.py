"""cuBLAS: the arguments of its calls, its handles and workspaces, its errors, and the refused products."""

import ctypes
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from runner.kernels.gpu import cublas, linear
from runner.kernels.gpu.cublas import Product
from runner.kernels.registry import Registry
from tests.kernels.gpu.emulation import EmulatedRuntime
from tests.kernels.gpu.libraries import GpuWithCublas
from tests.kernels.gpu.running import registry_of, run_op
from tests.kernels.harness import Shaped

ONE = Product(1, 1, 1, "float32", "float32")
COMPILER = shutil.which("gcc") or shutil.which("cc")


@pytest.fixture
def gpu(compiled_sources: Path, monkeypatch: pytest.MonkeyPatch) -> GpuWithCublas:
    """Return an emulated GPU whose cuBLAS requests little memory."""
    monkeypatch.setattr(cublas, "WORKSPACE_BYTES", 1000)
    return GpuWithCublas(compiled_sources)


def products(runtime: EmulatedRuntime) -> Registry:
    """Return a registry with all kernels of products."""
    return registry_of(runtime, linear)


def multiplier_of(gpu: GpuWithCublas) -> linear.OwnProducts:
    """Return the entry of ``linear.multipliers`` that uses cuBLAS."""
    (found,) = (each for each in linear.multipliers(gpu) if each.library == "cublas")
    return found


@pytest.mark.parametrize(
    ("dtype", "tf32", "computed"),
    [("float32", False, 68), ("float32", True, 77), ("float64", True, 70), ("bfloat16", True, 68)],
)
def test_tf32_applies_to_float32_only(compiled_sources: Path, dtype: str, tf32: bool, computed: int) -> None:
    gpu = GpuWithCublas(compiled_sources, tf32=tf32)
    attributes = {"transpose_a": False, "transpose_b": False}
    run_op(gpu, "matmul", [np.ones((3, 4), dtype), np.ones((4, 5), dtype)], attributes, registry=products(gpu))
    assert gpu.native.computed == [computed]


def test_every_gpu_has_a_separate_handle_which_is_made_when_a_product_is_bound(gpu: GpuWithCublas) -> None:
    multiplier_of(gpu).call(linear.Dense(ONE), 0, 0, 0, 0, 0)
    assert len(gpu.native.handles) == 1
    current = iter((0, 1, 0, 1))
    library = cublas.CublasLibrary(gpu.native, gpu.native, lambda: next(current), tf32=False)
    for _ in range(4):
        library.prepare()
    assert len(gpu.native.handles) == 1 + 2


@pytest.mark.parametrize("scratch", [1 << 20, (1 << 20) + 64, (1 << 20) + 1])
def test_the_workspace_is_aligned_and_inside_the_scratch_memory(gpu: GpuWithCublas, scratch: int) -> None:
    multiplier, dense = multiplier_of(gpu), linear.Dense(ONE)
    multiplier.call(dense, 0, 0, 0, 0, scratch).enqueue(gpu.stream())
    address, nbytes = gpu.native.lent[-1]
    assert address % 256 == 0
    assert scratch <= address <= address + nbytes <= scratch + multiplier.scratch_bytes(dense)


@pytest.mark.parametrize(
    ("function", "status", "message"),
    [
        ("cublasSetStream_v2", 1, r"cublasSetStream of {handle}: status 1"),
        ("cublasSetWorkspace_v2", 7, r"cublasSetWorkspace of 1000 bytes at 0x100: status 7"),
        ("cublasGemmEx", 15, r"cublasGemmEx of Product\(m=1, n=1, k=1, .*: status 15"),
    ],
)
def test_a_failed_call_raises_an_error(
    gpu: GpuWithCublas, function: str, status: int, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu.native, function, lambda *_: status)
    library, stream = cublas.CublasLibrary(gpu.native, gpu.native, lambda: 0, tf32=False), gpu.stream()
    with pytest.raises(RuntimeError, match=message.format(handle=hex(stream.handle))):
        library.enqueue(stream, ONE, 0, 0, 0, 256)


def test_without_the_library_only_our_own_kernel_is_offered(runtime: EmulatedRuntime, gpu: GpuWithCublas) -> None:
    for op in ("matmul", "matmul_fused", "matmul_bias_gradient", "matmul_elementwise"):
        assert [kernel.library for kernel in products(runtime).of(op, "gpu")] == ["cuda"]
        assert [kernel.library for kernel in products(gpu).of(op, "gpu")] == ["cublas", "cuda"]


@pytest.mark.parametrize(
    ("op", "inputs", "outputs", "attributes"),
    [
        ("matmul", [(2**31, 1), (1, 2)], [(2**31, 2)], {"transpose_a": False, "transpose_b": False}),
        ("matmul", [(3, 0), (0, 2)], [(3, 2)], {"transpose_a": False, "transpose_b": False}),
        ("matmul_bias_gradient", [(2**31, 1), (2**31, 2)], [(1, 2), (2,)], {"dtype": "float32"}),
    ],
)
def test_empty_products_and_extents_beyond_an_int_are_left_to_our_own_kernel(
    gpu: GpuWithCublas, op: str, inputs: list[Any], outputs: list[Any], attributes: dict[str, Any]
) -> None:
    specs, results = ([Shaped(shape, "float32") for shape in shapes] for shapes in (inputs, outputs))
    for library in ("cublas", "cuda"):
        kernel = products(gpu).find(op, "gpu", library)
        assert (kernel.arrange(attributes, specs, results, [None, None]) is None) == (library == "cublas")


CUBLAS = r"""
#include <stddef.h>
long long received[21];
int cublasSetStream_v2(void *handle, void *stream) { received[0] = (long long)stream; return 0; }
int cublasSetWorkspace_v2(void *handle, void *workspace, size_t bytes) {
    received[1] = (long long)workspace; return bytes == EXPECTED ? 0 : 7; }
int cublasGemmEx(void *handle, int transa, int transb, int m, int n, int k, const float *alpha,
                 const void *a, int atype, int lda, const void *b, int btype, int ldb,
                 const float *beta, void *c, int ctype, int ldc, int compute, int algorithm) {
    long long all[] = {(long long)handle, transa, transb, m, n, k, *alpha, (long long)a, atype, lda,
                       (long long)b, btype, ldb, *beta, (long long)c, ctype, ldc, compute, algorithm};
    for (int i = 0; i < 19; i++) received[2 + i] = all[i];
    return 0; }
"""
"""Functions that are declared as in cublas_api.h and store their arguments in ``received``."""

HANDLE, STREAM, A, B, C, WORKSPACE = (number << 40 for number in range(1, 7))
"""Addresses that do not fit into a C int, so that an argument declared as int changes them."""


def offer(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Install a fake of CuPy's cuBLAS module; return a list to which it appends each handle and mode that is set."""
    modes: list[tuple[int, int]] = []
    native = SimpleNamespace(create=lambda: HANDLE, setMathMode=lambda *received: modes.append(received))
    for name in ("cupy_backends", "cupy_backends.cuda"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, "cupy_backends.cuda.libs", SimpleNamespace(cublas=native))
    return modes


@pytest.mark.skipif(COMPILER is None, reason="needs a C compiler")
def test_native_calls_receive_the_expected_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert COMPILER is not None
    (tmp_path / "cublas.c").write_text(CUBLAS)
    path, expected = str(tmp_path / "cublas.so"), f"-DEXPECTED={cublas.WORKSPACE_BYTES}"
    subprocess.run([COMPILER, "-shared", "-fPIC", expected, "-o", path, str(tmp_path / "cublas.c")], check=True)
    opened, names = ctypes.CDLL(path), []
    monkeypatch.setattr(ctypes, "CDLL", lambda name: names.append(name) or opened)
    modes = offer(monkeypatch)
    library = cublas.open_library(lambda: 0, 13, tf32=False)
    assert library is not None
    assert names == ["libcublas.so.13"]
    stream: Any = SimpleNamespace(handle=STREAM)
    library.enqueue(stream, Product(2, 3, 5, "float32", "float32"), A, B, C, WORKSPACE)
    received = list((ctypes.c_longlong * 21).in_dll(opened, "received"))
    assert received[:2] == [STREAM, WORKSPACE]
    # cuBLAS is column-major, so it computes C' = B' A', 3 by 2, with alpha 1 and beta 0, float32 everywhere.
    assert received[2:] == [HANDLE, 0, 0, 3, 2, 5, 1, B, 0, 3, A, 0, 5, 0, C, 0, 3, 68, -1]
    assert modes == [(HANDLE, 16)]


def test_cublas_is_missing_if_its_shared_library_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", missing)
    offer(monkeypatch)
    assert cublas.open_library(lambda: 0, 13, tf32=False) is None
