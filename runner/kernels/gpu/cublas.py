"""Matrix products of cuBLAS on the cards of a process."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from runner.kernels.gpu.runtime import Stream

WORKSPACE_BYTES = 32 << 20
"""What NVIDIA recommends for Hopper. Memory of the call's own: two products at the same time must not share any."""

_KEEP, _TRANSPOSE = 0, 1
_TYPES = {"float32": 0, "float64": 1, "bfloat16": 14}
"""cudaDataType of a dtype."""

_COMPUTE_32F, _COMPUTE_32F_FAST_TF32, _COMPUTE_64F = 68, 77, 70
_DISALLOW_REDUCED_PRECISION_REDUCTION = 16
_DEFAULT_ALGORITHM = -1


@dataclass(frozen=True)
class Product:
    """C = A @ B, ``batch`` times, with matrices that lie one after the other in C order, without gaps.

    A: (m, k), or (k, m) if ``transpose_a``. B: (k, n), or (n, k) if ``transpose_b``. C: (m, n). dtype: of A and B.
    result: dtype of C, the same or, for bfloat16, float32. Sums are at least float32.
    """

    m: int
    n: int
    k: int
    dtype: str
    result: str
    transpose_a: bool = False
    transpose_b: bool = False
    batch: int = 1


class Products(Protocol):
    """What the kernels ask of cuBLAS."""

    def enqueue(self, stream: Stream, product: Product, a: int, b: int, c: int, workspace: int) -> None:
        """Put a product of matrices at these addresses on a stream; it may spoil WORKSPACE_BYTES at ``workspace``."""
        ...


class CublasLibrary:
    """cuBLAS for the cards of a process.

    cublas: CuPy's module of it. set_workspace: ``cublasSetWorkspace_v2``. current_card: the number of the card that the
    thread uses. tf32: whether factors of float32 products may be rounded to 10 bits of mantissa.
    """

    def __init__(
        self,
        cublas: Any,
        set_workspace: Callable[[int, int, int], int],
        current_card: Callable[[], int],
        *,
        tf32: bool,
    ) -> None:
        self._cublas = cublas
        self._set_workspace = set_workspace
        self._current_card = current_card
        self._float32 = _COMPUTE_32F_FAST_TF32 if tf32 else _COMPUTE_32F
        self._handles: dict[int, int] = {}
        self._lock = threading.Lock()

    def enqueue(self, stream: Stream, product: Product, a: int, b: int, c: int, workspace: int) -> None:
        """Put a product on a stream. What a handle is told belongs together, so one thread at a time."""
        with self._lock:
            handle = self._handle()
            # The workspace after the stream: a new stream goes back to memory that cuBLAS shares between streams.
            self._cublas.setStream(handle, stream.handle)
            if status := self._set_workspace(handle, workspace, WORKSPACE_BYTES):
                raise RuntimeError(f"cublasSetWorkspace of {WORKSPACE_BYTES} bytes at {workspace:#x}: status {status}")
            self._cublas.gemmStridedBatchedEx(*self._arguments(handle, product, a, b, c))

    def _handle(self) -> int:
        card = self._current_card()
        if card not in self._handles:
            handle = self._handles[card] = int(self._cublas.create())
            self._cublas.setMathMode(handle, _DISALLOW_REDUCED_PRECISION_REDUCTION)
        return self._handles[card]

    def _arguments(self, handle: int, product: Product, a: int, b: int, c: int) -> tuple[int, ...]:
        """Those of cublasGemmStridedBatchedEx, which sees columns where C order has rows: it is told C' = B' @ A'."""
        m, n, k = product.m, product.n, product.k
        row_of_a, row_of_b = m if product.transpose_a else k, k if product.transpose_b else n
        turn_a, turn_b = (_TRANSPOSE if each else _KEEP for each in (product.transpose_a, product.transpose_b))
        dtype, result = _TYPES[product.dtype], _TYPES[product.result]
        double = product.dtype == "float64"
        one, zero = (_DOUBLES if double else _FLOATS).ctypes.data, (_DOUBLES if double else _FLOATS)[1:].ctypes.data
        compute = {"float64": _COMPUTE_64F, "float32": self._float32, "bfloat16": _COMPUTE_32F}[product.dtype]
        return (
            *(handle, turn_b, turn_a, n, m, k, one),
            *(b, dtype, max(row_of_b, 1), k * n),
            *(a, dtype, max(row_of_a, 1), m * k, zero),
            *(c, result, max(n, 1), m * n),
            *(product.batch, compute, _DEFAULT_ALGORITHM),
        )


_FLOATS, _DOUBLES = np.array([1, 0], np.float32), np.array([1, 0], np.float64)
"""1 and 0: the product's factor, and that of what C held. cuBLAS reads them when it is called."""


def open_library(current_card: Callable[[], int], cuda: int, *, tf32: bool) -> CublasLibrary | None:
    """cuBLAS for the cards of this process, or None where it is not installed. cuda: major version of CuPy's."""
    try:
        from cupy_backends.cuda.libs import cublas

        function = ctypes.CDLL(f"libcublas.so.{cuda}").cublasSetWorkspace_v2
    except (ImportError, OSError):
        return None
    function.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
    return CublasLibrary(cublas, function, current_card, tf32=tf32)
