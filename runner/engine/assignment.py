"""What the master hands a worker once per plan: the worker's part of a client, as plain data with a closed schema."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from runner.engine.compile import Part
from runner.engine.device import DeviceName
from runner.engine.inputs import FIELDS, InputSlot
from runner.engine.passes.transfers import sent_tensor
from runner.engine.plan import DevicePlan, Instruction
from runner.engine.serialize import from_document, to_document
from runner.engine.tensor import Tensor
from runner.engine.transport.names import MASTER, peer_name
from runner.engine.transport.shared_memory import ArenaSpec
from runner.errors import SecurityError
from runner.kernels.contract import KernelError, Layout
from runner.kernels.registry import Registry

_FIELDS = {"device", "graph", "fetches", "feeds", "inputs", "arenas", "layouts"}


@dataclass(frozen=True)
class Assignment:
    """A worker's part of one client.

    device: the full name of the device that runs it. inputs: tensors fed by the worker's own input source.
    arenas: shared memory of everyone who takes part, by peer name; the master's carries feeds. layouts: of the
    variables, as the master's plans have settled them. plan: what the device does in a step; every process derives
    the same from the rest.
    """

    device: str
    part: Part
    inputs: tuple[InputSlot, ...]
    arenas: Mapping[str, ArenaSpec]
    layouts: Mapping[str, Layout]
    plan: DevicePlan

    def to_document(self) -> dict[str, Any]:
        """Describe as plain data."""
        return {
            "device": self.device,
            "graph": to_document(self.part.graph),
            "fetches": [str(tensor) for tensor in self.part.fetches],
            "feeds": [[str(fed), str(carrier)] for fed, carrier in self.part.feeds.items()],
            "inputs": [[str(s.tensor), s.split, s.field, s.lo, s.hi, s.parts] for s in self.inputs],
            "arenas": [arena.to_plain() for arena in self.arenas.values()],
            "layouts": [[name, layout.tag, layout.nbytes] for name, layout in self.layouts.items()],
        }

    @classmethod
    def from_document(cls, document: object, registry: Registry) -> Assignment:
        """Read what :meth:`to_document` made; the graph is verified, every shape inferred anew.

        What comes back can be run as it is: it has a plan, and arenas with room for all that the plan moves.
        Raises SecurityError for anything else.
        """
        try:
            assignment = _read(document, registry)
            _check_arenas(assignment)
        except (ValueError, KernelError) as error:
            raise SecurityError(f"plan refused: {error}") from error
        return assignment


@lru_cache(maxsize=1024)
def peer_of(device: str) -> str:
    """Name of the peer that runs a device: its job and task. Raises ValueError for a name that lacks a part."""
    name = DeviceName.parse(device)
    if name.job is None or name.task is None or not name.is_full:
        raise ValueError(f"device {device!r}: expected a full name such as /job:worker/task:0/device:cpu:0")
    return peer_name(name.job, name.task)


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
    """Bytes of every value this device sends to others or hands back to the master, by the name of its place.

    A tensor that several devices read lies there once.
    """
    sizes = {
        sent_tensor(instruction.attributes["key"]): plan.slots[instruction.inputs[0]].spec.nbytes
        for instruction in plan.instructions
        if instruction.op == "send"
    }
    sizes.update({fetch_key(tensor): plan.slots[slot].spec.nbytes for tensor, slot in plan.fetches.items()})
    return sizes


def senders(plan: DevicePlan) -> dict[str, str]:
    """The peer that sends each value this device receives, by key."""
    return {
        instruction.attributes["key"]: peer_of(instruction.attributes["source"])
        for instruction in plan.instructions
        if instruction.op == "recv"
    }


def _read(document: object, registry: Registry) -> Assignment:
    if not isinstance(document, Mapping) or set(document) != _FIELDS:
        raise ValueError(f"expected a map with the fields {', '.join(sorted(_FIELDS))}")
    fetches = [_tensor(entry) for entry in _items(document["fetches"], "fetches")]
    feeds = [_items(entry, "feeds", 2) for entry in _items(document["feeds"], "feeds")]
    inputs = [_input_slot(entry) for entry in _items(document["inputs"], "inputs")]
    arenas = [ArenaSpec.from_plain(entry) for entry in _items(document["arenas"], "arenas")]
    part = Part(
        from_document(document["graph"]),
        tuple(fetches),
        _by_name("feeds", [(_tensor(fed), _tensor(carrier)) for fed, carrier in feeds]),
    )
    by_owner = _by_name("arenas", [(arena.owner, arena) for arena in arenas])
    layouts = _by_name("layouts", [_layout(entry) for entry in _items(document["layouts"], "layouts")])
    device = _text(document["device"])
    _check_part(device, part, inputs)
    return Assignment(device, part, tuple(inputs), by_owner, layouts, part.plan(device, registry, layouts))


def _layout(entry: object) -> tuple[str, Layout]:
    name, tag, nbytes = _items(entry, "layouts", 3)
    if type(nbytes) is not int or nbytes < 0:
        raise ValueError(f"layout {entry!r:.80}: expected [variable, tag, bytes]")
    return _text(name), Layout(_text(tag), nbytes)


def _check_part(device: str, part: Part, inputs: Sequence[InputSlot]) -> None:
    """Raise ValueError unless graph, fetches, feeds and inputs belong together and to the device."""
    graph = part.graph
    peer_of(device)
    for node in graph:
        if node.device != device:
            raise ValueError(f"node {node.name!r} is on {node.device!r}, expected {device}")
    for tensor in part.fetches:
        graph.spec(tensor)
    carriers = sorted(part.feeds.values())
    placeholders = sorted(node[0] for node in graph if node.op == "placeholder")
    if carriers != placeholders:
        raise ValueError(f"feeds enter at {_listed(carriers)}, expected each placeholder once: {_listed(placeholders)}")
    for slot in inputs:
        if slot.tensor not in part.feeds:
            raise ValueError(f"input {slot.tensor}: expected one of the feeds {_listed(part.feeds)}")


def _check_arenas(assignment: Assignment) -> None:
    """Raise ValueError unless every value that the plan moves has its slot."""
    plan, arenas = assignment.plan, assignment.arenas
    own = peer_of(assignment.device)
    destinations = {peer_of(i.attributes["destination"]) for i in plan.instructions if i.op == "send"}
    absent = ({own, MASTER} | destinations | set(senders(plan).values())) - set(arenas)
    if absent:
        raise ValueError(f"no arena of {', '.join(sorted(absent))}, only of {', '.join(sorted(arenas)) or 'nobody'}")
    if arenas[own].sizes != sent_sizes(plan):
        raise ValueError(f"the arena of {own} is not laid out for what the plan sends and fetches")
    for instruction in plan.instructions:
        if instruction.op == "recv":
            _check_source(instruction, arenas[peer_of(instruction.attributes["source"])])
    if not feed_sizes(plan, assignment.inputs).items() <= arenas[MASTER].sizes.items():
        raise ValueError(f"the arena of {MASTER} is not laid out for what the plan is fed")


def _check_source(recv: Instruction, arena: ArenaSpec) -> None:
    """Raise ValueError unless a sender's arena has a place for what is received, of its size."""
    (wanted,) = recv.arrangement.outputs
    sent = sent_tensor(recv.attributes["key"])
    if arena.sizes.get(sent) != wanted.nbytes:
        raise ValueError(
            f"the arena of {arena.owner} has {arena.sizes.get(sent, 'no')} bytes for {sent}, which {recv.node} "
            f"receives: expected {wanted.nbytes}"
        )


