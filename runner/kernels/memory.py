"""Memory of the host and of GPUs, and NumPy arrays in host memory."""

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

ALIGNMENT = 64
"""Alignment in bytes: the size of a cache line and of the widest vector register."""


class Bytes(Protocol):
    """A block of memory: an array of uint8 on the host, or an address and a size on a GPU."""

    @property
    def nbytes(self) -> int: ...

    def __getitem__(self, part: slice, /) -> Any: ...


def on_host(data: Bytes) -> NDArray[np.uint8]:
    """Return host memory as an array; raises TypeError for GPU memory."""
    if not isinstance(data, np.ndarray):
        raise TypeError(f"GPU memory was used as host memory: {data}")
    return data


def address_of(data: Bytes) -> int:
    """Return the address of the first byte, on the host or on a GPU."""
    return int(data.ctypes.data) if isinstance(data, np.ndarray) else int(data.address)  # type: ignore[attr-defined]


def require_scratch(scratch: Bytes, nbytes: int, threads: int) -> None:
    """Raise ValueError if ``scratch`` has fewer than ``nbytes`` bytes, which a call on ``threads`` threads needs.

    Machine code receives an address without a size and would write past the end.
    """
    if scratch.nbytes < nbytes:
        raise ValueError(
            f"a call on {threads} threads needs {nbytes} bytes of scratch memory, got {scratch.nbytes}: planned for "
            "another thread count; plan and bind with the same thread count"
        )


def numpy_dtype(name: str) -> np.dtype[Any]:
    """Return the NumPy dtype for an engine dtype name."""
    return np.dtype(name)


def allocate(nbytes: int) -> NDArray[np.uint8]:
    """Return ``nbytes`` zeroed bytes at an address divisible by 64."""
    raw = np.zeros(nbytes + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + nbytes]
