"""The amount of work of the phases of :mod:`benchmarks.peers.gpu_rates`."""

PRODUCTS = ("float32", "tf32", "bfloat16")
"""Phases that are matrix products."""

COPY = "copy"

REPEATS = 10
"""Products, or copies, in a run."""


def side(device: str) -> int:
    """Rows and columns of the matrices."""
    return 256 if device == "cpu" else 8192


def multiply_adds(device: str) -> int:
    """Multiply-adds of a run of a product."""
    return int(REPEATS * side(device) ** 3)


def copied(device: str) -> int:
    """Bytes that are read, and as many written, by one copy."""
    return 1 << (20 if device == "cpu" else 31)


def moved(device: str) -> int:
    """Bytes that a run of the copy reads and writes together."""
    return 2 * REPEATS * copied(device)
