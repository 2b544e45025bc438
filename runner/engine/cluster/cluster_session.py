"""A session whose devices are worker processes; the master makes plans and feeds the workers, but runs no kernels."""

import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Self

from runner.engine.cluster.assignment import peer_of
from runner.engine.cluster.emulation import Emulation
from runner.engine.cluster.joining import host_facts
from runner.engine.cluster.launchers import Launcher, LocalLauncher
from runner.engine.cluster.remote_plan import LaunchedRun, RemotePlan, RemoteTrace, statistic
from runner.engine.cluster.remote_plans import RemotePlans
from runner.engine.cluster.starting import OTHER_MESSAGES, Recovered, start_workers, worker_names
from runner.engine.cluster.transport import messages
from runner.engine.cluster.transport.encoding import encode_document
from runner.engine.cluster.transport.endpoint import Identity
from runner.engine.cluster.transport.heartbeat import HeartbeatMonitor
from runner.engine.cluster.transport.ticket import new_token
from runner.engine.cluster.worker_group import WorkerGroup
from runner.engine.cluster.worker_setup import WorkerSetup, new_communicator_setup
from runner.engine.compile.program import Client, Program
from runner.engine.graph.device import DEFAULT_GPU_OPTIONS, Cluster
from runner.engine.run import session
from runner.engine.run.step_driver import Finished
from runner.engine.run.timeline import Timeline
from runner.errors import ClusterError, NotStartedAgainError, RunnerError, SecurityError, WorkerLostError
from runner.kernels.contract import Array
from runner.kernels.registry import Registry


