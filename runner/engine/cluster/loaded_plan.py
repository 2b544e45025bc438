"""A plan that a worker has loaded, with everything that a step of the plan needs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from runner.engine.cluster.arrivals import send_parts
from runner.engine.cluster.assignment import Assignment, feed_key, fetch_key
from runner.engine.cluster.mailbox import Mailbox
from runner.engine.cluster.transport import messages
from runner.engine.cluster.transport.endpoint import Endpoint
from runner.engine.cluster.transport.shared_memory import ArenaReader, ArenaWriter
from runner.engine.cluster.wire_rendezvous import WireRendezvous
from runner.engine.graph.tensor import Tensor
from runner.engine.run.executor import DeviceExecutor
from runner.engine.run.inputs import ReadAhead
from runner.kernels.contract import Array


@dataclass(frozen=True)
class LoadedPlan:
    """A plan ready to run.

    inputs: reader of the plan's inputs. writer: writer of this worker's arena. received: keys of the tensors that
    messages announce. feeds: for each step of a series, the values from the master, in its arena. fetches: likewise,
    the places of the fetched values in this worker's arena. copied: whether the master and this worker share no memory.
    """

    name: str
    assignment: Assignment
    executor: DeviceExecutor
    rendezvous: WireRendezvous
    inputs: ReadAhead
    writer: ArenaWriter
    received: frozenset[str]
    feeds: Sequence[Mapping[Tensor, Array]]
    fetches: Sequence[Mapping[Tensor, Array]]
    copied: bool

    def run(self, step: int, index: int, endpoint: Endpoint, mailbox: Mailbox) -> None:
        """Run one step. index: index of the step in the series that the master has requested."""
        # Some feeds are read from this worker's input source; the master has written the other feeds to its arena.
        inputs, fed = self.inputs.read(step), self.feeds[index]
        if self.copied:
            for tensor in fed:
                mailbox.tensor(self.name, step, feed_key(tensor, index))
        self.rendezvous.begin(step, first=index == 0)
        fetched = self.inputs.run(step, {**inputs, **fed})
        self.rendezvous.finish()
        for tensor, memory in self.fetches[index].items():
            np.copyto(memory, fetched[tensor])
            if self.copied:
                key = fetch_key(tensor, index)
                ready = messages.TensorReady(self.name, step, key, self.writer.put(key, memory))
                send_parts(endpoint, messages.MASTER, ready, self.writer.memory(key).data)


def feeds_of(assignment: Assignment, master: ArenaReader) -> list[dict[Tensor, Array]]:
    """Return, for each step of a series, the values from the master, in its arena."""
    own = {slot.tensor for slot in assignment.inputs}
    fed = {feed.tensor: feed.spec for feed in assignment.plan.feeds if feed.tensor not in own}
    return [
        {tensor: master.read(feed_key(tensor, index), spec.dtype, spec.shape) for tensor, spec in fed.items()}
        for index in range(assignment.depth)
    ]


def fetches_of(assignment: Assignment, writer: ArenaWriter) -> list[dict[Tensor, Array]]:
    """Return, for each step of a series, the places of the fetched values in this worker's arena."""
    returned = {tensor: assignment.plan.slots[slot].spec for tensor, slot in assignment.plan.fetches.items()}
    return [
        {tensor: writer.array(fetch_key(tensor, index), spec.dtype, spec.shape) for tensor, spec in returned.items()}
        for index in range(assignment.depth)
    ]
