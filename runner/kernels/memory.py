"""Bytes of the host and of cards, and arrays over them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from runner.kernels.platform import Bytes

ALIGNMENT = 64
"""Bytes: a cache line, and the widest vector register."""


def on_host(data: Bytes) -> NDArray[np.uint8]:
    """Memory of the host; raises TypeError for that of a card."""
    if not isinstance(data, np.ndarray):
        raise TypeError(f"memory of a card was taken for memory of the host: {data}")
    return data


def address_of(data: Bytes) -> int:
    """Where bytes begin, on the host or on a card."""
    return int(data.ctypes.data) if isinstance(data, np.ndarray) else int(data.address)  # type: ignore[attr-defined]


def numpy_dtype(name: str) -> np.dtype[Any]:
    """The NumPy dtype of a dtype name of the engine."""
    return np.dtype(name)


def allocate(nbytes: int) -> NDArray[np.uint8]:
    """Fresh zeroed bytes that begin at a multiple of 64."""
    raw = np.zeros(nbytes + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + nbytes]
