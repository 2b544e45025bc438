"""cuBLAS through CuPy's bindings: products into and from addresses, in memory that the caller lends."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import numpy as np

from runner.kernels.gpu.linear import ColumnMajor
from runner.kernels.gpu.runtime import Stream

_MEBIBYTE = 1 << 20

_TYPES = {"float32": 0, "float64": 1, "bfloat16": 14}
"""cudaDataType: CUDA_R_32F, CUDA_R_64F, CUDA_R_16BF."""

_HEURISTIC = -1
"""CUBLAS_GEMM_DEFAULT."""


class Cublas:
    """A handle of cuBLAS, for the card that is current when it is made and whenever it is used.

    One stream at a time: the order of sums is then the same every time (cuBLAS, "Results Reproducibility").
    tf32: whether float32 factors may be rounded to 10 bits of mantissa, which tensor cores need.
    capability: compute capability of the card, 90 for 9.0.
    """

    def __init__(self, *, tf32: bool, capability: int) -> None:
        from cupy_backends.cuda.libs import cublas

        self.tf32 = tf32
        self.workspace_bytes = workspace_bytes(capability)
        self._cublas = cublas
        self._handle = cublas.create()
        cublas.setPointerMode(self._handle, cublas.CUBLAS_POINTER_MODE_HOST)
        cublas.setMathMode(self._handle, cublas.CUBLAS_DEFAULT_MATH)

    def gemm(
        self,
        stream: Stream,
        shape: ColumnMajor,
        dtypes: tuple[str, str],
        first: int,
        second: int,
        target: int,
        workspace: int,
    ) -> None:
        """See :class:`~runner.kernels.gpu.linear.Blas`. Raises RuntimeError with the status that is not success."""
        cublas = self._cublas
        factors, result = (_TYPES[dtype] for dtype in dtypes)
        one, zero = (number.ctypes.data for number in _scalars(dtypes[0]))
        cublas.setStream(self._handle, stream.handle)
        # The stream comes with a workspace of the library's own, which it would allocate inside a captured graph.
        _lend(self._handle, workspace, self.workspace_bytes)
        cublas.gemmEx(
            self._handle,
            _operation(cublas, shape.transpose_first),
            _operation(cublas, shape.transpose_second),
            *(shape.m, shape.n, shape.k),
            one,
            *(first, factors, shape.first_leading),
            *(second, factors, shape.second_leading),
            zero,
            *(target, result, shape.leading),
            self._computed(dtypes[0]),
            _HEURISTIC,
        )

    def _computed(self, dtype: str) -> int:
        if dtype == "float64":
            return int(self._cublas.CUBLAS_COMPUTE_64F)
        fast = dtype == "float32" and self.tf32
        return int(self._cublas.CUBLAS_COMPUTE_32F_FAST_TF32 if fast else self._cublas.CUBLAS_COMPUTE_32F)


def workspace_bytes(capability: int) -> int:
    """What NVIDIA recommends (cuBLAS, cublasSetWorkspace): 32 MiB from compute capability 9.0 on, else 4 MiB."""
    return (32 if capability >= 90 else 4) * _MEBIBYTE


def _operation(cublas: Any, transposed: bool) -> int:
    return int(cublas.CUBLAS_OP_T if transposed else cublas.CUBLAS_OP_N)


@cache
def _scalars(dtype: str) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """1 and 0 in the dtype of the sums; cuBLAS reads them while it is called."""
    wide = np.float64 if dtype == "float64" else np.float32
    return np.ones(1, wide), np.zeros(1, wide)


def _lend(handle: int, workspace: int, nbytes: int) -> None:
    status = _set_workspace()(handle, workspace, nbytes)
    if status:
        raise RuntimeError(f"cublasSetWorkspace of {nbytes} bytes at {workspace:#x}: status {status}")


@cache
def _set_workspace() -> Any:
    """The one function that CuPy has no binding of, found in the library that its bindings are linked with."""
    from cupy_backends.cuda.libs import cublas

    function = ctypes.CDLL(cublas.__file__).cublasSetWorkspace_v2
    function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
    function.restype = ctypes.c_int
    return function
