"""The master's side of remote plans, which workers run, and of remote traces, which workers record."""

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runner.engine.cluster.arrivals import Arrivals
from runner.engine.cluster.assignment import Assignment, feed_key, feed_sizes, fetch_key, peer_of, sent_sizes
from runner.engine.cluster.transport import messages
from runner.engine.cluster.transport.encoding import decode_document, encode_document
from runner.engine.cluster.transport.shared_memory import ArenaReader, ArenaSpec, ArenaWriter, close_arena, create_arena
from runner.engine.cluster.worker_group import WorkerGroup
from runner.engine.compile.compile import Compiled
from runner.engine.compile.plan import DevicePlan
from runner.engine.compile.program import Client
from runner.engine.graph.tensor import Tensor
from runner.engine.run.executor import fed_array
from runner.engine.run.recording import from_document
from runner.engine.run.timeline import ClientRuns, RecordedPlan, Span, Timeline, spans_of
from runner.errors import SecurityError
from runner.kernels.contract import Array, Layout

log = logging.getLogger(__name__)

_SERIES_BYTES = 4096  # largest sum of fed and fetched bytes of a step in a series; the arenas hold all its steps
_ROUND_TRIPS = 9  # number of round trips from which the offset of a clock is estimated


class RemotePlan:
    """The parts of one client on the workers, and the shared memory for the client's feeds and fetches.

    plans, assignments: worker -> plan or assignment, for participating workers only. begun: number of steps begun.
    unsent: workers that have not been sent their assignments, such as replacements of lost workers.
    copied: workers that do not share memory with the master, sorted. depth: largest number of steps in a series, which
    needs no messages between its steps; 1 unless all workers use doorbells and exchange few bytes with the master.
    """

    def __init__(
        self,
        name: str,
        client: Client,
        compiled: Compiled,
        plans: Mapping[str, DevicePlan],
        layouts: Callable[[str], Mapping[str, Layout]],
        directory: Path,
        sharing: Collection[str],
        *,
        rings: bool = False,
    ) -> None:
        """Create the arenas (shared memory) in ``directory``. Raises ResourceError if there is not enough space.

        plans: device -> plan, for every participating device. layouts: returns the layouts of a device's variables.
        sharing: workers that share memory with the master and one another. rings: whether workers that share memory
        announce tensors by doorbells. If the client is deferred, these workers send messages: a worker then waits for
        several steps at once, and only a message ends that wait.
        """
        self.name = name
        self.begun = 0
        workers = set(map(peer_of, plans))
        self.unsent = set(workers)
        self._documents: dict[str, bytes] = {}
        self._compiled = compiled
        parts = compiled.parts.items()
        inputs = {device: tuple(slot for slot in client.inputs if slot.tensor in part.feeds) for device, part in parts}
        together = {messages.MASTER} | (workers & set(sharing))
        rings = rings and not client.deferred
        exchanged = [nbytes for device, plan in plans.items() for nbytes in feed_sizes(plan, inputs[device]).values()]
        exchanged += [plan.slots[slot].spec.nbytes for plan in plans.values() for slot in plan.fetches.values()]
        in_series = rings and workers <= together and sum(exchanged) <= _SERIES_BYTES
        self.depth = messages.MOST_STEPS if in_series else 1
        sizes: dict[str, dict[str, int]] = {messages.MASTER: {}}
        for device, plan in plans.items():
            owner = peer_of(device)
            sizes[messages.MASTER].update(feed_sizes(plan, inputs[device], self.depth))
            sizes[owner] = sent_sizes(plan, self.depth, together if rings and owner in together else ())
        self._arenas: dict[str, ArenaSpec] = {}
        with ExitStack() as opened:
            for owner, needed in sizes.items():
                label = f"{name} {owner}"
                if owner in together and len(together) > 1:
                    self._arenas[owner] = create_arena(directory, label, owner, needed)
                    opened.callback(close_arena, self._arenas[owner])
                else:
                    self._arenas[owner] = ArenaSpec(label, owner, "", needed)
            self._writer = ArenaWriter(self._arenas[messages.MASTER])
            self._readers = {peer: ArenaReader(spec) for peer, spec in self._arenas.items() if peer != messages.MASTER}
            self._open = opened.pop_all()
        self.assignments: dict[str, Assignment] = {}
        copies = {owner: spec.copy for owner, spec in self._arenas.items()}
        for device, part in parts:
            worker = peer_of(device)
            arenas = self._arenas if worker in together else copies
            given = (device, part, inputs[device], arenas, dict(layouts(device)), self.depth, client.deferred)
            self.assignments[worker] = Assignment(*given, plans[device])
        self.copied = sorted(sizes.keys() - together)
        self.plans: Mapping[str, DevicePlan] = {peer_of(device): plan for device, plan in plans.items()}
        feeds = [feed for plan in plans.values() for feed in plan.feeds]
        self._feeds = {feed.tensor: feed.spec for feed in feeds if feed_key(feed.tensor) in sizes[messages.MASTER]}

    def close(self) -> None:
        """Close the arenas. No worker can load a closed plan."""
        self._open.close()

    def document(self, worker: str) -> bytes:
        """Return the encoded assignment of a worker."""
        if worker not in self._documents:
            self._documents[worker] = encode_document(self.assignments[worker].to_document())
        return self._documents[worker]

    def send(self, group: WorkerGroup) -> list[str]:
        """Send the assignments that were not sent yet; return their workers, each of which answers with Loaded."""
        workers = sorted(self.unsent)
        for worker in workers:
            group.send(worker, messages.Load(self.name), self.document(worker))
            self.unsent.discard(worker)
        return workers

    def load(self, group: WorkerGroup) -> None:
        """Send the assignments that were not sent yet, and wait until their workers have loaded them."""
        group.gather(self.send(group), messages.Loaded, lambda answer: answer.plan == self.name)

    def feed(self, values: Mapping[Tensor, Any], index: int = 0) -> None:
        """Copy the feeds of a step to the arena; raises RunnerError for a wrong shape or dtype.

        index: index of the step in a series of steps.
        """
        for tensor, spec in self._feeds.items():
            key = feed_key(tensor, index)
            self._writer.put(key, fed_array(tensor, values[tensor], spec))

    def send_feeds(self, group: WorkerGroup, step: int) -> None:
        """Send the bytes of the feeds of a step to the workers that do not share memory with the master."""
        for worker in self.copied:
            assignment = self.assignments[worker]
            keys = [*feed_sizes(assignment.plan, assignment.inputs)]
            group.send_tensors(worker, self.name, step, keys, lambda key: self._writer.memory(key).data)

    def expect_fetches(self, arrivals: Arrivals) -> None:
        """Accept the bytes of fetched values from the workers that do not share memory with the master."""
        for worker in self.copied:
            keys = map(fetch_key, self.assignments[worker].plan.fetches)
            arrivals.expect(self.name, dict.fromkeys(keys, self._readers[worker]))

    def fetch(self, tensor: Tensor, index: int = 0) -> Array:
        """Return a copy of a fetched value, because later steps overwrite the arena. index: see :meth:`feed`."""
        device, local = self._compiled.location[tensor]
        spec = self._compiled.parts[device].graph.spec(local)
        return self._readers[peer_of(device)].read(fetch_key(local, index), spec.dtype, spec.shape).copy()


