"""Where a step's examples come from, as far as the engine knows: an interface and the names of its fields."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from numpy.typing import NDArray

from runner.engine.tensor import Tensor
from runner.errors import RunnerError

Array = NDArray[Any]

FIELDS = ("x", "y", "index", "mask")


class InputSource(Protocol):
    """Examples on demand; a pure function of its arguments."""

    def read(self, split: str, step: int, lo: int, hi: int) -> Mapping[str, Array]:
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


def read_inputs(
    source: InputSource | None, slots: Sequence[InputSlot], wanted: set[Tensor], step: int
) -> dict[Tensor, Array]:
    """Read the fields that ``wanted`` tensors need, one read per share.

    Raises RunnerError where something is wanted and there is no source.
    """
    fed: dict[Tensor, Array] = {}
    by_place: dict[tuple[str, int, int, int], list[InputSlot]] = {}
    for slot in slots:
        if slot.tensor in wanted:
            by_place.setdefault(slot.place(step), []).append(slot)
    for (split, batch, lo, hi), group in by_place.items():
        if source is None:
            raise RunnerError(f"step {step} reads {split!r} examples {lo}..{hi}, but the session has no input source")
        fields = source.read(split, batch, lo, hi)
        fed.update({slot.tensor: fields[slot.field] for slot in group})
    return fed