def _input_slot(entry: object) -> InputSlot:
    text, split, field, lo, hi, parts = _items(entry, "inputs", 6)
    numbers = all(type(each) is int for each in (lo, hi, parts))
    if field not in FIELDS or not numbers or not 0 <= lo <= hi or parts < 1:
        raise ValueError(f"input {entry!r:.80}: expected [tensor, split, one of {', '.join(FIELDS)}, lo, hi, parts]")
    return InputSlot(_tensor(text), _text(split), field, lo, hi, parts)


def _tensor(text: object) -> Tensor:
    tensor = Tensor.parse(_text(text))
    if str(tensor) != text:
        raise ValueError(f"tensor reference {text!r:.80}: expected {tensor}")
    return tensor


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"expected text, came {value!r:.80}")
    return value


def _items(value: object, where: str, count: int | None = None) -> list[Any]:
    if not isinstance(value, list) or (count is not None and len(value) != count):
        raise ValueError(f"{where}: expected a list{'' if count is None else f' of {count}'}, came {value!r:.80}")
    return value


def _by_name(where: str, pairs: Sequence[tuple[Any, Any]]) -> dict[Any, Any]:
    named = dict(pairs)
    if len(named) != len(pairs):
        raise ValueError(f"{where}: {_listed(name for name, _ in pairs)}, expected no name twice")
    return named


def _listed(names: Any) -> str:
    return ", ".join(str(name) for name in names) or "none"
