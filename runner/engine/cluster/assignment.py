"""Assignments: the parts of a client that the master sends to the workers, as plain data with a closed schema."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from runner.engine.cluster.transport.messages import MASTER, MOST_STEPS, PART_BYTES, peer_name
from runner.engine.cluster.transport.shared_memory import ArenaSpec
from runner.engine.compile.passes.transfers import sent_tensor
from runner.engine.compile.plan import DevicePlan, Instruction
from runner.engine.compile.planner import Part
from runner.engine.compile.program import InputSlot
from runner.engine.compile.tensor_messages import tensor_messages
from runner.engine.graph.device import DeviceName
from runner.engine.graph.serialize import MAX_ITEMS, NAME, TENSOR, GraphDocument
from runner.engine.graph.tensor import Tensor, TensorSpec
from runner.errors import SecurityError
from runner.kernels.contract import KernelError, Layout
from runner.kernels.registry import Registry
from runner.system.schema import FLAG, Integer, ListOf, MapOf, Record, read_untrusted

BELL_BYTES = 8  # bytes of a doorbell; see :class:`~runner.kernels.contract.Doorbells`
FINISHED = "finished"  # key of the doorbell that a device rings at the end of a step


@dataclass(frozen=True)
class Assignment:
    """A worker's part of one client.

    device: full name of the device that runs the part. inputs: tensors that the worker reads from its input source.
    arenas: process name -> arena, for all participating processes. If the worker does not share memory with a process,
    the arena of that process has no path. The master's arena holds the feeds. layouts: variable -> layout that the
    master's plans chose. depth: number of consecutive steps whose feeds and fetches the arenas hold. deferred: see
    :class:`~runner.engine.compile.program.Client`. plan: the device's plan, which is not sent, because every process
    derives the same plan from the other fields.
    """

    device: str
    part: Part
    inputs: tuple[InputSlot, ...]
    arenas: Mapping[str, ArenaSpec]
    layouts: Mapping[str, Layout]
    depth: int
    deferred: bool
    plan: DevicePlan

    def to_document(self) -> dict[str, Any]:
        """Return the assignment as plain data."""
        return _DOCUMENT.write(self, "plan")

    @classmethod
    def from_document(cls, document: object, registry: Registry) -> "Assignment":
        """Read a document returned by :meth:`to_document`, verify the graph and infer every shape again.

        The returned assignment has a plan, and its arenas have a slot for every tensor that the plan transfers. Raises
        SecurityError if the document is malformed or inconsistent.
        """
        sent = read_untrusted(_DOCUMENT, document, "plan")
        try:
            _check_part(sent["device"], sent["part"], sent["inputs"])
            plan = sent["part"].plan(sent["device"], registry, sent["layouts"])
            assignment = cls(**sent, plan=plan)
            _check_arenas(assignment)
        except (ValueError, KernelError) as error:
            raise SecurityError(f"plan refused: {error}") from error
        return assignment


_DOCUMENT: Record[Any] = Record(
    dict,
    device=NAME,
    part=Record(Part, graph=GraphDocument(), fetches=ListOf(TENSOR, MAX_ITEMS), feeds=MapOf(TENSOR, TENSOR, MAX_ITEMS)),
    inputs=ListOf(
        Record(InputSlot, tensor=TENSOR, split=NAME, field=NAME, lo=Integer(), hi=Integer(), parts=Integer(low=1)),
        MAX_ITEMS,
    ),
    arenas=MapOf(NAME, Record(ArenaSpec), MAX_ITEMS),
    depth=Integer(low=1, high=MOST_STEPS),
    deferred=FLAG,
    layouts=MapOf(NAME, Record(Layout, tag=NAME, nbytes=Integer()), MAX_ITEMS),
)


@lru_cache(maxsize=1024)
def peer_of(device: str) -> str:
    """Return the name of the process that runs a device. Raises ValueError unless the device name is full."""
    name = DeviceName.parse(device)
    if name.job is None or name.task is None or not name.is_full:
        raise ValueError(f"device {device!r}: expected a full name such as /job:worker/task:0/device:cpu:0")
    return peer_name(name.job, name.task)


def feed_key(tensor: Tensor, index: int = 0) -> str:
    """Return the key of a fed value in the master's arena. index: index of the step in a series of steps."""
    return f"feed {tensor}{_suffix(index)}"


