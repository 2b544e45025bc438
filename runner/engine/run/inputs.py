"""Inputs of a step, which are read while the previous step runs.

An :class:`~runner.engine.compile.program.InputSource` is a pure function of the split, the step and the share (a range
of the step's examples), so reading early, late or twice gives the same examples. Inputs are read ahead on two levels.
On the host, the source of a data set (``runner.data.source``) prepares a share of step s + 1 in a background thread as
soon as the same share of step s is read. On an asynchronous device, such as a GPU, :class:`ReadAhead` reads the next
step's inputs from the source and copies them to the device while the current step runs. Between the two levels,
:class:`SharedReading` reads each share once for all devices of a process.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field

from runner.engine.compile.program import Fields, InputSlot, InputSource, ShareKey
from runner.engine.graph import Tensor
from runner.engine.run.executor import DeviceExecutor, Values
from runner.engine.run.recording import INPUT
from runner.errors import RunnerError
from runner.kernels.contract import Array


class ReadAhead:
    """A reader of one client's inputs for one device, which reads the inputs of each step once.

    from_source: returns the device's inputs for a step. Reading inputs for a step that never runs costs only time.
    """

    def __init__(self, executor: DeviceExecutor, from_source: Callable[[int], Values]) -> None:
        self._executor = executor
        self._from_source = from_source
        self._next: tuple[int, Values] | None = None

    def read(self, step: int) -> Values:
        """Return the inputs of a step, and read them from the source unless they were read ahead."""
        ahead, self._next = self._next, None
        if ahead is not None and ahead[0] == step:
            return ahead[1]
        return self._executor.before_run(step, INPUT, lambda: self._from_source(step))

    def run(self, step: int, feeds: Values) -> dict[Tensor, Array]:
        """Run a step; if the device is asynchronous, read the next step's inputs meanwhile."""
        if not self._executor.is_asynchronous:
            return self._executor.run(step, feeds)
        return self._executor.run(step, feeds, lambda: self._read_ahead(step + 1))

    def _read_ahead(self, step: int) -> None:
        try:
            values = self._from_source(step)
        except Exception:  # noqa: BLE001 - the next step reads these inputs again and raises the error
            return
        with suppress(ValueError):  # the next step checks these inputs again and raises the error
            self._executor.ahead(values)
        self._next = (step, values)


@dataclass
class _PendingShare:
    """A share of a step. missing: devices that have not requested it. fields: the arrays, set by the first device."""

    missing: set[str]
    fields: Future[Fields] = field(default_factory=Future)


class SharedReading:
    """A thread-safe reader of one client's examples, which reads each share once and gives its arrays to all devices.

    slots: device -> input slots. A share is kept until all devices that use it have requested it. A request for another
    step drops all shares, because devices may never request the shares of a step that fails or does not run.
    """

    def __init__(self, source: InputSource | None, slots: Mapping[str, Sequence[InputSlot]]) -> None:
        self._source = source
        self._slots = slots
        self._lock = threading.Lock()
        self._step: int | None = None
        self._shares: dict[ShareKey, _PendingShare] = {}

    def read(self, device: str, step: int) -> dict[Tensor, Array]:
        """Return the inputs of a device for a step; a share that feeds several slots is read once.

        Raises the errors of the source, and RunnerError if there is no source or if it lacks a field of the device.
        """
        shares: dict[ShareKey, Fields] = {}
        fed = {}
        for slot in self._slots[device]:
            key = slot.share(step)
            if key not in shares:
                shares[key] = self._share(device, step, key)
            fields = shares[key]
            if slot.field not in fields:
                raise RunnerError(f"input {slot.tensor} needs field {slot.field!r}; the source has {', '.join(fields)}")
            fed[slot.tensor] = fields[slot.field]
        return fed

    def _share(self, device: str, step: int, key: ShareKey) -> Fields:
        share, is_first = self._entry(device, step, key)
        if is_first:
            try:
                share.fields.set_result(self._from_source(step, key))
            except BaseException as error:
                with self._lock:
                    # The next request reads the share again.
                    if self._shares.get(key) is share:
                        del self._shares[key]
                share.fields.set_exception(error)
                raise
        return share.fields.result()

    def _from_source(self, step: int, key: ShareKey) -> Fields:
        if self._source is None:
            split, _, lo, hi = key
            raise RunnerError(f"step {step} reads {split!r} examples {lo}..{hi}, but the session has no input source")
        return self._source.read(*key)

    def _entry(self, device: str, step: int, key: ShareKey) -> tuple[_PendingShare, bool]:
        """Return the share for a device, and whether this device must read the share."""
        with self._lock:
            if step != self._step:
                self._step, self._shares = step, {}
            share = self._shares.get(key)
            is_first = share is None or device not in share.missing
            if share is None or is_first:
                slots_of = self._slots.items()
                readers = {each for each, slots in slots_of if any(slot.share(step) == key for slot in slots)}
                share = self._shares[key] = _PendingShare(readers)
            share.missing.remove(device)
            if not share.missing:
                del self._shares[key]
            return share, is_first
