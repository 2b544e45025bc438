"""Shared reading: the devices of one process read each share of a batch once."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from runner.engine.compile.input_slots import Fields, InputSlot, InputSource, ShareKey
from runner.engine.graph.tensor import Tensor
from runner.errors import RunnerError

Array = NDArray[Any]


@dataclass
class _PendingShare:
    """A share that some devices have not fetched yet. fields: set when the first device has read the share."""

    missing: set[str]
    fields: Future[Fields] = field(default_factory=Future)


class SharedReading:
    """The examples of one client: the first device to ask for a share reads it, the others get the same arrays.

    slots: the inputs of each device. Thread-safe. A share is kept until every device that reads from it has fetched it,
    or until another step is requested, because a step that failed or was read ahead may never be requested again.
    """

    def __init__(self, source: InputSource | None, slots: Mapping[str, Sequence[InputSlot]]) -> None:
        self._source = source
        self._slots = slots
        self._lock = threading.Lock()
        self._step: int | None = None
        self._shares: dict[ShareKey, _PendingShare] = {}

    def read(self, device: str, step: int) -> dict[Tensor, Array]:
        """Return the inputs of a device for a step; each share is read once, however many slots it feeds.

        Raises the errors of the source, and RunnerError for a step that needs examples if there is no source.
        """
        shares: dict[ShareKey, Fields] = {}
        fed = {}
        for slot in self._slots[device]:
            key = slot.share(step)
            if key not in shares:
                shares[key] = self._share(device, step, key)
            fed[slot.tensor] = shares[key][slot.field]
        return fed

    def _share(self, device: str, step: int, key: ShareKey) -> Fields:
        share, is_first = self._entry(device, step, key)
        if is_first:
            try:
                share.fields.set_result(self._from_source(step, key))
            except BaseException as error:
                self._forget(key, share)
                share.fields.set_exception(error)
                raise
        return share.fields.result()

    def _from_source(self, step: int, key: ShareKey) -> Fields:
        if self._source is None:
            split, _, lo, hi = key
            raise RunnerError(f"step {step} reads {split!r} examples {lo}..{hi}, but the session has no input source")
        return self._source.read(*key)

    def _entry(self, device: str, step: int, key: ShareKey) -> tuple[_PendingShare, bool]:
        """Return the share for a device, and whether this device has to read it."""
        with self._lock:
            if step != self._step:
                self._step, self._shares = step, {}
            share = self._shares.get(key)
            is_first = share is None or device not in share.missing
            if share is None or is_first:
                share = self._shares[key] = _PendingShare(self._readers(step, key))
            share.missing.remove(device)
            if not share.missing:
                del self._shares[key]
            return share, is_first

    def _readers(self, step: int, key: ShareKey) -> set[str]:
        """Return the devices that read from a share."""
        return {device for device, slots in self._slots.items() if any(slot.share(step) == key for slot in slots)}

    def _forget(self, key: ShareKey, failed: _PendingShare) -> None:
        """Drop a share that could not be read, so that the next request reads it again."""
        with self._lock:
            if self._shares.get(key) is failed:
                del self._shares[key]
