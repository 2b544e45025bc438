"""Where a step's examples come from, as far as the engine knows: an interface and the names of its fields."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from numpy.typing import NDArray

from runner.engine.tensor import Tensor
from runner.errors import RunnerError

Array = NDArray[Any]

Place = tuple[str, int, int, int]
"""A share of a batch: split, number of the batch, first example and the one behind the last."""

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

    parts: steps that share a batch, by examples of one number each: step s reads batch s // parts, and there the
    examples that lie (s % parts) * (hi - lo) further on.
    """

    tensor: Tensor
    split: str
    field: str
    lo: int
    hi: int
    parts: int = 1

    def place(self, step: int) -> Place:
        """What a step reads."""
        batch, part = divmod(step, self.parts)
        offset = part * (self.hi - self.lo)
        return self.split, batch, self.lo + offset, self.hi + offset


def read_inputs(slots: Sequence[InputSlot], step: int, read: Callable[[Place], Fields]) -> dict[Tensor, Array]:
    """The fields of the slots in a step. read: gives a share; called once for each."""
    fed: dict[Tensor, Array] = {}
    by_place: dict[Place, list[InputSlot]] = {}
    for slot in slots:
        by_place.setdefault(slot.place(step), []).append(slot)
    for place, group in by_place.items():
        fields = read(place)
        fed.update({slot.tensor: fields[slot.field] for slot in group})
    return fed


def share_of(source: InputSource | None, step: int, place: Place) -> Fields:
    """A share as the source gives it; raises RunnerError for a step that reads one where there is no source."""
    if source is None:
        split, _, lo, hi = place
        raise RunnerError(f"step {step} reads {split!r} examples {lo}..{hi}, but the session has no input source")
    return source.read(*place)
