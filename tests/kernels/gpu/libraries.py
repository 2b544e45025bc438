"""An emulated GPU with a fake cuBLAS, which multiplies with NumPy, and a fake cuDNN, which runs reference kernels.

Like kernels on this GPU, both run only when the host synchronizes."""

import ctypes
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runner.kernels.gpu import cublas
from runner.kernels.gpu.cudnn.graphs import FORWARD, INPUT_GRADIENT, Convolution, Role
from runner.kernels.gpu.cudnn.library import WORKSPACE_LIMIT
from runner.kernels.gpu.linear import ALIGNMENT
from runner.kernels.reference.windows import conv2d, conv2d_input_gradient, conv2d_weight_gradient
from tests.kernels.gpu.emulation import EmulatedRuntime, EmulatedStream

Array = NDArray[Any]
DTYPES = {0: "float32", 1: "float64", 14: "bfloat16"}
"""cudaDataType -> dtype."""
COMPUTED = {68: "float32", 77: "float32", 70: "float64"}
"""cublasComputeType_t -> dtype of factors and sums."""


class NumpyCublas:
    """A fake of CuPy's cuBLAS module, which makes handles, and of the library itself, which computes products.

    As in the real library, setting a stream resets the workspace. Each GPU has one handle.
    """

    def __init__(self) -> None:
        self.streams: dict[int, EmulatedStream] = {}
        self.handles: list[int] = []
        self.computed: list[int] = []
        self.lent: list[tuple[int, int]] = []
        self._stream: EmulatedStream | None = None
        self._workspace: tuple[int, int] | None = None

    def create(self) -> int:
        self.handles.append(70 + len(self.handles))
        return self.handles[-1]

    def setMathMode(self, handle: int, mode: int) -> None:  # noqa: N802
        assert mode & 1 == 0, "the compute type, not the math mode, selects tensor cores for float32"

    def setStream(self, handle: int, stream: int) -> None:  # noqa: N802
        raise NotImplementedError("CuPy's binding refuses a stream that is captured: call the library directly")

    def cublasSetStream_v2(self, handle: int, stream: int) -> int:  # noqa: N802
        self._stream, self._workspace = self.streams[stream], None
        return 0

    def cublasSetWorkspace_v2(self, handle: int, address: int, nbytes: int) -> int:  # noqa: N802
        assert address % ALIGNMENT == 0, f"workspace address {address:#x} is not a multiple of {ALIGNMENT}"
        self._workspace = address, nbytes
        self.lent.append(self._workspace)
        return 0

    def cublasGemmEx(self, handle: int, *arguments: int) -> int:  # noqa: N802
        assert handle in self.handles
        assert all(type(each) is int for each in arguments), f"ctypes accepts only int: {arguments}"
        assert self._stream is not None
        assert self._workspace is not None, "setting a stream resets the workspace: set the workspace after it"
        workspace = self._workspace
        self.computed.append(arguments[16])
        # The scalars alpha and beta are in host memory: cuBLAS reads them during the call, not on the GPU.
        scalar = COMPUTED[arguments[16]]
        alpha, beta = (matrix_at(arguments[place], scalar, 1, 1, 1)[0, 0] for place in (5, 12))
        assert (alpha, beta) == (1, 0)
        self._stream.put(lambda: multiply(arguments, workspace))
        return 0


def multiply(arguments: tuple[int, ...], workspace: tuple[int, int]) -> None:
    """Compute C = op(A) op(B), from arguments in the order of cublasGemmEx."""
    turn_a, turn_b, m, n, k, _, a, a_type, lda, b, b_type, ldb, _, c, c_type, ldc, computed, _ = arguments
    ctypes.memset(workspace[0], 0xEE, workspace[1])
    left = operated(a, DTYPES[a_type], m, k, lda, turn_a).astype(COMPUTED[computed])
    right = operated(b, DTYPES[b_type], k, n, ldb, turn_b).astype(COMPUTED[computed])
    matrix_at(c, DTYPES[c_type], m, n, ldc)[:] = left @ right


def operated(address: int, dtype: str, rows: int, columns: int, leading: int, transposed: int) -> Array:
    """Return op(X) = X, or X transposed, for the matrix X at an address; op(X) has shape (rows, columns)."""
    if transposed:
        return matrix_at(address, dtype, columns, rows, leading).T
    return matrix_at(address, dtype, rows, columns, leading)


def matrix_at(address: int, dtype: str, rows: int, columns: int, leading: int) -> Array:
    """Return a view of a column-major matrix: element (i, j) is at i + j * leading."""
    assert leading >= max(1, rows), f"a leading extent of {leading} for {rows} rows"
    itemsize = np.dtype(dtype).itemsize
    count = (columns - 1) * leading + rows
    memory = (ctypes.c_uint8 * (count * itemsize)).from_address(address)
    values = np.frombuffer(memory, np.uint8).view(dtype)
    return np.lib.stride_tricks.as_strided(values, (rows, columns), (itemsize, leading * itemsize))


