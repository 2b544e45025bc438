"""The runtime of real cards, on CuPy."""

from __future__ import annotations

from runner.kernels.gpu.runtime import Runtime


class CardsError(RuntimeError):
    """There is no card, or a library for it is missing; the text says what to do."""


def open_cards(tf32: bool) -> Runtime:
    """The cards of this process. tf32: whether float32 products may round factors. Raises CardsError without any."""
    raise CardsError("a GPU was asked for, but this build has no runtime for one")
