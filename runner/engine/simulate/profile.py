"""A profile: the costs of planned instructions and of messages, measured on one machine, as a JSON document.

A profile is plain data that can be copied to another machine. Its instructions are grouped in families: one op of one
library, with equal attributes, dtypes, layouts and threads, in several shapes.
"""

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from runner.bounds import Count, CountOrZero, NonNegative, Positive
from runner.engine.compile.passes.transfers import TRANSFERS
from runner.engine.compile.plan import DevicePlan, Instruction
from runner.engine.compile.program import Client
from runner.engine.graph import op as op_table

MEASURED, INTERPOLATED, EXTRAPOLATED, ROOFLINE = ORIGINS = ("measured", "interpolated", "extrapolated", "roofline")
"""Origins of a cost: measured in this shape; interpolated between measured shapes; extrapolated beyond them; computed
from the rates of a described device."""

INPUT_THREADS = 1
"""The number of threads of the families of inputs, whose times do not depend on the kernel threads."""

_FLOPS_PER_BYTE = 8.0
_NAMES = ("key", "source", "destination", "variable", "seed", "value", "begin", "size", "sizes", "shape")
"""Attributes that name a node or repeat a shape, and so do not change the time of an instruction."""

_NUMBER = re.compile(r"#[^ ;]+")

Shapes = tuple[tuple[int, ...], ...]


class InstructionSignature(NamedTuple):
    """A planned instruction without its names. form: dtypes, layouts and attributes, as text. shapes: of the inputs,
    then of the outputs. work: bytes of memory traffic, plus one for every ``_FLOPS_PER_BYTE`` operations."""

    op: str
    library: str
    form: str
    shapes: Shapes
    work: float


@dataclass(frozen=True)
class Point:
    """The measured time of one signature in a family. us: microseconds."""

    shapes: Shapes
    work: NonNegative
    us: NonNegative

    def distance(self, shapes: Shapes) -> float:
        """Return the sum of the absolute logarithms of the ratios of all extents; infinite for another rank."""
        own, other = ([extent for shape in each for extent in (len(shape), *shape)] for each in (self.shapes, shapes))
        if len(own) != len(other):
            return math.inf
        return sum(abs(math.log((a + 1) / (b + 1))) for a, b in zip(own, other, strict=True))


@dataclass(frozen=True)
class Family:
    """The measured shapes of one kind of instruction.

    threads: kernel threads of the process. neighbours: number of other threads that computed the
    same at the same time, in place of other processes.
    """

    op: str
    library: str
    form: str
    threads: Count
    points: tuple[Point, ...]
    neighbours: CountOrZero = 0


@dataclass(frozen=True)
class MessageCosts:
    """The costs of messages between processes of the machine, in microseconds unless the name has another unit.

    send, receive: time of the thread that sends or receives a message. relay: time of all other threads of both
    processes. latency: the rest of the time of a message between idle processes. master: time of the master's thread
    for each worker and step. worker: time of a worker's thread for each step. copy_gbyte_per_s: rate of wire copies.
    """

    send: NonNegative
    receive: NonNegative
    relay: NonNegative
    latency: NonNegative
    master: NonNegative
    worker: NonNegative
    copy_gbyte_per_s: Positive


@dataclass(frozen=True)
class Machine:
    """The machine of a profile. versions: library -> version."""

    cpu: str
    cores: Count
    versions: Mapping[str, str]


class Estimate(NamedTuple):
    """The seconds of an instruction, and their origin (one of ``ORIGINS``)."""

    seconds: float
    origin: str


@dataclass(frozen=True)
class Profile:
    """The measured costs of one machine.

    messages: costs if doorbells in shared memory announce tensors and steps. crowded: the same if the processes have
    more kernel threads than the machine has cores, so that a process sleeps whenever it waits. queued: costs if
    messages of ZeroMQ announce tensors, as in clients that run concurrently, on emulated links and between hosts.
    step_us: microseconds of a step in one process, without instructions and inputs. These four are None if they were
    not measured.
    """

    machine: Machine
    messages: MessageCosts | None
    crowded: MessageCosts | None
    queued: MessageCosts | None
    step_us: NonNegative | None
    families: tuple[Family, ...]

    def estimate(self, signature: InstructionSignature, threads: int, neighbours: int = 0) -> Estimate | None:
        """Return the time of an instruction; None if no instruction of its op was measured with these numbers.

        A measured shape has its measured time. Between two shapes of one family, the time is linear in the work.
        Outside this range, the time of the nearest shape is scaled by the ratio of the work. If no family has the same
        form, all families of the op are used as one family, and the origin is always ``EXTRAPOLATED``.
        """
        known, key = self._estimates, (signature, threads, neighbours)
        if key not in known:
            alike = self._families.get((signature.op, signature.library, signature.form, threads, neighbours), ())
            others = self._of_op.get((signature.op, threads, neighbours), ())
            found = _between(alike or others, signature) if alike or others else None
            known[key] = found if alike or found is None else found._replace(origin=EXTRAPOLATED)
        return known[key]

    def with_families(self, measured: Iterable[Family]) -> "Profile":
        """Return a profile that also has these families, whose shapes replace equal shapes."""
        points: dict[tuple[str, str, str, int, int], dict[Shapes, Point]] = defaultdict(dict)
        for family in (*self.families, *measured):
            own = points[family.op, family.library, family.form, family.threads, family.neighbours]
            own.update({point.shapes: point for point in family.points})
        families = (
            Family(op, library, form, threads, tuple(own.values()), neighbours)
            for (op, library, form, threads, neighbours), own in sorted(points.items())
        )
        return replace(self, families=tuple(families))

    @cached_property
    def _estimates(self) -> dict[tuple[InstructionSignature, int, int], Estimate | None]:
        """The estimates so far, because plans repeat signatures."""
        return {}

    @cached_property
    def _families(self) -> Mapping[tuple[str, str, str, int, int], Sequence[Point]]:
        return {
            (each.op, each.library, each.form, each.threads, each.neighbours): each.points for each in self.families
        }

    @cached_property
    def _of_op(self) -> Mapping[tuple[str, int, int], Sequence[Point]]:
        found: dict[tuple[str, int, int], list[Point]] = {}
        for each in self.families:
            found.setdefault((each.op, each.threads, each.neighbours), []).extend(each.points)
        return found


