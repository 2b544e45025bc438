"""Matrix products by cuBLAS on the GPUs of a process.

CuPy's bindings create the handles, but products call the C library directly. CuPy's own functions refuse a stream that
is being captured, or switch the handle to CuPy's current stream, which resets the workspace.
"""

import ctypes
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np

from runner.kernels.gpu.runtime import Stream

WORKSPACE_BYTES = 32 << 20
"""The size recommended by NVIDIA for Hopper. Every call has a separate workspace: calls can run concurrently."""

_KEEP, _TRANSPOSE = 0, 1
_TYPES = {"float32": 0, "float64": 1, "bfloat16": 14}
"""dtype -> cudaDataType."""

_COMPUTE_32F, _COMPUTE_32F_FAST_TF32, _COMPUTE_64F = 68, 77, 70
_DISALLOW_REDUCED_PRECISION_REDUCTION = 16
_DEFAULT_ALGORITHM = -1


@dataclass(frozen=True)
class Product:
    """A product C = A @ B of matrices in C order, without gaps.

    A: (m, k), or (k, m) if ``transpose_a``. B: (k, n), or (n, k) if ``transpose_b``. C: (m, n). dtype: dtype of A and
    B. result: dtype of C: ``dtype`` or, for bfloat16, also float32. Sums of float64 use float64, all others float32.
    """

    m: int
    n: int
    k: int
    dtype: str
    result: str
    transpose_a: bool = False
    transpose_b: bool = False


class CublasLibrary:
    """cuBLAS for the GPUs of a process.

    cublas: CuPy's module. library: the C library, whose functions return a status, 0 for success. current_gpu: returns
    the number of this thread's GPU. tf32: whether factors of float32 products may be rounded to 10 mantissa bits. lock:
    the lock held during cuBLAS calls; by default, a new lock.
    """

    def __init__(
        self,
        cublas: Any,
        library: Any,
        current_gpu: Callable[[], int],
        *,
        tf32: bool,
        lock: AbstractContextManager[object] | None = None,
    ) -> None:
        self._cublas = cublas
        self._library = library
        self._current_gpu = current_gpu
        self._float32 = _COMPUTE_32F_FAST_TF32 if tf32 else _COMPUTE_32F
        self._handles: dict[int, int] = {}
        self._lock = lock or threading.Lock()

    def prepare(self) -> None:
        """Create the handle of this thread's GPU. Must not be called during a capture."""
        with self._lock:
            self._handle()

    def enqueue(self, stream: Stream, product: Product, a: int, b: int, c: int, workspace: int) -> None:
        """Enqueue a product of matrices at these addresses, with WORKSPACE_BYTES of scratch memory at ``workspace``.

        No extent may be 0. bfloat16 products are summed in float32 and rounded once. The order of additions is always
        the same. Raises RuntimeError with the status of a failed call.
        """
        with self._lock:
            handle = self._handle()
            if status := self._library.cublasSetStream_v2(handle, stream.handle):
                raise RuntimeError(f"cublasSetStream of {stream.handle:#x}: status {status}")
            # Setting the stream resets the workspace to memory shared between streams, so the workspace is set last.
            if status := self._library.cublasSetWorkspace_v2(handle, workspace, WORKSPACE_BYTES):
                raise RuntimeError(f"cublasSetWorkspace of {WORKSPACE_BYTES} bytes at {workspace:#x}: status {status}")
            if status := self._library.cublasGemmEx(*self._arguments(handle, product, a, b, c)):
                raise RuntimeError(f"cublasGemmEx of {product}: status {status}")

    def _handle(self) -> int:
        gpu = self._current_gpu()
        if gpu not in self._handles:
            handle = self._handles[gpu] = int(self._cublas.create())
            self._cublas.setMathMode(handle, _DISALLOW_REDUCED_PRECISION_REDUCTION)
        return self._handles[gpu]

    def _arguments(self, handle: int, product: Product, a: int, b: int, c: int) -> tuple[int, ...]:
        """Return the arguments of cublasGemmEx in order.

        BLAS reads a matrix in C order as its transpose, so the call computes C' = B' @ A', where ' marks a transpose.
        """
        m, n, k = product.m, product.n, product.k
        turns = (_TRANSPOSE if each else _KEEP for each in (product.transpose_b, product.transpose_a))
        row_of_a, row_of_b = m if product.transpose_a else k, k if product.transpose_b else n
        dtype, result = _TYPES[product.dtype], _TYPES[product.result]
        double = product.dtype == "float64"
        one, zero = (_DOUBLES if double else _FLOATS).ctypes.data, (_DOUBLES if double else _FLOATS)[1:].ctypes.data
        compute = {"float64": _COMPUTE_64F, "float32": self._float32, "bfloat16": _COMPUTE_32F}[product.dtype]
        return (
            *(handle, *turns, n, m, k, one),
            *(b, dtype, max(row_of_b, 1)),
            *(a, dtype, max(row_of_a, 1), zero),
            *(c, result, max(n, 1)),
            *(compute, _DEFAULT_ALGORITHM),
        )


_FLOATS, _DOUBLES = np.array([1, 0], np.float32), np.array([1, 0], np.float64)
"""alpha = 1 and beta = 0, which cuBLAS reads during the call."""


def open_library(
    current_gpu: Callable[[], int], cuda: int, *, tf32: bool, lock: AbstractContextManager[object] | None = None
) -> CublasLibrary | None:
    """Return cuBLAS for the GPUs of this process, or None if cuBLAS is missing. cuda: CuPy's major CUDA version."""
    try:
        from cupy_backends.cuda.libs import cublas

        library = ctypes.CDLL(f"libcublas.so.{cuda}")
    except (ImportError, OSError):
        return None
    pointer, number = ctypes.c_void_p, ctypes.c_int
    matrix: list[Any] = [pointer, number, number]
    library.cublasSetStream_v2.argtypes = [pointer, pointer]
    library.cublasSetWorkspace_v2.argtypes = [pointer, pointer, ctypes.c_size_t]
    shape: list[Any] = [number] * 5
    library.cublasGemmEx.argtypes = [pointer, *shape, pointer, *matrix, *matrix, pointer, *matrix, number, number]
    return CublasLibrary(cublas, library, current_gpu, tf32=tf32, lock=lock)
