"""Where a step's examples come from, as far as the engine knows: an interface and the names of its fields."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from numpy.typing import NDArray

from runner.engine.tensor import Tensor

FIELDS = ("x", "y", "index", "mask")


class InputSource(Protocol):
    """Examples on demand; a pure function of its arguments."""

    def read(self, split: str, step: int, lo: int, hi: int) -> Mapping[str, NDArray[Any]]:
        """Return examples lo..hi-1 of the whole batch of ``step``: fields x, y, index and mask.

        x: (hi-lo, C, H, W) in the network's dtype; y: (hi-lo,) int64 labels; index: (hi-lo,) int64 position in
        the stream; mask: (hi-lo,) in the network's dtype, 1 for an example and 0 for padding.
        """
        ...


@dataclass(frozen=True)
class InputSlot:
    """Feed ``tensor`` with field ``field`` of examples lo..hi-1 of the step's batch of ``split``.

    parts: steps that share a batch, by examples of one number each: step s reads batch s // parts, and there the
    examples that lie (s % parts) * (hi - lo) further on.
    """

    tensor: Tensor
    split: str
    field: str
    lo: int
    hi: int
    parts: int = 1

    def place(self, step: int) -> tuple[str, int, int, int]:
        """What a step reads: split, number of the batch, first example and the one behind the last."""
        batch, part = divmod(step, self.parts)
        offset = part * (self.hi - self.lo)
        return self.split, batch, self.lo + offset, self.hi + offset
