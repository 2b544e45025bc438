"""Sending and receiving tensors in parts, between processes that do not share memory."""

from collections.abc import Mapping

from runner.engine.cluster.transport.endpoint import Endpoint, Received
from runner.engine.cluster.transport.messages import PART_BYTES, TensorPart, TensorReady
from runner.engine.cluster.transport.shared_memory import ArenaReader
from runner.engine.compile.passes.transfers import sent_tensor
from runner.errors import SecurityError
from runner.system.text import printable

Transfer = tuple[str, str]  # (plan, key) of a tensor that a process receives once in every step of the plan


def send_parts(endpoint: Endpoint, peer: str, ready: TensorReady, memory: memoryview) -> None:
    """Send the bytes of a tensor in messages of at most ``PART_BYTES``, without copying them."""
    for start in range(0, max(1, memory.nbytes), PART_BYTES):
        part = TensorPart(ready.plan, ready.step, ready.key, ready.reference, start, ready.due)
        endpoint.send(peer, part, [memory[start : start + PART_BYTES]])


class Arrivals:
    """A receiver of tensor parts: it copies their bytes into this process's copy of the sender's arena."""

    def __init__(self) -> None:
        self._readers: dict[Transfer, ArenaReader] = {}
        self._missing: dict[Transfer, tuple[int, set[int]]] = {}

    def expect(self, plan: str, readers: Mapping[str, ArenaReader]) -> None:
        """Accept the tensors of a plan. readers: key -> reader of this process's copy of the arena."""
        self._readers.update({(plan, key): reader for key, reader in readers.items()})

    def clear(self) -> None:
        """Discard the tensors that have arrived only in part."""
        self._missing.clear()

    def add(self, received: Received) -> TensorReady | None:
        """Copy a part; return the reference to its tensor if all parts have arrived, else None.

        Raises SecurityError for a part that no loaded plan receives from this sender, and for a repeated or wrong part.
        """
        part = received.message
        assert isinstance(part, TensorPart)
        transfer, nbytes, data = (part.plan, part.key), part.reference.length, received.frames
        where = (
            f"tensor {printable(part.key)} of plan {printable(part.plan)}, step {part.step}: bytes from {part.start} on"
        )
        reader = self._readers.get(transfer)
        if reader is None or reader.spec.owner != received.source:
            raise SecurityError(f"{where} came from {received.source}, but no loaded plan receives the tensor from it")
        end = part.start
        for frame in data:
            reader.fill(sent_tensor(part.key), part.reference, end, frame)
            end += frame.nbytes
        step, missing = self._missing.get(transfer) or (part.step, set(range(0, max(1, nbytes), PART_BYTES)))
        if part.step != step or part.start not in missing or end != min(part.start + PART_BYTES, nbytes):
            raise SecurityError(
                f"{where} came from {received.source} in a part of {end - part.start} bytes: expected a missing part "
                f"of step {step}, with {PART_BYTES} bytes unless the part is the last"
            )
        missing.remove(part.start)
        if missing:
            self._missing[transfer] = step, missing
            return None
        self._missing.pop(transfer, None)
        return TensorReady(part.plan, part.step, part.key, part.reference, part.due)
