"""A plan that a worker has loaded, with everything that a step of the plan needs."""

from dataclasses import dataclass

import numpy as np

from runner.engine.cluster.arrivals import send_all_parts
from runner.engine.cluster.assignment import Assignment, feed_key, fetch_key
from runner.engine.cluster.transport import messages
from runner.engine.cluster.wire_rendezvous import WireRendezvous
from runner.engine.run.executor import DeviceExecutor
from runner.engine.run.inputs import ReadAhead


@dataclass
class LoadedPlan:
    """A plan ready to run.

    inputs: reader of the plan's inputs. received: keys of the tensors that messages announce. peers: the processes to
    which the plan sends messages.
    """

    assignment: Assignment
    executor: DeviceExecutor
    rendezvous: WireRendezvous
    inputs: ReadAhead
    received: frozenset[str]
    peers: frozenset[str]

    def __post_init__(self) -> None:
        """For each step of a series, map the feeds in the master's arena and the fetches in this worker's arena."""
        plan, steps = self.assignment.plan, range(self.assignment.depth)
        master, writer = self.rendezvous.readers[messages.MASTER], self.rendezvous.writer
        own = {slot.tensor for slot in self.assignment.inputs}
        fed = {feed.tensor: feed.spec for feed in plan.feeds if feed.tensor not in own}
        fetched = {tensor: plan.slots[slot].spec for tensor, slot in plan.fetches.items()}
        self._feeds = [
            {tensor: master.read(feed_key(tensor, index), spec.dtype, spec.shape) for tensor, spec in fed.items()}
            for index in steps
        ]
        self._fetches = [
            {tensor: writer.array(fetch_key(tensor, index), spec.dtype, spec.shape) for tensor, spec in fetched.items()}
            for index in steps
        ]

    def run(self, step: int, index: int) -> None:
        """Run one step. index: index of the step in the series that the master has requested."""
        # Some feeds are read from this worker's input source; the master has written the other feeds to its arena.
        inputs, fed, rendezvous = self.inputs.read(step), self._feeds[index], self.rendezvous
        copied = rendezvous.readers[messages.MASTER].spec.is_copy
        if copied:
            for tensor in fed:
                rendezvous.mailbox.take(rendezvous.plan, step, feed_key(tensor, index))
        rendezvous.begin(step, first=index == 0)
        fetched = self.inputs.run(step, {**inputs, **fed})
        rendezvous.finish()
        for tensor, memory in self._fetches[index].items():
            np.copyto(memory, fetched[tensor])
        if copied:
            keys, memory_of = [fetch_key(tensor, index) for tensor in self._fetches[index]], rendezvous.writer.memory
            given = (rendezvous.plan, step, keys, lambda key: memory_of(key).data)
            send_all_parts(rendezvous.endpoint, messages.MASTER, *given)
