"""What the master hands a worker once per plan: the worker's part of a client, as plain data with a closed schema."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runner.engine.compile import Part
from runner.engine.inputs import FIELDS, InputSlot
from runner.engine.plan import DevicePlan
from runner.engine.serialize import from_document, to_document
from runner.engine.tensor import Tensor
from runner.engine.transport.shared_memory import ArenaSpec
from runner.errors import SecurityError

_FIELDS = {"device", "graph", "fetches", "feeds", "inputs", "arenas"}


@dataclass(frozen=True)
class Assignment:
    """A worker's part of one client.

    device: the full name of the device that runs it. inputs: tensors fed by the worker's own input source.
    arenas: shared memory of everyone who takes part, by peer name; the master's carries feeds.
    """

    device: str
    part: Part
    inputs: tuple[InputSlot, ...]
    arenas: Mapping[str, ArenaSpec]

    def to_document(self) -> dict[str, Any]:
        """Describe as plain data."""
        return {
            "device": self.device,
            "graph": to_document(self.part.graph),
            "fetches": [str(tensor) for tensor in self.part.fetches],
            "feeds": [[str(fed), str(carrier)] for fed, carrier in self.part.feeds.items()],
            "inputs": [[str(s.tensor), s.split, s.field, s.lo, s.hi] for s in self.inputs],
            "arenas": [arena.to_plain() for arena in self.arenas.values()],
        }

    @classmethod
    def from_document(cls, document: object) -> Assignment:
        """Read what :meth:`to_document` made; the graph is verified, every shape inferred anew.

        Raises SecurityError or VerificationError for anything else.
        """
        if not isinstance(document, Mapping) or set(document) != _FIELDS:
            raise SecurityError(f"plan refused: expected a map with the fields {', '.join(sorted(_FIELDS))}")
        try:
            graph = from_document(document["graph"])
            fetches = tuple(Tensor.parse(text) for text in document["fetches"])
            feeds = {Tensor.parse(fed): Tensor.parse(carrier) for fed, carrier in document["feeds"]}
            for tensor in (*fetches, *feeds.values()):
                graph.spec(tensor)
            inputs = tuple(_input_slot(entry) for entry in document["inputs"])
            arenas = [ArenaSpec.from_plain(entry) for entry in document["arenas"]]
        except (TypeError, ValueError, AttributeError) as error:
            raise SecurityError(f"plan refused: {error}") from error
        part = Part(graph, fetches, feeds)
        return cls(str(document["device"]), part, inputs, {arena.owner: arena for arena in arenas})


def _input_slot(entry: Sequence[Any]) -> InputSlot:
    text, split, field, lo, hi = entry
    if field not in FIELDS or not isinstance(split, str) or type(lo) is not int or type(hi) is not int:
        raise ValueError(f"input {entry!r:.80}: expected [tensor, split, one of {', '.join(FIELDS)}, lo, hi]")
    return InputSlot(Tensor.parse(text), split, field, lo, hi)


def feed_key(tensor: Tensor) -> str:
    """Name of a fed value in the master's arena."""
    return f"feed {tensor}"


def fetch_key(tensor: Tensor) -> str:
    """Name of a fetched value in the arena of the worker that has it."""
    return f"fetch {tensor}"


def feed_sizes(plan: DevicePlan, inputs: Sequence[InputSlot]) -> dict[str, int]:
    """Bytes of every value the master feeds this device, by key."""
    own = {slot.tensor for slot in inputs}
    return {feed_key(feed.tensor): feed.spec.nbytes for feed in plan.feeds if feed.tensor not in own}


def sent_sizes(plan: DevicePlan) -> dict[str, int]:
    """Bytes of every value this device sends to others or hands back to the master, by key."""
    sizes = {
        instruction.attributes["key"]: plan.specs[instruction.inputs[0]].nbytes
        for instruction in plan.instructions
        if instruction.op == "send"
    }
    sizes.update({fetch_key(tensor): plan.specs[slot].nbytes for tensor, slot in plan.fetches.items()})
    return sizes