class GpuWithCublas(EmulatedRuntime):
    """An emulated GPU whose library "cublas" is a real ``CublasLibrary`` that calls :class:`NumpyCublas`."""

    def __init__(self, *arguments: Any, tf32: bool = False, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.native = NumpyCublas()
        self._products = cublas.CublasLibrary(self.native, self.native, lambda: 0, tf32=tf32)

    def stream(self) -> EmulatedStream:
        made = super().stream()
        self.native.streams[made.handle] = made
        return made

    def library(self, name: str) -> Any:
        return self._products if name == "cublas" else super().library(name)


@dataclass
class ReferencePlan:
    """A fake :class:`~runner.kernels.gpu.cudnn.library.BuiltPlan`, which overwrites its whole workspace."""

    convolution: Convolution
    workspace_bytes: int

    def enqueue(self, stream: EmulatedStream, addresses: Mapping[Role, int], workspace: int) -> None:
        assert set(addresses) == set(self.convolution.shapes)
        assert workspace % 256 == 0, "cuDNN's workspaces are aligned"
        arguments = (*addresses.values(), workspace)
        assert all(type(each) is int for each in arguments), (
            f"cuDNN's front end takes other numbers for arrays: {arguments}"
        )
        stream.put(lambda: self._compute(dict(addresses), workspace))

    def _compute(self, addresses: dict[Role, int], workspace: int) -> None:
        ctypes.memset(workspace, 0xFF, self.workspace_bytes)
        tensors = {role: lying(address, self.convolution, role) for role, address in addresses.items()}
        wide = {role: np.asarray(each, self._computed_in) for role, each in tensors.items()}
        tensors[self.convolution.result][...] = computed(self.convolution, wide)

    @property
    def _computed_in(self) -> str:
        return "float64" if self.convolution.dtype == "float64" else "float32"


@dataclass
class ReferencePlanner:
    """A fake :class:`~runner.kernels.gpu.cudnn.library.CudnnLibrary`. refuses: whether a convolution has no plan."""

    workspace_bytes: int = 131
    refuses: Callable[[Convolution], bool] = lambda _: False
    asked: list[Convolution] = field(default_factory=list)

    def plan(self, convolution: Convolution, room: int = WORKSPACE_LIMIT) -> ReferencePlan | None:
        self.asked.append(convolution)
        return (
            None
            if self.refuses(convolution) or self.workspace_bytes > room
            else ReferencePlan(convolution, self.workspace_bytes)
        )


class GpuWithLibraries(GpuWithCublas):
    """An emulated GPU with cuBLAS and cuDNN."""

    def __init__(self, *arguments: Any, planner: ReferencePlanner | None = None, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.planner = planner or ReferencePlanner()

    def library(self, name: str) -> Any:
        return self.planner if name == "cudnn" else super().library(name)


def lying(address: int, convolution: Convolution, role: Role) -> Array:
    """Return a view (N, C, H, W) of a tensor in memory with channels last."""
    n, c, h, w = convolution.shapes[role]
    dtype = np.dtype(convolution.dtype)
    raw = (ctypes.c_char * (n * c * h * w * dtype.itemsize)).from_address(address)
    return np.frombuffer(raw, dtype).reshape(n, h, w, c).transpose(0, 3, 1, 2)


def computed(convolution: Convolution, tensors: Mapping[Role, Array]) -> Array:
    """Return the result of a convolution, computed by the reference kernels."""
    geometry: dict[str, Any] = {
        "strides": convolution.strides,
        "padding": convolution.padding,
        "dilations": convolution.dilations,
        "groups": convolution.x[1] // convolution.w[1],
    }
    if convolution.kind == FORWARD:
        y: Array = conv2d(tensors[Role.X], tensors[Role.W], **geometry)
        if convolution.bias:
            y = y + tensors[Role.BIAS].reshape(-1, 1, 1)
        if convolution.residual:
            y = y + tensors[Role.RESIDUAL]
        return np.maximum(y, 0) if convolution.relu else y
    if convolution.kind == INPUT_GRADIENT:
        shape = {"input_shape": convolution.x}
        return np.asarray(conv2d_input_gradient(tensors[Role.Y], tensors[Role.W], **shape, **geometry))
    shape = {"weight_shape": convolution.w, "dtype": tensors[Role.Y].dtype.name}
    return np.asarray(conv2d_weight_gradient(tensors[Role.Y], tensors[Role.X], **shape, **geometry))