def _between(points: Sequence[Point], wanted: InstructionSignature) -> Estimate:
    """Return the time of a shape from the points of a family."""
    ordered = sorted(points, key=lambda point: (point.distance(wanted.shapes), abs(point.work - wanted.work)))
    nearest = ordered[0]
    if nearest.shapes == wanted.shapes:
        return Estimate(1e-6 * nearest.us, MEASURED)
    for other in ordered[1:]:
        low, high = sorted((nearest, other), key=lambda point: point.work)
        if low.work <= wanted.work <= high.work and low.work < high.work:
            part = (wanted.work - low.work) / (high.work - low.work)
            return Estimate(1e-6 * (low.us + part * (high.us - low.us)), INTERPOLATED)
    ratio = wanted.work / nearest.work if nearest.work else 1.0
    return Estimate(1e-6 * nearest.us * ratio, INTERPOLATED if ratio == 1.0 else EXTRAPOLATED)


def measured_neighbours(processes: int, threads: int, cores: int) -> int:
    """Return the number of neighbours that represents the other processes of a machine in a profile.

    If there are more processes than cores, one more than fits represents the others, because they compute in turns;
    only the CPU time of processes with one thread can be measured so.
    """
    fitting = cores // threads
    return max(0, min(processes - 1, fitting if threads == 1 else fitting - 1))


def signature_of(plan: DevicePlan, instruction: Instruction) -> InstructionSignature:
    """Return the signature of a planned instruction."""
    slots = [[plan.slots[slot] for slot in each] for each in (instruction.inputs, instruction.outputs)]
    inputs, outputs = ([slot.spec for slot in each] for each in slots)
    if instruction.op in TRANSFERS:
        work = float(sum(spec.nbytes for spec in (*inputs, *outputs)))
    else:
        cost = op_table.lookup(instruction.op).cost(inputs, outputs, instruction.attributes)
        work = cost.nbytes + cost.flops / _FLOPS_PER_BYTE
    kept = sorted(name for name in instruction.attributes if name not in _NAMES and not name.endswith("_shape"))
    form = [
        *(" ".join(f"{slot.spec.dtype}:{slot.layout.tag}" for slot in each) for each in slots),
        *(f"{name}={_NUMBER.sub('#', str(instruction.attributes[name]))}" for name in kept),
    ]
    shapes = tuple(tuple(spec.shape) for spec in (*inputs, *outputs))
    return InstructionSignature(instruction.op, instruction.library, "; ".join(form), shapes, work)


def input_signature(data: str, client: Client, plan: DevicePlan) -> InstructionSignature | None:
    """Return the signature of the input of a plan's step; None if there is none. data: name of the dataset."""
    fed = {feed.tensor: feed.spec for feed in plan.feeds}
    specs = [fed[slot.tensor] for slot in client.inputs if slot.tensor in fed]
    shapes = tuple(tuple(spec.shape) for spec in specs)
    return InstructionSignature("input", "", data, shapes, float(sum(spec.nbytes for spec in specs))) if specs else None


def batch_signature(of_input: InstructionSignature) -> InstructionSignature:
    """Return the signature of making the batch of an input, in a thread of its own. of_input: its signature."""
    return of_input._replace(op="batch")


def families_of(
    measured: Iterable[tuple[InstructionSignature, float]], threads: int, neighbours: int = 0
) -> tuple[Family, ...]:
    """Return the families of measured signatures. measured: signatures and seconds; equal signatures are averaged."""
    seconds: dict[InstructionSignature, list[float]] = {}
    for signature, each in measured:
        seconds.setdefault(signature, []).append(each)
    points: dict[tuple[str, str, str], list[Point]] = {}
    for signature, found in seconds.items():
        us = round(1e6 * sum(found) / len(found), 3)
        key = signature.op, signature.library, signature.form
        points.setdefault(key, []).append(Point(signature.shapes, signature.work, us))
    return tuple(Family(*key, threads, tuple(each), neighbours) for key, each in sorted(points.items()))