def fetch_key(tensor: Tensor, index: int = 0) -> str:
    """Return the key of a fetched value in the arena of the worker that computes it. index: see :func:`feed_key`."""
    return f"fetch {tensor}{_suffix(index)}"


def _suffix(index: int) -> str:
    return f" {index}" if index else ""


def bell_key(key: str) -> str:
    """Return the key of the doorbell of a transfer in the sender's arena."""
    return f"bell {key}"


def feed_sizes(plan: DevicePlan, inputs: Sequence[InputSlot], depth: int = 1) -> dict[str, int]:
    """Return arena key -> bytes of every value that the master feeds to this device. depth: see :class:`Assignment`."""
    own = {slot.tensor for slot in inputs}
    fed = [feed for feed in plan.feeds if feed.tensor not in own]
    return {feed_key(feed.tensor, index): feed.spec.nbytes for feed in fed for index in range(depth)}


def sent_sizes(plan: DevicePlan, depth: int = 1, sharing: Collection[str] = ()) -> dict[str, int]:
    """Return arena key -> bytes of every value that this device sends or that the master fetches from it.

    A tensor that several devices receive is stored once. depth: see :class:`Assignment`; if it is above 1, the device
    rings a doorbell at the end of each step. sharing: processes to which doorbells announce tensors.
    """
    sizes = {sent_tensor(send.attributes["key"]): plan.slots[send.inputs[0]].spec.nbytes for send in _sends(plan)}
    if depth > 1:
        sizes[FINISHED] = BELL_BYTES
    for tensor, slot in plan.fetches.items():
        sizes.update(dict.fromkeys((fetch_key(tensor, index) for index in range(depth)), plan.slots[slot].spec.nbytes))
    return sizes | _bell_sizes(plan, sharing)


def _bell_sizes(plan: DevicePlan, sharing: Collection[str]) -> dict[str, int]:
    """Return arena key -> bytes of the doorbells to ``sharing``. Boolean tensors have none: their bytes are checked."""
    sends = [send.attributes for send in _sends(plan) if plan.slots[send.inputs[0]].spec.dtype != "bool"]
    return {bell_key(send["key"]): BELL_BYTES for send in sends if peer_of(send["destination"]) in sharing}


