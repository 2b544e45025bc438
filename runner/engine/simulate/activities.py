"""A step of a client as activities of the event loop: computations on devices and transfers over links."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from runner.engine.compile.plan import DevicePlan, Instruction
from runner.engine.events.loop import EventLoop
from runner.engine.events.state import NONE
from runner.engine.graph.device import task_of
from runner.engine.simulate.network import Network

Seconds = Callable[[DevicePlan, Instruction], float]
"""A function that returns the seconds of an instruction of a plan."""


@dataclass(frozen=True)
class Transfer:
    """One transfer of a step. nbytes: bytes of the tensor."""

    key: str
    source: str
    destination: str
    nbytes: int


@dataclass
class Segment:
    """Consecutive instructions of a device that wait for no transfer among themselves, and that send at their end.

    waits: keys of the transfers that arrive before the segment. first: index of its first instruction. seconds: the
    duration of each instruction. sends: the transfers that begin when the segment ends.
    """

    first: int
    waits: list[str] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    sends: list[Transfer] = field(default_factory=list)
    computes: bool = False


def segments(plan: DevicePlan, seconds: Seconds) -> list[Segment]:
    """Return the segments of a plan, in order; every instruction belongs to one of them."""
    found = [Segment(0)]
    for number, instruction in enumerate(plan.instructions):
        receives, sends = instruction.op == "recv", instruction.op == "send"
        full = found[-1].computes or bool(found[-1].sends)
        if (receives and full) or (not sends and found[-1].sends):
            found.append(Segment(number))
        current = found[-1]
        current.seconds.append(seconds(plan, instruction))
        current.computes |= not receives and not sends
        key = instruction.attributes.get("key", "")
        if receives:
            current.waits.append(key)
        elif sends:
            nbytes = plan.slots[instruction.inputs[0]].spec.nbytes
            current.sends.append(Transfer(key, plan.device, instruction.attributes["destination"], nbytes))
    return found


@dataclass(frozen=True)
class _Row:
    """An activity of a run. device: the device whose unit runs it, or None. host: whether it is the unit of the
    device's host. after: numbers of other rows. begins: whether it is the first segment of its device."""

    delay_s: float
    after: tuple[int, ...]
    device: str | None = None
    host: bool = False
    begins: bool = False
    nbytes: int = 0
    links: tuple[int, ...] = ()


class Run:
    """The activities of one run of a client, which :meth:`add_to` adds to an event loop any number of times.

    message_s: seconds that the host of a sender spends on each message. together: whether the part of each device
    starts when all its transfers have arrived, as that of a deferred client.
    """

    def __init__(
        self,
        plans: Mapping[str, DevicePlan],
        seconds: Mapping[str, Seconds],
        network: Network,
        *,
        message_s: float = 0.0,
        together: bool = False,
    ) -> None:
        self.segments = {device: segments(plan, seconds[device]) for device, plan in plans.items()}
        self.transfers = [sent for parts in self.segments.values() for each in parts for sent in each.sends]
        self._rows = [*self._of_transfers(network, message_s), *self._of_segments(together)]

    def _of_transfers(self, network: Network, message_s: float) -> Iterator[_Row]:
        """Yield two rows for each transfer: the message on the sender's host, and the transfer."""
        number = 2 * len(self.transfers)
        for device, parts in self.segments.items():
            for each in parts:
                for sent in each.sends:
                    route = network.route(task_of(sent.source), task_of(sent.destination))
                    message = 2 * self._number[sent.key]
                    yield _Row(message_s, (number,), device, host=True)
                    yield _Row(route.latency_s, (message,), nbytes=sent.nbytes, links=route.links)
                number += 1

    def _of_segments(self, together: bool) -> Iterator[_Row]:
        """Yield a row for each segment."""
        number = 2 * len(self.transfers)
        for device, parts in self.segments.items():
            awaited = [key for each in parts for key in each.waits]
            for position, each in enumerate(parts):
                keys = (awaited if position == 0 else []) if together else each.waits
                before = () if position == 0 else (number - 1,)
                arrivals = (2 * self._number[key] + 1 for key in keys)
                yield _Row(sum(each.seconds), (*before, *arrivals), device, begins=position == 0)
                number += 1

    @cached_property
    def _number(self) -> dict[str, int]:
        """Key -> number of the transfer."""
        return {sent.key: number for number, sent in enumerate(self.transfers)}

    def add_to(
        self,
        loop: EventLoop,
        units: Mapping[str, int],
        *,
        rank: float = 0.0,
        delays_s: Mapping[str, float] | None = None,
        after: Sequence[int] = (),
    ) -> list[int]:
        """Add the activities of one run and return their numbers.

        units: device -> its unit; the unit of its host has the number ``len(units)`` more. rank: see ``EventLoop.add``.
        delays_s: device -> seconds by which its first segment becomes longer. after: activities before the first
        segment of each device.
        """
        base, late = len(loop), delays_s or {}
        for row in self._rows:
            unit = NONE if row.device is None else units[row.device] + len(units) * row.host
            before = [base + number for number in row.after]
            loop.add(
                row.delay_s + (late.get(row.device or "", 0.0) if row.begins else 0.0),
                amount=float(row.nbytes),
                links=row.links,
                unit=unit,
                rank=rank,
                after=[*before, *after] if row.begins else before,
            )
        return list(range(base, base + len(self._rows)))
