"""What the devices of one process read: each share of a batch once, whoever wants some of it."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from runner.engine.inputs import Fields, InputSlot, InputSource, Place, read_inputs, share_of
from runner.engine.tensor import Tensor

Array = NDArray[Any]


@dataclass
class _Kept:
    """A share of which some devices do not have theirs yet. fields: when the first of them has read it."""

    missing: set[str]
    fields: Future[Fields] = field(default_factory=Future)


class SharedReading:
    """The examples of one client: the first device to ask for a share reads it, the others get the same arrays.

    slots: by device, what it reads. Thread-safe. A share is kept until every device that wants some of it has come, and
    no longer than until another step is asked for: a step that failed, or that was read ahead, may never come.
    """

    def __init__(self, source: InputSource | None, slots: Mapping[str, Sequence[InputSlot]]) -> None:
        self._source = source
        self._slots = slots
        self._lock = threading.Lock()
        self._step: int | None = None
        self._kept: dict[Place, _Kept] = {}

    def read(self, device: str, step: int) -> dict[Tensor, Array]:
        """What a device reads for a step; raises what reading its shares raised, and as :func:`read_inputs` does."""
        return read_inputs(self._slots[device], step, lambda place: self._share(device, step, place))

    def _share(self, device: str, step: int, place: Place) -> Fields:
        kept, is_first = self._entry(device, step, place)
        if is_first:
            try:
                kept.fields.set_result(share_of(self._source, step, place))
            except BaseException as error:
                self._forget(place, kept)
                kept.fields.set_exception(error)
                raise
        return kept.fields.result()

    def _entry(self, device: str, step: int, place: Place) -> tuple[_Kept, bool]:
        """The share for a device, and whether it is the one that has to read it."""
        with self._lock:
            if step != self._step:
                self._step, self._kept = step, {}
            kept = self._kept.get(place)
            is_first = kept is None or device not in kept.missing
            if kept is None or is_first:
                kept = self._kept[place] = _Kept(self._wanting(step, place))
            kept.missing.remove(device)
            if not kept.missing:
                del self._kept[place]
            return kept, is_first

    def _wanting(self, step: int, place: Place) -> set[str]:
        """Devices that read some of a share."""
        return {device for device, slots in self._slots.items() if any(slot.place(step) == place for slot in slots)}

    def _forget(self, place: Place, failed: _Kept) -> None:
        """Whoever asks from now on tries anew."""
        with self._lock:
            if self._kept.get(place) is failed:
                del self._kept[place]
