"""How libraries of NVIDIA are opened: against one of C that the test compiles, and a front end that is not one."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from runner.kernels.gpu import cublas
from runner.kernels.gpu.cublas import Product
from runner.kernels.gpu.cudnn import library as cudnn

COMPILER = shutil.which("gcc") or shutil.which("cc")

CUBLAS = r"""
#include <stddef.h>
long long told[21];
int cublasSetStream_v2(void *handle, void *stream) { told[0] = (long long)stream; return 0; }
int cublasSetWorkspace_v2(void *handle, void *workspace, size_t bytes) {
    told[1] = (long long)workspace; return bytes == EXPECTED ? 0 : 7; }
int cublasGemmEx(void *handle, int transa, int transb, int m, int n, int k, const float *alpha,
                 const void *a, int atype, int lda, const void *b, int btype, int ldb,
                 const float *beta, void *c, int ctype, int ldc, int compute, int algorithm) {
    long long all[] = {(long long)handle, transa, transb, m, n, k, *alpha, (long long)a, atype, lda,
                       (long long)b, btype, ldb, *beta, (long long)c, ctype, ldc, compute, algorithm};
    for (int i = 0; i < 19; i++) told[2 + i] = all[i];
    return 0; }
"""
"""As cublas_api.h declares them; what they are told stays in ``told``."""

HANDLE, STREAM, A, B, C, WORKSPACE = (number << 40 for number in range(1, 7))
"""Addresses that an int of C does not hold."""


@dataclass
class FakeModule:
    """CuPy's module of cuBLAS."""

    mode: int = -1

    def create(self) -> int:
        return HANDLE

    def setMathMode(self, handle: int, mode: int) -> None:  # noqa: N802
        assert handle == HANDLE
        self.mode = mode


def offer(monkeypatch: pytest.MonkeyPatch, native: FakeModule) -> None:
    """Let CuPy's module be imported."""
    libs = ModuleType("cupy_backends.cuda.libs")
    libs.cublas = native  # type: ignore[attr-defined]
    for name in ("cupy_backends", "cupy_backends.cuda"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, libs.__name__, libs)


@pytest.mark.skipif(COMPILER is None, reason="there is no C compiler")
def test_cublas_is_told_whole_addresses_in_its_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert COMPILER is not None
    (tmp_path / "cublas.c").write_text(CUBLAS)
    path, expected = str(tmp_path / "cublas.so"), f"-DEXPECTED={cublas.WORKSPACE_BYTES}"
    subprocess.run([COMPILER, "-shared", "-fPIC", expected, "-o", path, str(tmp_path / "cublas.c")], check=True)
    opened, names = ctypes.CDLL(path), []
    monkeypatch.setattr(ctypes, "CDLL", lambda name: names.append(name) or opened)
    offer(monkeypatch, native := FakeModule())
    library = cublas.open_library(lambda: 0, 13, tf32=False)
    assert library is not None
    assert names == ["libcublas.so.13"]
    stream: Any = SimpleNamespace(handle=STREAM)
    library.enqueue(stream, Product(2, 3, 5, "float32", "float32"), A, B, C, WORKSPACE)
    told = list((ctypes.c_longlong * 21).in_dll(opened, "told"))
    assert told[:2] == [STREAM, WORKSPACE]
    # The product of the transposes, B first: 3 by 2, alpha 1 and beta 0, float32 all over.
    assert told[2:] == [HANDLE, 0, 0, 3, 2, 5, 1, B, 0, 3, A, 0, 5, 0, C, 0, 3, 68, -1]
    assert native.mode == 16


def test_without_the_library_of_cupy_s_cuda_there_is_no_cublas(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", missing)
    offer(monkeypatch, FakeModule())
    assert cublas.open_library(lambda: 0, 13, tf32=False) is None


def test_cudnn_is_opened_with_handles_of_its_own_and_tells_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    front_end = SimpleNamespace(
        backend_version=lambda: 92800, backend_version_string=lambda: "9.28.0", create_handle=lambda: HANDLE
    )
    monkeypatch.setitem(sys.modules, "cudnn", front_end)
    library = cudnn.open_library(lambda: 0, tf32=False)
    assert library is not None
    assert library.version == "9.28.0"
    assert library._open_target() == {"handle": HANDLE}
