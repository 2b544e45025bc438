"""Sending and receiving the bytes of tensors in parts, between processes that do not share memory."""

from collections.abc import Callable, Iterator, Mapping, Sequence

from runner.engine.cluster.transport.endpoint import Endpoint, Received
from runner.engine.cluster.transport.messages import PART_BYTES, TensorsPart, TensorsReady
from runner.engine.cluster.transport.shared_memory import ArenaReader
from runner.engine.compile.passes.transfers import sent_tensor
from runner.engine.compile.tensor_messages import MOST_TENSORS
from runner.errors import SecurityError
from runner.system.text import printable

TransferKey = tuple[str, str]  # (plan, key) of a tensor that a process receives once in every step of the plan


def send_parts(endpoint: Endpoint, peer: str, ready: TensorsReady, memory: Callable[[str], memoryview]) -> None:
    """Send the bytes of tensors in messages of at most ``PART_BYTES``, without copying them.

    memory: returns the bytes of the tensor with a key.
    """
    tensors = [memory(key) for key in ready.keys]
    for start in range(0, max(1, sum(each.nbytes for each in tensors)), PART_BYTES):
        part = TensorsPart(ready.plan, ready.step, ready.keys, start, ready.due)
        endpoint.send(peer, part, [*_slices(tensors, start)] or [memoryview(b"")])


def send_all_parts(
    endpoint: Endpoint, peer: str, plan: str, step: int, keys: Sequence[str], memory: Callable[[str], memoryview]
) -> None:
    """Send the bytes of any number of tensors; see :func:`send_parts`."""
    for first in range(0, len(keys), MOST_TENSORS):
        send_parts(endpoint, peer, TensorsReady(plan, step, tuple(keys[first : first + MOST_TENSORS])), memory)


def _slices(tensors: Sequence[memoryview], start: int) -> Iterator[memoryview]:
    """Yield the slices with bytes ``start`` to ``start + PART_BYTES`` of the joined tensors, or to their end."""
    left = PART_BYTES
    for tensor in tensors:
        if taken := tensor[start : start + left]:
            yield taken
        start, left = max(0, start - tensor.nbytes), left - taken.nbytes


class Arrivals:
    """A receiver of tensor parts, which copies their bytes into this process's copy of the sender's arena."""

    def __init__(self) -> None:
        self._readers: dict[TransferKey, ArenaReader] = {}
        self._missing: dict[TransferKey, tuple[TensorsReady, set[int]]] = {}  # by first tensor; starts of parts

    def expect(self, plan: str, readers: Mapping[str, ArenaReader]) -> None:
        """Accept the tensors of a plan. readers: key -> reader of this process's copy of the arena."""
        self._readers.update({(plan, key): reader for key, reader in readers.items()})

    def expects(self, plan: str, key: str) -> bool:
        """Return whether a tensor arrives in parts."""
        return (plan, key) in self._readers

    def clear(self) -> None:
        """Discard the tensors that have arrived only in part."""
        self._missing.clear()

    def add(self, received: Received) -> TensorsReady | None:
        """Copy a part; return the notice of its tensors if all parts have arrived, else None.

        Raises SecurityError for a part that no loaded plan receives from this sender, and for a repeated or wrong part.
        """
        part = received.message
        assert isinstance(part, TensorsPart)
        memories = []
        for key in part.keys:
            reader = self._readers.get((part.plan, key))
            if reader is None or reader.spec.owner != received.source:
                raise SecurityError(
                    f"bytes of tensor {printable(key)} of plan {printable(part.plan)}, step {part.step} came from "
                    f"{received.source}, but no loaded plan receives them from it"
                )
            memories.append(reader.target(sent_tensor(key)))
        ready = TensorsReady(part.plan, part.step, part.keys, part.due)
        slices, nbytes = [*_slices(memories, part.start)], sum(each.nbytes for each in memories)
        first = (part.plan, part.keys[0])
        begun, missing = self._missing.get(first) or (ready, set(range(0, max(1, nbytes), PART_BYTES)))
        sent, expected = (sum(each.nbytes for each in of) for of in (received.frames, slices))
        is_unique = len(set(part.keys)) == len(part.keys)
        if ready != begun or part.start not in missing or sent != expected or not is_unique:
            raise SecurityError(
                f"{_described(ready)}: {sent} bytes from {part.start} on came from {received.source}; expected a "
                f"missing part of {_described(begun)}, with {PART_BYTES} bytes unless the part is the last"
            )
        _copy(slices, received.frames)
        missing.remove(part.start)
        if missing:
            self._missing[first] = begun, missing
            return None
        self._missing.pop(first, None)
        return ready


def _described(ready: TensorsReady) -> str:
    return (
        f"{len(ready.keys)} tensors from {printable(ready.keys[0])} on, of plan {printable(ready.plan)}, step "
        f"{ready.step}, due at {ready.due:g}"
    )


def _copy(targets: Sequence[memoryview], frames: Sequence[memoryview]) -> None:
    """Copy the bytes of ``frames`` into ``targets``, which have the same total size but other boundaries."""
    rest = [*reversed(targets)]
    for frame in frames:
        while frame:
            target = rest.pop()
            taken = min(target.nbytes, frame.nbytes)
            target[:taken] = frame[:taken]
            frame = frame[taken:]
            if taken < target.nbytes:
                rest.append(target[taken:])