class ClusterSession(session.Session):
    """A session that runs a program on worker processes. A context manager: entering starts the workers.

    source: plain description from which each worker builds its input source, or None. threads: kernel threads of
    each worker. logs: folder for the workers' logs. epoch: number of this start of run ``run_id``. monitor: checks
    heartbeats; None for a monitor with default limits. emulation: delays added to transfers and steps, or None.
    launcher: starts the workers; None for this machine. facts: equal in all processes; see ``joining``.

    Raises ResourceError if the GPUs cannot set up a communicator. Raises WorkerLostError with the worker's name and log
    if a worker has died or is silent: on this host, within two seconds of its death and with its exit code.
    :meth:`recover` then replaces the worker. If a worker reports an error, the error is raised in its original class
    with the worker's name.
    """

    def __init__(
        self,
        program: Program,
        cluster: Cluster,
        registry: Registry,
        source: Mapping[str, Any] | None,
        *,
        run_id: str,
        epoch: int,
        logs: Path,
        threads: int,
        facts: Mapping[str, str],
        check_finite: bool = False,
        monitor: HeartbeatMonitor | None = None,
        emulation: Emulation | None = None,
        launcher: Launcher | None = None,
    ) -> None:
        self._program = program
        self._setup = WorkerSetup(
            source,
            check_finite,
            None if emulation is None else emulation.link,
            {peer_of(device.name): device.gpu for device in cluster.devices if device.gpu is not None},
            next((device.use for device in cluster.devices if device.gpu is not None), DEFAULT_GPU_OPTIONS),
        )
        self._new_communicator = partial(new_communicator_setup, cluster, registry)
        self._emulation = emulation or Emulation()
        self._identity = Identity(run_id, epoch, messages.MASTER_ROLE, 0, new_token())
        self._launcher: Launcher = launcher or LocalLauncher(logs, threads)
        self._workers = worker_names(cluster)
        # Emulation delays messages and single steps, so it excludes doorbells and series of steps.
        self._rings = registry.doorbells is not None and emulation is None
        # The memory of a GPU may not suffice for two processes.
        prepared = [each for each in self._workers if self._launcher.spares and each not in self._setup.gpus]
        self._plans = RemotePlans(program, cluster, registry, rings=self._rings, prepared=prepared)
        self._monitor = monitor or HeartbeatMonitor(silence_s=self._launcher.silence_s)
        self._start_workers = partial(
            start_workers, facts={**host_facts(), **facts}, logs=logs, threads=threads, monitor=self._monitor
        )
        self._sent, self._peaks = (dict.fromkeys(self._workers, 0) for _ in range(2))
        self._launched: dict[str, LaunchedRun] = {}
        self._by_plan: dict[str, LaunchedRun] = {}
        self._ended: deque[tuple[str, messages.Done]] = deque()
        self._training_is_loaded = False
        self._absent_were_sent = False  # whether the replacements of absent workers were sent their plans
        self._trace: RemoteTrace | None = None
        self._stack = ExitStack()
        self._started: WorkerGroup | None = None

    def __enter__(self) -> Self:
        self._setup = replace(self._setup, communicator=self._new_communicator())
        named = (self._workers, self._identity, self._setup_document, self._launcher)
        queued_messages = self._plans.most_unread_messages() + OTHER_MESSAGES
        arenas = len(self._program.clients) * (1 + len(self._workers))
        group = self._start_workers(*named, queued_messages=queued_messages, arenas=arenas)
        self._started = self._stack.enter_context(group)
        self._started.rejoined = self._send_plans_to_absent
        if self._launcher.spares:
            self._started.spares.prepare(messages.Setup(), self._setup_document({}))
        return self

    def __exit__(self, *exception: Any) -> None:
        self._plans.close()
        self._started = None
        self._stack.__exit__(*exception)

    def recover(self, lost: str, epoch: int, can_go_on: Callable[[], bool] = lambda: False) -> Recovered:
        """Replace a lost worker; afterwards, all variables need values again. Compiled clients are kept.

        The other workers keep their processes, connections and plans, and drop the tensors of interrupted steps.
        If the GPUs share a communicator, all workers are replaced.

        lost: name of the worker. epoch: number of this start of the run; messages of earlier epochs are dropped.
        can_go_on: called after the start of the new process; if it returns True, this method does not wait until the
        process has joined, and :meth:`is_available` sends the plans to the process later.
        Launched clients and an active trace are dropped. Raises WorkerLostError if a worker is lost meanwhile, or if
        the start of the new process fails and the run can go on; call this method again for that worker. Raises
        NotStartedAgainError if new workers cannot be started for lack of cores or hosts, or if no user starts them;
        otherwise, the same errors as the first start.
        """
        begun = time.monotonic()
        silence_s = self._monitor.silence_s(lost, begun)
        gone = [lost] if self._started is None else self._started.joined.on_host_of(lost)
        for each in (self._launched, self._by_plan, self._ended):
            each.clear()
        self._trace = None
        try:
            if self._started is None or self._setup.communicator is not None:
                replaced, fenced = self._workers, self._start_all_again(epoch)
            else:
                self._absent_were_sent = False
                replaced = self._started.replace(lost, epoch)
                self._plans.restart()
                fenced = time.monotonic()
                if can_go_on():
                    return Recovered(tuple(replaced), silence_s, fenced - begun, None)
                self._wait_for_absent()
        except ClusterError as error:
            # A command such as ``srun`` may have failed to start the process, without which the run may go on.
            can_be_absent = self._started is not None and not self._started.has_joined and can_go_on()
            lost_meanwhile = isinstance(error, WorkerLostError) and (error.worker in self._workers or can_be_absent)
            if lost_meanwhile or isinstance(error, NotStartedAgainError):
                raise
            raise NotStartedAgainError(str(error), self._remaining(gone)) from error
        return Recovered(tuple(replaced), silence_s, fenced - begun, time.monotonic() - fenced)

    @property
    def absent(self) -> Collection[str]:
        """The lost workers whose replacements do not take part in the run yet."""
        return frozenset(self._group.absent)

    def is_available(self, client: str) -> bool:
        """Return whether a client can run without waiting, because no absent worker takes part in it.

        If the replacements of all absent workers have joined, they are sent the plans of the clients in
        ``Program.needed_after_recovery``, and are absent until they have loaded these plans. A client that is not
        available waits for the replacements when it is run or launched.
        """
        group = self._group
        if group.absent and group.has_joined:
            self._send_plans_to_absent()
            if not group.loading:
                group.absent.clear()
        return not self._needs_absent(self._plans.client(client))

    def participants(self, client: str) -> set[str]:
        """Return the names of the processes that run a part of a client."""
        return self._plans.participants(self._plans.client(client))

    def _needs_absent(self, client: Client) -> bool:
        return bool(self._group.absent) and not self._group.absent.isdisjoint(self._plans.participants(client))

    def _wait_for_absent(self) -> None:
        """Wait until the replacements of absent workers have loaded the needed plans. Launched clients end first."""
        group = self._group
        running = sum(len(run.plan.plans) - len(run.turns) for run in self._launched.values())
        while len(self._ended) < running:
            self._ended.append(group.next(messages.Done)[:2])
        self._send_plans_to_absent()
        while group.loading:
            group.next(messages.Loaded)
        group.absent.clear()

    def _send_plans_to_absent(self) -> None:
        """Set up the replacements of absent workers, which must have joined, and send them the needed plans, once."""
        if self._absent_were_sent:
            return
        self._group.set_up(self._setup_document, sorted(self._group.absent))
        self._plans.send_needed(self._group)
        self._absent_were_sent = True

    def start_spares(self) -> None:
        """Start spare processes in place of those that were used by a recovery or have ended."""
        self._group.spares.start_again()

    def _start_all_again(self, epoch: int) -> float:
        """End all workers and start them again; return the ``time.monotonic()`` between the end and the start."""
        self.close()
        fenced = time.monotonic()
        self._training_is_loaded = False
        self._identity = replace(self._identity, epoch=epoch, token=new_token())
        for name in (*self._workers, *messages.spare_names(self._launcher.spares)):
            self._monitor.forget(name)
        self.__enter__()
        return fenced

    def _remaining(self, gone: Collection[str]) -> int:
        """Return the number of workers after a recovery that failed. gone: workers on the host of the lost worker."""
        absent = {*gone, *(self._started.absent if self._started is not None else ())}
        left, all_workers = set(self._workers) - absent, messages.count_role(self._workers, messages.WORKER_ROLE)
        return min(messages.count_role(left, messages.WORKER_ROLE), all_workers - 1)

    def load(self, client: str) -> None:
        """Load a client in advance, so that its first run takes less time."""
        self._load(self._plans.client(client))

    def run(self, client: str, *, step: int = 0, feeds: Mapping[str, Any] | None = None) -> dict[str, Array]:
        return self.run_series(client, step, [feeds or {}])[0]

    @property
    def longest_series(self) -> int:
        """The largest number of steps of a training client that :meth:`run_series` requests in one message."""
        return messages.MOST_STEPS if self._rings and self._trace is None else 1

    def run_series(self, client: str, first: int, feeds: Sequence[Mapping[str, Any]]) -> list[dict[str, Array]]:
        """Run consecutive steps of a client with as few Run messages to each participating worker as possible."""
        session.require_runnable(client, self._launched)
        planned = self._plans.client(client)
        plan = self._load(planned)
        at_once = 1 if self._trace is not None else plan.depth
        fetched: list[dict[str, Array]] = []
        for begin in range(0, len(feeds), at_once):
            fetched += self._run_at_once(planned, plan, first + begin, feeds[begin : begin + at_once])
        return fetched

    def _run_at_once(
        self, client: Client, plan: RemotePlan, first: int, feeds: Sequence[Mapping[str, Any]]
    ) -> list[dict[str, Array]]:
        begin_ns, count, number = time.monotonic_ns(), len(feeds), plan.begun
        for index, values in enumerate(feeds):
            plan.feed(session.expand_feeds(client, values), index)
        plan.begun += count
        plan.send_feeds(self._group, first)
        for worker in plan.plans:
            self._group.send(worker, messages.Run(plan.name, first, self._delay_s(client, worker, first), count))
        last = (plan.name, first + count - 1)
        done = self._group.gather(plan.plans, messages.Done, lambda each: (each.plan, each.step) == last, self._ended)
        for worker, answer in done.items():
            self._add_statistics(worker, plan, answer, count)
        if self._trace is not None:
            self._trace.runs.add(client.name, number, first, begin_ns)
        return [{name: plan.fetch(tensor, index) for name, tensor in client.fetches.items()} for index in range(count)]

    def launch(self, client: str, *, step: int = 0, feeds: Mapping[str, Any] | None = None) -> None:
        planned = self._plans.client(client)
        session.require_launchable(planned, self._launched)
        begin_ns = time.monotonic_ns()
        if not self._launched and not self._training_is_loaded:
            # Load all clients now, because no client can be loaded while another client runs.
            for each in self._program.needed_after_recovery:
                self._load(each)
            self._training_is_loaded = True
        plan = self._load(planned)
        plan.feed(session.expand_feeds(planned, feeds or {}))
        self._launched[client] = self._by_plan[plan.name] = LaunchedRun(planned, plan, step, plan.begun, begin_ns)
        plan.begun += 1
        plan.send_feeds(self._group, step)
        for worker in plan.plans:
            self._group.send(worker, messages.Launch(plan.name, step, self._delay_s(planned, worker, step)))

    def finished(self) -> Finished:
        if not self._launched:
            raise RunnerError("no client is running: launch one first")
        while True:
            worker, answer = self._ended.popleft() if self._ended else self._group.next(messages.Done)[:2]
            run = self._by_plan.get(answer.plan)
            if run is None or answer.step != run.step or worker not in run.plan.plans or worker in run.turns:
                reported = f"step {answer.step} of plan {answer.plan!r}"
                raise SecurityError(f"{worker} finished {reported}, which is not running on {worker}")
            self._add_statistics(worker, run.plan, answer)
            run.turns[worker] = statistic(worker, answer, session.TURN)
            if run.turns.keys() == run.plan.plans.keys():
                del self._launched[run.client.name], self._by_plan[answer.plan]
                fetches = {name: run.plan.fetch(tensor) for name, tensor in run.client.fetches.items()}
                turns = {run.plan.assignments[peer].device: turn for peer, turn in run.turns.items()}
                if self._trace is not None:
                    self._trace.runs.add(run.client.name, run.number, run.step, run.begin_ns, launched=True)
                return Finished(run.client.name, run.step, fetches, turns)

    def start_trace(self, clients: Collection[str]) -> None:
        session.require_no_trace(self._trace, clients)
        self._trace = RemoteTrace(self._group, {each: self._load(self._plans.client(each)) for each in clients})

    def stop_trace(self) -> Timeline:
        trace, self._trace = session.required_trace(self._trace), None
        return trace.stop(self._ended)

    def sent_bytes(self) -> list[int]:
        return list(self._sent.values())

    def peak_memory_bytes(self) -> dict[str, int]:
        """Return the peak resident memory in bytes of the master and of each worker as of its last step."""
        return {"master": session.peak_rss_bytes(), **self._peaks}

    def libraries(self) -> dict[str, list[str]]:
        return {device_type: sorted(found) for device_type, found in self._plans.libraries.items()}

    def close(self) -> None:
        """End the workers and release all resources. May be called again."""
        self.__exit__(None, None, None)

    @property
    def _group(self) -> WorkerGroup:
        if self._started is None:
            raise RunnerError("the session has not started its workers: use the session in a `with` block")
        return self._started

    def _load(self, client: Client) -> RemotePlan:
        """Return the plan of a client after all participating workers have loaded their parts of it."""
        plan = self._plans.loaded(client)
        if plan is None:
            # Answers to the Load messages must not be mixed with answers of a running step.
            session.require_synchronized(f"client {client.name!r} was loaded", self._launched)
        if self._needs_absent(client):
            self._wait_for_absent()
            plan = None  # the replacements may lack it
        return self._plans.load(client, self._group) if plan is None else plan

    def _setup_document(self, addresses: Mapping[str, str]) -> bytes:
        return encode_document(replace(self._setup, addresses=addresses).to_document())

    def _delay_s(self, client: Client, worker: str, step: int) -> float:
        return self._emulation.delay_s(worker, step) if client.slowed else 0.0

    def _add_statistics(self, worker: str, plan: RemotePlan, answer: messages.Done, steps: int = 1) -> None:
        self._sent[worker] += steps * plan.plans[worker].sent_bytes
        self._peaks[worker] = statistic(worker, answer, session.PEAK_MEMORY)
