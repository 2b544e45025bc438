"""References to tensors in shared memory: dtype, shape and location of the bytes.

A reference may come from a hostile peer. Every field is checked with Python integers, which do not overflow, and
against the real length of the bytes, *before* an array is created over them.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from runner.system.schema import MAX_INTEGER, Integer, ListOf, OneOf, Text, Violation

DTYPES: dict[str, np.dtype[Any]] = {
    "bool": np.dtype("?"),
    "uint8": np.dtype("u1"),
    "int32": np.dtype("<i4"),
    "int64": np.dtype("<i8"),
    "float32": np.dtype("<f4"),
    "float64": np.dtype("<f8"),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
}
MAX_RANK = 8

Dtype = Annotated[str, OneOf(tuple(DTYPES))]
Shape = Annotated[tuple[int, ...], ListOf(Integer(), MAX_RANK)]
Count = Annotated[int, Integer()]


@dataclass(frozen=True, slots=True)
class ArenaTensor:
    """A tensor whose bytes, in C order, lie in shared memory.

    ``arena`` is the arena's name, ``offset`` and ``length`` are in bytes, and ``epoch`` is the run's epoch
    in which the arena was made. Raises :class:`Violation` if the length does not match the shape.
    """

    dtype: Dtype
    shape: Shape
    arena: Annotated[str, Text(128)]
    offset: Count
    length: Count
    epoch: Count

    def __post_init__(self) -> None:
        expected = nbytes_of(self.dtype, self.shape)
        if self.length != expected:
            raise Violation(f"length: {self.length} bytes, but {self.dtype}{list(self.shape)} takes {expected}")


def nbytes_of(dtype: str, shape: Sequence[int]) -> int:
    """Return the bytes that a tensor takes, as an unbounded Python integer."""
    return math.prod(shape) * DTYPES[dtype].itemsize


def dtype_name(array: NDArray[Any]) -> str:
    """Return the name of an array's dtype; raises Violation if it cannot be sent."""
    name = array.dtype.name
    if DTYPES.get(name) != array.dtype:
        raise Violation(f"dtype {array.dtype.str}: expected one of {', '.join(DTYPES)} in little-endian order")
    return name


def view_bytes(data: memoryview, dtype: str, shape: tuple[int, ...], where: str) -> NDArray[Any]:
    """Return a read-only array over ``data`` without copying; it keeps the memory behind ``data`` alive.

    Raises Violation if the bytes are not exactly those of the shape, if the shape is too large for NumPy, or if a
    boolean is neither 0 nor 1.
    """
    # NumPy refuses a shape such as (0, 2**62) by the product of its other sizes.
    if nbytes_of(dtype, [size for size in shape if size]) > MAX_INTEGER:
        raise Violation(
            f"{where}: {dtype}{list(shape)}, expected at most {MAX_INTEGER} bytes even without its sizes of 0"
        )
    expected = nbytes_of(dtype, shape)
    if data.nbytes != expected:
        raise Violation(f"{where}: {data.nbytes} bytes, but {dtype}{list(shape)} takes {expected}")
    raw = np.frombuffer(data.toreadonly(), np.uint8)
    if dtype == "bool" and raw.size and raw.max() > 1:
        raise Violation(f"{where}: byte {raw.max()} in a tensor of booleans, expected 0 or 1")
    return raw.view(DTYPES[dtype]).reshape(shape)
