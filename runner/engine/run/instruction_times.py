"""Times of the instructions of a plan, measured in one process without the other devices.

The instructions run in the order of a step, but no tensor is sent, and received tensors are zeros. Steps are timed with
and without fused calls. The time of a fused call is divided among its instructions in proportion to their times
without fused calls, so that the noise of a long instruction does not affect a short one.
"""

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from statistics import median

import numpy as np

from runner.engine.compile.passes.transfers import TRANSFERS
from runner.engine.compile.plan import DevicePlan
from runner.engine.graph import Tensor
from runner.engine.run.executor import DeviceExecutor
from runner.engine.run.local_session import share_thread_count
from runner.engine.run.recording import Recorder
from runner.engine.run.rendezvous import LocalRendezvous
from runner.engine.run.storage import Arena, VariableStore
from runner.engine.run.wires import HostWires, Receive, Send
from runner.kernels.contract import Array, Operand
from runner.kernels.memory import Bytes, numpy_dtype
from runner.kernels.platform import HostPlatform
from runner.kernels.registry import Registry

SHORTEST_S, LONGEST_S, LEAST_RUNS, RUNS = 0.1, 1.0, 6, 30
"""There are at least ``LEAST_RUNS`` runs within at least ``SHORTEST_S`` seconds. Of ``RUNS`` runs, none begins after
``LONGEST_S`` seconds. The median of the later half is taken: at first, two threads may share a core."""


def measured_seconds(
    plan: DevicePlan, initial: DevicePlan | None, registry: Registry, threads: int, *, neighbours: int = 0
) -> list[float]:
    """Return the seconds of each instruction of a CPU plan; 0 for transfers.

    initial: the plan that initializes the variables, or None if ``plan`` reads none. threads: kernel threads in use.
    neighbours: number of Python threads that run the plan at the same time, with variables and kernel threads of their
    own, and so compete for caches and memory.
    """
    executors = [_executor(plan, initial, registry) for _ in range(1 + neighbours)]
    with _running(executors[1:], _feeds(plan)):
        unfused, fused = (_timed(executors[0], _feeds(plan), threads, fused=fused) for fused in (False, True))
    seconds, ends = [0.0] * len(plan.instructions), [*list(fused)[1:], len(plan.instructions)]
    for (first, group_s), end in zip(fused.items(), ends, strict=True):
        members = range(first, end)
        unfused_s = sum(unfused[each] for each in members)
        for each in members:
            if plan.instructions[each].op not in TRANSFERS and unfused_s:
                seconds[each] = unfused[each] * group_s / unfused_s
    return seconds


def _executor(plan: DevicePlan, initial: DevicePlan | None, registry: Registry) -> DeviceExecutor:
    """Return an executor of a plan with initialized variables of its own."""
    platform, wires = HostPlatform(registry.join), _Unconnected(LocalRendezvous())
    memory = VariableStore(platform), Arena(platform), wires
    if initial is not None:
        DeviceExecutor(initial, registry, *memory).run(0, _feeds(initial))
    executor = DeviceExecutor(plan, registry, *memory)
    memory[0].mark_assigned(plan.read)
    return executor


@contextmanager
def _running(executors: Sequence[DeviceExecutor], feeds: Mapping[Tensor, Array]) -> Iterator[None]:
    """Run executors again and again, each in a Python thread, until the context ends."""
    ended = threading.Event()

    def run(executor: DeviceExecutor) -> None:
        step = 0
        while not ended.is_set():
            executor.run(step, feeds)
            step += 1

    with ThreadPoolExecutor(1 + len(executors), initializer=share_thread_count()) as threads:
        running = [threads.submit(run, each) for each in executors]
        try:
            yield
        finally:
            ended.set()
    for each in running:
        each.result()


class _Unconnected(HostWires):
    """The wires of a device that sends to no other device. Received values are zeros."""

    def incoming(self, key: str, source: str, nbytes: int) -> Bytes:
        found = self.rendezvous.incoming(key, source, nbytes)
        found[:] = 0  # until memory is written, all its pages are one page of zeros, which stays in the cache
        return found

    def sender(self, key: str, destination: str, value: Operand) -> Send:
        return lambda step: None

    def receiver(self, key: str, source: str, value: Operand) -> Receive:
        return Receive(lambda step: None, lambda found: None)


def _timed(executor: DeviceExecutor, feeds: Mapping[Tensor, Array], threads: int, *, fused: bool) -> dict[int, float]:
    """Return position of the first instruction -> median seconds, for each call in order.

    With one kernel thread, the CPU time of this thread is measured, because other processes do not affect it.
    """
    recorder = Recorder(time.thread_time_ns if threads == 1 else time.monotonic_ns)
    executor.record(recorder, fused=fused)
    begin, count, spent_s = time.monotonic(), 0, 0.0
    while count < LEAST_RUNS or spent_s < SHORTEST_S or (count < RUNS and spent_s < LONGEST_S):
        executor.run(count, feeds)
        count, spent_s = count + 1, time.monotonic() - begin
    executor.record(None)
    found: dict[int, list[float]] = {}
    for span in recorder.spans:
        seconds = found.setdefault(span.position, [0.0] * count)
        seconds[span.step] += 1e-9 * (span.end_ns - span.begin_ns)
    return {position: median(seconds[count // 2 :]) for position, seconds in sorted(found.items())}


def _feeds(plan: DevicePlan) -> dict[Tensor, Array]:
    """Return small random numbers for the floating-point feeds of a plan, and zeros for the others."""
    random = np.random.default_rng(0)
    found: dict[Tensor, Array] = {}
    for feed in plan.feeds:
        dtype = numpy_dtype(feed.spec.dtype)
        values = 1e-3 * random.random(feed.spec.shape) if feed.spec.is_float else np.zeros(feed.spec.shape)
        found[feed.tensor] = np.asarray(values, np.float32).astype(dtype)
    return found
