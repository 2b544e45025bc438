"""Measurement of the costs of messages between worker processes of this machine, for a profile.

A chain sends a small tensor from worker to worker; the time per hop is the time of a message. The latency is the time
per hop minus the CPU time of the processes per hop.
"""

import secrets
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import numpy as np
import psutil

from runner.engine.cluster.cluster_session import ClusterSession
from runner.engine.cluster.emulation import Emulation
from runner.engine.compile.program import Client, Program
from runner.engine.graph import Graph, local_cluster, ops, worker_task
from runner.engine.run.kernel_table import load_kernels
from runner.engine.run.local_session import LocalSession
from runner.engine.run.recording import RECEIVE, SEND
from runner.engine.simulate.profile import MessageCosts, Profile
from runner.records.summary import joining_facts
from runner.system.machine import usable_cores

HOPS = 64  # messages of a chain
WARM_UP, REPEATS = 5, 50
_COPIED_BYTES = 1 << 24
_CHAIN, _EMPTY = "chain", "empty"


def with_messages(profile: Profile, folder: Path) -> Profile:
    """Return a profile with measured costs of messages between processes, and of a step in one process.

    folder: for the logs of the processes.
    """
    more_than_cores = 1 + usable_cores()
    messages, crowded, queued = (
        _measured(folder, workers, queued=queued)
        for workers, queued in ((2, False), (more_than_cores, False), (2, True))
    )
    step_us = round(1e6 * _step_in_one_process_s(), 3)
    return replace(profile, messages=messages, crowded=crowded, queued=queued, step_us=step_us)


def _measured(folder: Path, workers: int, *, queued: bool) -> MessageCosts:
    """Return the costs of messages. queued: whether they are messages of ZeroMQ, as on emulated links."""
    one, many, chain = (
        _steps(folder, *of, queued=queued) for of in ((1, _EMPTY), (workers, _EMPTY), (workers, _CHAIN))
    )
    master_s = max(0.0, many.master_s - one.master_s) / (workers - 1)
    busy_s, hop_s = (max(0.0, each) / HOPS for each in (chain.workers_s - many.workers_s, chain.wall_s - many.wall_s))
    relay_s = max(0.0, busy_s - chain.send_s - chain.receive_s)
    seconds = {
        "send": chain.send_s,
        "receive": chain.receive_s,
        "relay": relay_s,
        "latency": max(0.0, hop_s - chain.send_s - chain.receive_s - relay_s),
        "master": master_s,
        "worker": many.workers_s / workers + max(0.0, one.master_s - master_s),
    }
    rounded = {name: round(1e6 * each, 3) for name, each in seconds.items()}
    return MessageCosts(**rounded, copy_gbyte_per_s=round(1e-9 * _copied_bytes_per_s(), 3))


@dataclass(frozen=True)
class _Steps:
    """Seconds of a step: wall time, CPU time of the master and of all workers, and times of a send and a receive."""

    wall_s: float
    master_s: float
    workers_s: float
    send_s: float = 0.0
    receive_s: float = 0.0


def _step_in_one_process_s() -> float:
    """Measure steps of an empty client without worker processes."""
    with closing(LocalSession(_program(1), local_cluster(1), load_kernels())) as session:
        session.run("init")
        times = []
        for number in range(WARM_UP + REPEATS):
            begin = time.perf_counter()
            session.run(_EMPTY, step=number)
            times.append(time.perf_counter() - begin)
    return median(times[WARM_UP:])


def _steps(folder: Path, workers: int, client: str, *, queued: bool) -> _Steps:
    """Measure steps of a client on new worker processes, in series as in training."""
    program, before = _program(workers), set(psutil.Process().children())
    emulation = Emulation() if queued else None
    computed, run_id = (program, local_cluster(workers), load_kernels(), None), secrets.token_hex(8)
    with ClusterSession(
        *computed, emulation=emulation, facts=joining_facts({}), run_id=run_id, epoch=1, logs=folder, threads=1
    ) as session:
        started = [each.pid for each in set(psutil.Process().children()) - before]
        session.run("init")
        length = session.longest_series

        def timed(count: int) -> list[tuple[float, ...]]:
            times = []
            for number in range(count):
                begin = time.perf_counter(), time.process_time(), _cpu_s(started)
                session.run_series(client, number * length, [{}] * length)
                end = time.perf_counter(), time.process_time(), _cpu_s(started)
                times.append(tuple((after - before) / length for before, after in zip(begin, end, strict=True)))
            return times

        timed(WARM_UP)
        wall_s, master_s, workers_s = (median(each) for each in zip(*timed(REPEATS), strict=True))
        session.start_trace([client])
        timed(WARM_UP)
        spans = session.stop_trace().spans
    transfers = {kind: [1e-9 * span.ns for span in spans if span.kind == kind] for kind in (SEND, RECEIVE)}
    return _Steps(wall_s, master_s, workers_s, *(median(each or [0.0]) for each in transfers.values()))


def _cpu_s(processes: Sequence[int]) -> float:
    """Return the CPU time of processes in seconds, by the clock that clock_getcpuclockid(3) names."""
    return sum(time.clock_gettime((~pid << 3) | 2) for pid in processes)


def _copied_bytes_per_s() -> float:
    source, target = np.ones(_COPIED_BYTES, np.uint8), np.zeros(_COPIED_BYTES, np.uint8)
    seconds = []
    for _ in range(WARM_UP):
        begin = time.perf_counter()
        np.copyto(target, source)
        seconds.append(time.perf_counter() - begin)
    return _COPIED_BYTES / min(seconds)


def _program(workers: int) -> Program:
    """Return a program of tiny instructions: "empty" runs one on each worker, "chain" sends a tensor around."""
    graph, initial, values = Graph(), [], []
    for number in range(workers):
        with graph.device(worker_task(number)), graph.absolute_scope(f"worker_{number}"):
            values.append(ops.variable(graph, (1,), "float32", name="value"))
            initial.append(ops.assign(graph, values[-1], ops.fill(graph, 1.0, (1,), "float32")).node)
    empty = []
    for number, value in enumerate(values):
        with graph.device(worker_task(number)), graph.absolute_scope(f"worker_{number}"):
            empty.append(ops.square(graph, value).node)
    sent = values[0]
    for hop in range(HOPS):
        with graph.device(worker_task((hop + 1) % workers)), graph.absolute_scope(f"hop_{hop}"):
            sent = ops.square(graph, sent)
    clients = (
        Client("init", targets=tuple(initial)),
        Client(_EMPTY, targets=tuple(empty)),
        Client(_CHAIN, targets=(*empty, sent.node)),
    )
    return Program(graph, {each.name: each for each in clients}, {}, workers)