def messages_of(plan: DevicePlan) -> int:
    """Return the largest number of tensor messages of one step, for a device in a process without shared memory.

    They carry the feeds, the values that the device sends, once for each receiver, and the fetched values.
    """
    sizes = [feed.spec.nbytes for feed in plan.feeds]
    sizes += [plan.slots[send.inputs[0]].spec.nbytes for send in _sends(plan)]
    sizes += [plan.slots[slot].spec.nbytes for slot in plan.fetches.values()]
    return sum(max(1, -(-nbytes // PART_BYTES)) for nbytes in sizes)


def sent_messages(assignment: Assignment, *, emulated: bool) -> list[tuple[str, ...]]:
    """Return the transfer keys of each message of a step, for the tensors that no doorbell announces.

    emulated: whether links are emulated, which also delays tensors in shared memory.
    """
    plan, arenas = assignment.plan, assignment.arenas
    own = arenas[peer_of(assignment.device)].sizes
    rung = {send.attributes["key"] for send in _sends(plan) if bell_key(send.attributes["key"]) in own}

    def shares_memory(destination: str) -> bool:
        return not emulated and not arenas[peer_of(destination)].is_copy

    return tensor_messages(plan, deferred=assignment.deferred, shares_memory=shares_memory, without=rung)


def recv_specs(plan: DevicePlan) -> dict[str, TensorSpec]:
    """Return transfer key -> shape and dtype of every value that this device receives."""
    return {recv.attributes["key"]: plan.slots[recv.outputs[0]].spec for recv in _recvs(plan)}


def senders(plan: DevicePlan) -> dict[str, str]:
    """Return transfer key -> sending process of every value that this device receives."""
    return {recv.attributes["key"]: peer_of(recv.attributes["source"]) for recv in _recvs(plan)}


def receivers(plan: DevicePlan, arena: Collection[str] = ()) -> set[str]:
    """Return the processes to which this device sends messages. arena: its keys; doorbells there replace messages."""
    sends = [send.attributes for send in _sends(plan)]
    return {peer_of(send["destination"]) for send in sends if bell_key(send["key"]) not in arena}


def _sends(plan: DevicePlan) -> list[Instruction]:
    return [instruction for instruction in plan.instructions if instruction.op == "send"]


def _recvs(plan: DevicePlan) -> list[Instruction]:
    return [instruction for instruction in plan.instructions if instruction.op == "recv"]


def _check_part(device: str, part: Part, inputs: Sequence[InputSlot]) -> None:
    """Raise ValueError unless graph, fetches, feeds and inputs are consistent and belong to the device."""
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
        raise ValueError(f"feeds {_listed(carriers)}: expected each placeholder once, {_listed(placeholders)}")
    for slot in inputs:
        if slot.tensor not in part.feeds:
            raise ValueError(f"input {slot.tensor}: expected one of the feeds {_listed(part.feeds)}")
        if slot.lo > slot.hi:
            raise ValueError(f"input {slot.tensor}: examples {slot.lo} to {slot.hi}, expected an ascending range")


def _check_arenas(assignment: Assignment) -> None:
    """Raise ValueError unless every tensor that the plan transfers has a slot of its size in the sender's arena."""
    plan, arenas = assignment.plan, assignment.arenas
    if (owners := [arena.owner for arena in arenas.values()]) != list(arenas):
        raise ValueError(f"arenas named {_listed(arenas)}, expected the names of their owners: {_listed(owners)}")
    own = peer_of(assignment.device)
    destinations = receivers(plan)
    absent = ({own, MASTER} | destinations | set(senders(plan).values())) - set(arenas)
    if absent:
        raise ValueError(f"arenas of {_listed(sorted(arenas))}: the arenas of {_listed(sorted(absent))} are missing")
    bells = {key: nbytes for key, nbytes in _bell_sizes(plan, destinations).items() if key in arenas[own].sizes}
    if arenas[own].sizes != sent_sizes(plan, assignment.depth) | bells:
        raise ValueError(f"the arena of {own} does not have the layout of the plan's sends and fetches")
    for recv in _recvs(plan):
        arena, sent = arenas[peer_of(recv.attributes["source"])], sent_tensor(recv.attributes["key"])
        expected = recv.arrangement.outputs[0].nbytes
        bell = bell_key(recv.attributes["key"])
        if arena.sizes.get(bell, BELL_BYTES) != BELL_BYTES:
            raise ValueError(f"the arena of {arena.owner} has {arena.sizes[bell]} bytes for {bell}: expected 8")
        if arena.sizes.get(sent) != expected:
            raise ValueError(
                f"the arena of {arena.owner} has {arena.sizes.get(sent, 'no')} bytes for {sent}, which {recv.node} "
                f"receives: expected {expected}"
            )
    if not feed_sizes(plan, assignment.inputs, assignment.depth).items() <= arenas[MASTER].sizes.items():
        raise ValueError(f"the arena of {MASTER} does not have the layout of the plan's feeds")


def _listed(names: Any) -> str:
    return ", ".join(str(name) for name in names) or "none"
