"""The inputs of a step: the one protocol of input sources, and the tensors that are fed from it.

How sources are read, and read ahead of the step, is explained in :mod:`runner.engine.run.inputs`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from numpy.typing import NDArray

from runner.engine.graph.tensor import Tensor

Array = NDArray[Any]

ShareKey = tuple[str, int, int, int]
"""A share of a batch: split, number of the batch, first example, and the example after the last."""

Fields = Mapping[str, Array]
"""Field -> its values, for each example of a share."""

FIELDS = ("x", "y", "index", "mask")


class InputSource(Protocol):
    """Examples on demand; a pure function of its arguments."""

    def read(self, split: str, step: int, lo: int, hi: int) -> Fields:
        """Return examples lo..hi-1 of the whole batch of ``step``: fields x, y, index and mask.

        x: (hi-lo, C, H, W) in the network's dtype; y: (hi-lo,) int64 labels; index: (hi-lo,) int64 position in
        the stream; mask: (hi-lo,) in the network's dtype, 1 for an example and 0 for padding.
        """
        ...


@dataclass(frozen=True)
class InputSlot:
    """Feed ``tensor`` with field ``field`` of examples lo..hi-1 of the step's batch of ``split``.

    parts: number of steps that share a batch in equal parts: step s reads examples of batch s // parts, moved on by
    (s % parts) * (hi - lo).
    """

    tensor: Tensor
    split: str
    field: str
    lo: int
    hi: int
    parts: int = 1

    def share(self, step: int) -> ShareKey:
        """Return the share that a step reads."""
        batch, part = divmod(step, self.parts)
        offset = part * (self.hi - self.lo)
        return self.split, batch, self.lo + offset, self.hi + offset
