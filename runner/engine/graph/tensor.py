"""Tensors: references to the outputs of nodes, and their shapes and dtypes."""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, NoReturn

import ml_dtypes  # noqa: F401 - registers the dtype bfloat16 with NumPy
import numpy as np

DTYPES = ("float32", "float64", "bfloat16", "int32", "int64", "uint8", "bool")
FLOATS = ("float32", "float64", "bfloat16")
_ITEM_BYTES = {name: np.dtype(name).itemsize for name in DTYPES}


def state_dtype(dtype: str) -> str:
    """Return the dtype of variables, statistics, losses and weight gradients for activations of the float ``dtype``.

    For bfloat16, the result is float32, because 8 bits of precision would lose small updates; else it is ``dtype``.
    """
    return "float32" if dtype == "bfloat16" else dtype


class Tensor(NamedTuple):
    """A reference to output number ``port`` of the node called ``node``; written ``node:port``.

    The class is a tuple, because compiling a graph spends much of its time on hashing tensors, and tuples hash fast.
    """

    node: str
    port: int = 0

    def __str__(self) -> str:
        return f"{self.node}:{self.port}"

    def __add__(self, other: Any) -> NoReturn:
        """Raise TypeError, because a tuple would silently be joined or repeated; formulas use ``Expr`` instead."""
        raise TypeError(f"tensor {self}: + and * expected operands Expr(graph, tensor), got a tensor without its graph")

    __mul__ = __rmul__ = __add__  # type: ignore[misc]  # mypy expects fields

    @classmethod
    def parse(cls, text: str) -> "Tensor":
        """Return the tensor that ``text`` names; raises ValueError if ``text`` is not of the form ``node:port``."""
        node, _, port = text.rpartition(":")
        if not node or not port.isdecimal():
            raise ValueError(f"tensor reference {text!r}: expected 'node:port' such as 'fc1/matmul:0'")
        return cls(node, int(port))


@dataclass(frozen=True)
class TensorSpec:
    """Shape and dtype of a tensor. Shapes are static: every dimension is known when the graph is built."""

    shape: tuple[int, ...]
    dtype: str

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype {self.dtype!r}: expected one of {', '.join(DTYPES)}")
        if any(not isinstance(d, int) or isinstance(d, bool) or d < 0 for d in self.shape):
            raise ValueError(f"shape {self.shape}: expected non-negative whole numbers")

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"

    @property
    def rank(self) -> int:
        return len(self.shape)

    @cached_property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @cached_property
    def nbytes(self) -> int:
        return self.size * _ITEM_BYTES[self.dtype]

    @property
    def is_float(self) -> bool:
        return self.dtype in FLOATS
