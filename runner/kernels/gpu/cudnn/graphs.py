"""A convolution as plain data, which is the key of its plan, and as an operation graph of cuDNN.

For cuDNN, the axes of images are N, C, H, W and the axes of filters are K, C, R, S in any layout; only the strides show
that channels are last. If filters have fewer channels than the image, cuDNN derives the number of groups.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from runner.kernels.contract import Layout
from runner.kernels.gpu.layouts import CHANNELS_LAST, strides

Shape = tuple[int, ...]

FORWARD = "forward"
INPUT_GRADIENT = "input_gradient"
WEIGHT_GRADIENT = "weight_gradient"


class Role(IntEnum):
    """A tensor's role in a convolution, with the tensor's uid in cuDNN. A gradient has its tensor's role."""

    X = 1
    W = 2
    Y = 3
    BIAS = 4
    RESIDUAL = 5


@dataclass(frozen=True)
class Convolution:
    """A convolution or one of its gradients; all tensors have ``dtype`` and channels last.

    kind: FORWARD (X, W -> Y), INPUT_GRADIENT (Y, W -> X) or WEIGHT_GRADIENT (X, Y -> W).
    x, w, y: shapes (N, C, H, W), (O, C/groups, R, S), (N, O, H', W'), which determine the number of groups.
    strides, dilations: (rows, columns). padding: (top, bottom, left, right).
    bias, residual, relu: whether a forward convolution adds a bias (O,), adds a residual (shape of y), applies ReLU.
    """

    kind: str
    dtype: str
    x: Shape
    w: Shape
    y: Shape
    strides: Shape
    padding: Shape
    dilations: Shape = (1, 1)
    bias: bool = False
    residual: bool = False
    relu: bool = False

    @property
    def shapes(self) -> dict[Role, Shape]:
        """The shape of every tensor, always with the four axes that cuDNN requires."""
        shapes = {Role.X: self.x, Role.W: self.w, Role.Y: self.y}
        if self.bias:
            shapes[Role.BIAS] = (1, self.w[0], 1, 1)
        if self.residual:
            shapes[Role.RESIDUAL] = self.y
        return shapes

    @property
    def result(self) -> Role:
        """The role of the computed tensor."""
        return {FORWARD: Role.Y, INPUT_GRADIENT: Role.X, WEIGHT_GRADIENT: Role.W}[self.kind]


_STORED_IN = {"float32": "FLOAT", "float64": "DOUBLE", "bfloat16": "BFLOAT16"}
_COMPUTED_IN = {"float32": "FLOAT", "float64": "DOUBLE", "bfloat16": "FLOAT"}


def build(cudnn: Any, convolution: Convolution, target: Mapping[str, Any]) -> Any:
    """Return the ``cudnn.pygraph`` of a convolution, not yet validated; the uid of each tensor is its role.

    target: an argument of pygraph: ``handle`` of the GPU or, to plan without a GPU, ``device_property``.
    """
    stored, computed = (getattr(cudnn.data_type, each[convolution.dtype]) for each in (_STORED_IN, _COMPUTED_IN))
    graph = cudnn.pygraph(io_data_type=stored, intermediate_data_type=computed, compute_data_type=computed, **target)
    inputs = {
        role: graph.tensor(dim=list(shape), stride=_strides(shape), data_type=stored, uid=int(role), name=role.name)
        for role, shape in convolution.shapes.items()
        if role is not convolution.result
    }
    result = _computed(graph, convolution, inputs)
    shape = convolution.shapes[convolution.result]
    result.set_output(True).set_uid(int(convolution.result)).set_name(convolution.result.name)
    result.set_dim(list(shape)).set_stride(_strides(shape)).set_data_type(stored)
    return graph


def _computed(graph: Any, convolution: Convolution, inputs: dict[Role, Any]) -> Any:
    """Append the convolution and its bias, residual and ReLU, if any, to the graph; return the result."""
    top, bottom, left, right = convolution.padding
    geometry = {
        "pre_padding": [top, left],
        "post_padding": [bottom, right],
        "stride": list(convolution.strides),
        "dilation": list(convolution.dilations),
    }
    if convolution.kind == INPUT_GRADIENT:
        return graph.conv_dgrad(inputs[Role.Y], inputs[Role.W], **geometry)
    if convolution.kind == WEIGHT_GRADIENT:
        return graph.conv_wgrad(inputs[Role.X], inputs[Role.Y], **geometry)
    y = graph.conv_fprop(inputs[Role.X], inputs[Role.W], **geometry)
    for role in (Role.BIAS, Role.RESIDUAL):
        if role in inputs:
            y = graph.add(y, inputs[role])
    return graph.relu(y) if convolution.relu else y


def _strides(shape: Shape) -> list[int]:
    return list(strides(shape, Layout(CHANNELS_LAST, 0)))
