"""What a convolution of cuDNN is: the key under which its plan is kept."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

Shape = tuple[int, ...]

FORWARD = "forward"
INPUT_GRADIENT = "input_gradient"
WEIGHT_GRADIENT = "weight_gradient"


class Role(IntEnum):
    """A tensor of a convolution, by the number that cuDNN knows it by. Gradients have the role of what they are of."""

    X = 1
    W = 2
    Y = 3
    BIAS = 4
    RESIDUAL = 5


@dataclass(frozen=True)
class Convolution:
    """One convolution or gradient of one; everything in ``dtype`` and with the channels last.

    kind: FORWARD (X, W -> Y), INPUT_GRADIENT (Y, W -> X) or WEIGHT_GRADIENT (X, Y -> W).
    x, w, y: shapes (N, C, H, W), (O, C/groups, R, S), (N, O, H', W'); so they say how many groups there are.
    strides: (rows, columns). padding: (top, bottom, left, right).
    bias, residual, relu: what follows a forward one, in this order: + (O,), + like y, max(., 0).
    """

    kind: str
    dtype: str
    x: Shape
    w: Shape
    y: Shape
    strides: Shape
    padding: Shape
    bias: bool = False
    residual: bool = False
    relu: bool = False

    @property
    def shapes(self) -> dict[Role, Shape]:
        """Every tensor that takes part, as cuDNN sees it: with four axes."""
        shapes = {Role.X: self.x, Role.W: self.w, Role.Y: self.y}
        if self.bias:
            shapes[Role.BIAS] = (1, self.w[0], 1, 1)
        if self.residual:
            shapes[Role.RESIDUAL] = self.y
        return shapes

    @property
    def result(self) -> Role:
        """The tensor that is computed."""
        return {FORWARD: Role.Y, INPUT_GRADIENT: Role.X, WEIGHT_GRADIENT: Role.W}[self.kind]
