"""The amount of work in the phases of :mod:`benchmarks.peers.gpu_rates`."""

COPY = "copy"

REPEATS = 10
"""Number of matrix products or of copies in one run."""


def side(device: str) -> int:
    """Return the number of rows and of columns of the square matrices."""
    return 256 if device == "cpu" else 8192


def multiply_adds(device: str) -> int:
    """Return the number of multiply-adds in one run, which computes ``REPEATS`` products."""
    return int(REPEATS * side(device) ** 3)


def copied(device: str) -> int:
    """Return the number of bytes that one copy reads, and also writes."""
    return 1 << (20 if device == "cpu" else 31)


def moved(device: str) -> int:
    """Return the number of bytes that one run of the copy reads and writes in all."""
    return 2 * REPEATS * copied(device)