@dataclass(frozen=True)
class LaunchedRun:
    """A launched step. number: count of earlier runs of the plan. begin_ns: time of the launch.

    turns: worker -> turn; see :class:`~runner.engine.run.step_driver.Finished`.
    """

    client: Client
    plan: RemotePlan
    step: int
    number: int
    begin_ns: int
    turns: dict[str, int] = field(default_factory=dict)


def statistic(worker: str, answer: messages.Done, name: str) -> int:
    """Return a statistic of a finished step; raises SecurityError if the worker did not send it."""
    if name not in answer.stats:
        raise SecurityError(f"{worker} finished step {answer.step} without the statistic {name!r}")
    return int(answer.stats[name])


class RemoteTrace:
    """A trace of plans, started by the constructor. runs: client runs during the trace, which the session adds."""

    def __init__(self, group: WorkerGroup, plans: Mapping[str, RemotePlan]) -> None:
        """plans: client -> plan. Only workers that participate in one of the plans record spans."""
        self.runs = ClientRuns(messages.MASTER, plans)
        self._group = group
        self._recorded: dict[str, list[RecordedPlan]] = {}
        names: dict[str, list[str]] = {}
        for client, plan in plans.items():
            for worker, assignment in plan.assignments.items():
                names.setdefault(worker, []).append(plan.name)
                recorded = RecordedPlan(client, assignment.plan, assignment.part.graph)
                self._recorded.setdefault(worker, []).append(recorded)
        for worker, plan_names in names.items():
            group.send(worker, messages.StartTrace(), encode_document(plan_names))

    def stop(self, ended: deque[tuple[str, messages.Done]]) -> Timeline:
        """Stop recording and return the spans of all workers. Done messages that arrive meanwhile go to ``ended``.

        The times of workers on other hosts are converted to the master's clock.
        """
        is_remote = self._group.joined.is_remote
        offsets = {worker: self._offset_ns(worker, ended) for worker in self._recorded if is_remote(worker)}
        for worker in self._recorded:
            self._group.send(worker, messages.StopTrace())
        spans: dict[str, list[Span]] = {}
        while len(spans) < len(self._recorded):
            worker, answer, frames = self._group.next(messages.Done, messages.Traced)
            if isinstance(answer, messages.Done):
                ended.append((worker, answer))
            elif worker in spans or worker not in self._recorded:
                raise SecurityError(f"{worker} sent the spans of a trace that was not requested")
            else:
                raw_spans = from_document(decode_document(frames[0]), worker)
                spans[worker] = spans_of(worker, self._recorded[worker], raw_spans)
        ordered = [span.earlier(offsets.get(worker, 0)) for worker in self._recorded for span in spans[worker]]
        return Timeline(tuple(ordered), tuple(self.runs.ended))

    def _offset_ns(self, worker: str, ended: deque[tuple[str, messages.Done]]) -> int:
        """Return the nanoseconds by which a worker's clock is ahead; 0 if the estimate does not exceed its error.

        The worker reads its clock between the master's request and the arrival of the answer, so the error is at most
        half the round trip. The shortest round trip is used (Cristian 1989, "Probabilistic clock synchronization").
        """
        shortest, offset = math.inf, 0
        for _ in range(_ROUND_TRIPS):
            self._group.send(worker, messages.AskTime(time.monotonic_ns()))
            while isinstance((found := self._group.next(messages.Done, messages.Time))[1], messages.Done):
                ended.append((found[0], found[1]))
            now, (source, answer, _) = time.monotonic_ns(), found
            if source != worker or not isinstance(answer, messages.Time):
                raise SecurityError(f"{source} answered a request for the time that was sent to {worker}")
            if now - answer.asked_ns < shortest:
                shortest, offset = now - answer.asked_ns, answer.now_ns - (now + answer.asked_ns) // 2
        error = shortest / 2
        log.info(
            "clock of %s: %.6f s ahead of the master's clock, with an error of at most %.6f s",
            worker,
            offset / 1e9,
            error / 1e9,
        )
        return offset if abs(offset) > error else 0
