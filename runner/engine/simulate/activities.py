"""A step of a client as activities of the event loop: computations on devices and transfers over links."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import KW_ONLY, dataclass, field, replace
from itertools import chain

import numpy as np

from runner.engine.compile.plan import DevicePlan, Instruction
from runner.engine.events.loop import EventLoop
from runner.engine.events.state import NONE
from runner.engine.events.storage import block_of, waiting
from runner.engine.graph.device import task_of
from runner.engine.simulate.hosts import HostShare
from runner.engine.simulate.network import Network, Route


@dataclass(frozen=True)
class Transfer:
    """One transfer of a step. nbytes: bytes of the tensor."""

    key: str
    source: str
    destination: str
    nbytes: int


@dataclass
class Segment:
    """Consecutive instructions of a device that wait for transfers only before the first, and send only at the end.

    waits: keys of the transfers that arrive before the segment. first: index of its first instruction. seconds: the
    duration of each instruction. messages: the transfers of each message that leaves when the segment ends. computes:
    whether it has an instruction other than transfers and conversions before sends. outside_s: seconds before its first
    instruction.
    """

    first: int
    waits: list[str] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    messages: list[tuple[Transfer, ...]] = field(default_factory=list)
    computes: bool = False
    outside_s: float = 0.0

    @property
    def sends(self) -> Iterator[Transfer]:
        """The transfers that begin when the segment ends."""
        return chain.from_iterable(self.messages)

    def on(self, device: Callable[[str], str]) -> "Segment":
        """Return the segment with other devices. device: name of a device -> the device that takes its place."""
        messages = [
            tuple(replace(sent, source=device(sent.source), destination=device(sent.destination)) for sent in each)
            for each in self.messages
        ]
        return replace(self, messages=messages)


def segments(
    plan: DevicePlan,
    seconds: Callable[[DevicePlan, Instruction], float],
    *,
    groups: Sequence[tuple[str, ...]] | None = None,
    together: bool = False,
    apart: bool = False,
    outside_s: float = 0.0,
) -> list[Segment]:
    """Return the segments of a plan, in order; every instruction belongs to one of them.

    Conversions of layouts between sends do not separate these sends. seconds: returns the seconds of an instruction of
    a plan. groups: the keys of the transfers in each message (see ``tensor_messages``); None for one message each.
    together: all transfers arrive before the first segment, so that only sends end a segment. apart: a message that
    takes time ends its segment, so that the next message does not delay its transfers. outside_s: seconds before the
    first instruction of the plan.
    """
    found, ended = [Segment(0, outside_s=outside_s)], False
    ends = None if groups is None else {keys[-1]: keys for keys in groups}
    sent: dict[str, Transfer] = {}
    for number, instruction in enumerate(plan.instructions):
        receives, sends = instruction.op == "recv", _sends(plan.instructions, number)
        waits = receives and found[-1].computes and not together
        if waits or ended or (not sends and found[-1].messages):
            found.append(Segment(number))
        current, spent = found[-1], seconds(plan, instruction)
        current.seconds.append(spent)
        ended = False
        current.computes |= not receives and not sends
        key = instruction.attributes.get("key", "")
        if receives:
            current.waits.append(key)
        elif instruction.op == "send":
            nbytes = plan.slots[instruction.inputs[0]].spec.nbytes
            sent[key] = Transfer(key, plan.device, instruction.attributes["destination"], nbytes)
            if keys := (key,) if ends is None else ends.get(key, ()):
                current.messages.append(tuple(sent.pop(each) for each in keys))
                ended = apart and spent > 0.0
    return found


def _sends(instructions: Sequence[Instruction], number: int) -> bool:
    """Return whether an instruction is a send, or one of the conversions directly before a send."""
    while number < len(instructions) and instructions[number].op == "convert":
        number += 1
    return number < len(instructions) and instructions[number].op == "send"


_SegmentKey = tuple[str, int]
"""A segment: its device and its number there."""


@dataclass(frozen=True)
class _Row:
    """An activity of a run. unit, amount, links, weight: see ``EventLoop.add``. after: positions of other rows. begins:
    the device whose first segment this is, "" for other rows that begin a run, or None."""

    delay_s: float
    after: tuple[int, ...]
    unit: int = NONE
    begins: str | None = None
    amount: float = 0.0
    links: tuple[int, ...] = ()
    weight: int = 1


@dataclass(eq=False)
class ClientActivities:
    """The activities of one run of a client; :meth:`add_to` can add them to an event loop any number of times.

    The first activities are the segments of all devices, in order. arrivals: key of a transfer -> position of the
    activity that ends when the tensor has arrived.

    parts: device -> segments of its plan; devices with the same plan can share them. units: device -> its unit; the
    number of its host's unit is greater by ``len(units)``. message_s: seconds that the host of a sender spends on each
    message. in_order: whether the transfers from one device to another follow one another in the order of their sends,
    which the schedule of the devices assumes. together: whether the part of each device starts when all its transfers
    have arrived, as in a deferred client. shares: device -> its share of the cores of a shared host. serial: link that
    messages use one after the other -> its unit. If ``message_s`` is 0, no host is shared and no link is serial, all
    tensors from one segment to another are one message, because they have the same route and start.
    """

    parts: Mapping[str, Sequence[Segment]]
    network: Network
    units: Mapping[str, int]
    _: KW_ONLY
    message_s: float = 0.0
    in_order: bool = False
    together: bool = False
    shares: Mapping[str, HostShare] = field(default_factory=dict)
    serial: Mapping[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.arrivals: dict[str, int] = {}
        rows = self._rows()
        block = block_of(
            [(row.delay_s, row.amount, row.weight, row.unit, row is rows[-1]) for row in rows],
            [row.links for row in rows],
            [row.after for row in rows],
        )
        self._begins = np.array([position for position, row in enumerate(rows) if row.begins is not None], np.int64)
        self._begin_on = [row.begins for row in rows if row.begins is not None]
        self._waits, self._block = block.waits, waiting(block, [-1], self._begins)
        self._pairs = {(sent.source, sent.destination) for sent in self.transfers}

    @property
    def transfers(self) -> list[Transfer]:
        """The transfers of all devices."""
        return [sent for own in self.parts.values() for each in own for sent in each.sends]

    def on(self, device: Callable[[str], str]) -> "ClientActivities":
        """Return the activities with other devices. device: name of a device -> the device that takes its place."""
        parts = {device(name): [each.on(device) for each in own] for name, own in self.parts.items()}
        links = None if self.shares else self._links_on(device)
        if links is None:
            return replace(self, parts=parts)
        units = {NONE: NONE} | {self.serial[link]: self.serial[links[link]] for link in links if link in self.serial}
        for name in self.parts:
            for host in (0, len(self.units)):
                units[self.units[name] + host] = self.units[device(name)] + host
        activities = self._block.activities.copy()
        activities["unit"] = [units[unit] for unit in activities["unit"].tolist()]
        taken = np.array([links[link] for link in self._block.links.tolist()], np.int64)
        found = copy(self)
        found.parts, found._begin_on = parts, [device(name) for name in self._begin_on]
        found._block = self._block._replace(activities=activities, links=taken)
        return found

    def _links_on(self, device: Callable[[str], str]) -> dict[int, int] | None:
        """Return link -> its counterpart between other devices; None if the routes differ in more than their links."""
        links: dict[int, int] = {}
        for source, destination in self._pairs:
            own, other = self._route(source, destination), self._route(device(source), device(destination))
            if replace(own, links=()) != replace(other, links=()) or len(own.links) != len(other.links):
                return None
            for link, taken in zip(own.links, other.links, strict=True):
                if links.setdefault(link, taken) != taken or (link in self.serial) != (taken in self.serial):
                    return None
        return links

    def add_to(
        self, loop: EventLoop, *, rank: float, delays_s: Mapping[str, float], after: Sequence[int] = ()
    ) -> tuple[int, int]:
        """Add the activities of one run; return the number of the first and of the last, which ends the run.

        rank: see ``EventLoop.add``. delays_s: device -> seconds by which its first segment becomes longer. after:
        activities before the first segment of each device; empty for the activity that was added last.
        """
        block = self._block._replace(waits=self._waits) if after else self._block
        if delays_s:
            block = block._replace(activities=block.activities.copy())
            block.activities["delay_s"][self._begins] += [delays_s.get(device, 0.0) for device in self._begin_on]
        first = loop.add_block(block, rank, after, self._begins)
        return first, first + len(block.activities) - 1

    def _rows(self) -> list[_Row]:
        """Return the rows of all segments, all messages, the master if it has work, the next batches, and the end.

        A run ends after the next batches are made, because the next run needs them.
        """
        keys = [(device, number) for device, own in self.parts.items() for number in range(len(own))]
        position = {key: k for k, key in enumerate(keys)}
        receivers = self._receivers()
        after: dict[_SegmentKey, list[int]] = {
            (device, number): [at - 1] if number else [] for (device, number), at in position.items()
        }
        others: list[_Row] = []
        moved: dict[tuple[str, str], int] = {}  # sender and receiver -> position of their last transfer so far

        def add(*rows: _Row) -> int:
            others.extend(rows)
            return len(position) + len(others) - 1

        for (device, number), at in position.items():
            for sent in self._messages(self.parts[device][number], receivers):
                pair = device, sent[0].destination
                *first, moves = self._message(sent, follows=pair in moved)
                before = at
                for row in first:
                    before = add(replace(row, after=(before,)))
                behind = (moved[pair],) if pair in moved else ()
                processed = [add(replace(row, after=(before,))) for row in self._processing(sent)]
                before = add(replace(moves, after=(before, *behind)))
                if self.in_order:
                    moved[pair] = before
                if processed:
                    before = add(_Row(0.0, (before, *processed)))
                for receiver in dict.fromkeys(receivers[each.key] for each in sent):
                    after[receiver].append(before)
                self.arrivals |= dict.fromkeys((each.key for each in sent), before)
        remote = {device: share for device, share in self.shares.items() if share.messages and self.parts.get(device)}
        for device, share in remote.items():
            order = add(replace(self._master(share), begins=""))
            after[device, 0].append(add(_Row(share.latency_s, (order,))))
        for device, share in remote.items():
            answer = add(_Row(share.latency_s, (position[device, len(self.parts[device]) - 1],)))
            add(replace(self._master(share), after=(answer,)))
        for share in self.shares.values():
            if share.batch_s:
                add(_Row(0.0, (), amount=share.batch_s, links=share.relay, begins=""))
        rows = [*(self._segment(key, tuple(after[key])) for key in position), *others]
        last = sorted(set(range(len(rows))).difference(*(row.after for row in rows)))
        return [*rows, _Row(0.0, tuple(last), begins=None if rows else "")]

    def _segment(self, key: _SegmentKey, after: tuple[int, ...]) -> _Row:
        """Return the row of a segment: a delay, or an amount of work on a shared host."""
        device, number = key
        segment, share = self.parts[device][number], self.shares.get(device)
        row = _Row(sum(segment.seconds) + segment.outside_s, after, self.units[device], None if number else device)
        if share is None:
            return row
        return replace(row, delay_s=0.0, amount=row.delay_s, links=share.compute, weight=share.threads)

    def _message(self, sent: Sequence[Transfer], *, follows: bool) -> Iterator[_Row]:
        """Yield the rows of a message; each row waits for the previous one.

        The first row is the work on the sender's host, if any. The last row is the transfer. The latency is a separate
        row if the message uses a serial link, which is free during the latency, or if the message follows another
        message between the same devices, whose transfer ends first.
        """
        source = sent[0].source
        route, share = self._route(source, sent[0].destination), self.shares.get(source)
        latency_s, host = route.latency_s, self.units[source] + len(self.units)
        if share is not None and share.messages is not None:
            latency_s += share.latency_s
            work_s = self.message_s + 1e-6 * share.messages.relay
            yield _Row(0.0, (), host, amount=work_s, links=share.relay)
        elif self.message_s:
            yield _Row(self.message_s, (), host)
        unit = next((self.serial[link] for link in route.links if link in self.serial), NONE)
        if unit != NONE or follows:
            yield _Row(latency_s, ())
            latency_s = 0.0
        yield _Row(latency_s, (), unit, amount=float(sum(each.nbytes for each in sent)), links=route.links)

    def _processing(self, sent: Sequence[Transfer]) -> Iterator[_Row]:
        """Yield the rows of the threads at both ends that copy and encrypt a message while it is transferred."""
        nbytes = sum(each.nbytes for each in sent)
        work_s = nbytes * self._route(sent[0].source, sent[0].destination).host_s_per_byte
        if work_s:
            for device in (sent[0].source, sent[0].destination):
                share, host = self.shares.get(device), self.units[device] + len(self.units)
                yield _Row(work_s, (), host) if share is None else _Row(0.0, (), amount=work_s, links=share.relay)

    def _route(self, source: str, destination: str) -> Route:
        return self.network.route(task_of(source), task_of(destination))

    def _master(self, share: HostShare) -> _Row:
        """Return the row of the master's work for one message: half of its work for one worker in one step."""
        assert share.messages is not None, "only processes exchange messages with the master"
        return _Row(0.0, (), share.master_unit, amount=0.5e-6 * share.messages.master, links=share.master)

    def _receivers(self) -> dict[str, _SegmentKey]:
        """Return, by key of a transfer, the segment that waits for the transfer."""
        return {
            key: (device, 0 if self.together else number)
            for device, own in self.parts.items()
            for number, each in enumerate(own)
            for key in each.waits
        }

    def _messages(self, segment: Segment, receivers: Mapping[str, _SegmentKey]) -> Sequence[Sequence[Transfer]]:
        """Return the transfers of each message that a segment sends."""
        if self.message_s or self.shares or self.serial:
            return segment.messages
        found: dict[_SegmentKey, list[Transfer]] = {}
        for each in segment.sends:
            found.setdefault(receivers[each.key], []).append(each)
        return [*found.values()]
