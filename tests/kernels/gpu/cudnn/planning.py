"""A substitute for cuDNN: plans that compute with the reference kernels on a stream."""

import ctypes
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runner.kernels.gpu.cudnn.graphs import FORWARD, INPUT_GRADIENT, Convolution, Role
from runner.kernels.gpu.cudnn.library import WORKSPACE_LIMIT
from runner.kernels.reference.windows import conv2d, conv2d_input_gradient, conv2d_weight_gradient
from tests.kernels.gpu.blas import GpuWithCublas
from tests.kernels.gpu.emulation import EmulatedStream

Array = NDArray[Any]


@dataclass
class ReferencePlan:
    """See :class:`~runner.kernels.gpu.cudnn.library.Plan`. It overwrites its whole workspace."""

    convolution: Convolution
    workspace_bytes: int

    def enqueue(self, stream: EmulatedStream, addresses: Mapping[Role, int], workspace: int) -> None:
        assert set(addresses) == set(self.convolution.shapes)
        assert workspace % 256 == 0, "cuDNN's workspaces are aligned"
        told = (*addresses.values(), workspace)
        assert all(type(each) is int for each in told), f"its front end takes other numbers for arrays: {told}"
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
    """See :class:`~runner.kernels.gpu.cudnn.library.Planner`. refuses: whether it has no plan for a convolution."""

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
    """A tensor in memory with channels last, viewed as (N, C, H, W)."""
    n, c, h, w = convolution.shapes[role]
    dtype = np.dtype(convolution.dtype)
    raw = (ctypes.c_char * (n * c * h * w * dtype.itemsize)).from_address(address)
    return np.frombuffer(raw, dtype).reshape(n, h, w, c).transpose(0, 3, 1, 2)


def computed(convolution: Convolution, tensors: Mapping[Role, Array]) -> Array:
    """Return the result of a convolution."""
    geometry: dict[str, Any] = {
        "strides": convolution.strides,
        "padding": convolution.padding,
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
