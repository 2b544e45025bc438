"""Time runner's collectives between worker processes: ``python -m benchmarks.exchange COLLECTIVE WORKERS``."""

import secrets
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from benchmarks.exchange_protocol import ITEM_BYTES, RING, Exchange, deviation, given, serve_exchanges
from runner.engine.cluster.cluster_session import ClusterSession
from runner.engine.compile.program import Client, Program
from runner.engine.graph import Graph, Tensor, local_cluster, ops, server_task, worker_task
from runner.engine.run.kernel_table import load_kernels
from runner.engine.run.session import Session
from runner.records.summary import joining_facts, versions
from runner.strategies.collectives import ring_all_reduce
from runner.strategies.replica import ordered_sum


def exchange_program(exchange: Exchange, nbytes: int) -> Program:
    """Return a program with one float32 variable per worker; its client "exchange" sets each to their sum.

    The client "give" sets the variable of worker K from the feed ``worker-K``; "look" fetches it as ``worker-K``.
    """
    graph, shape = Graph(), (nbytes // ITEM_BYTES,)
    devices = [worker_task(k) for k in range(exchange.workers)]
    variables, fed, give = [], {}, []
    for k, device in enumerate(devices):
        with graph.device(device), graph.absolute_scope(f"worker_{k}"):
            variables.append(ops.variable(graph, shape, "float32", name="vector"))
            fed[f"worker-{k}"] = (ops.placeholder(graph, shape, "float32", name="fed"),)
            give.append(ops.assign(graph, variables[k], *fed[f"worker-{k}"]).node)
    combine = ring_all_reduce if exchange.collective == RING else push_pull
    take = []
    for k, total in enumerate(combine(graph, variables, devices, "all")):
        with graph.device(devices[k]), graph.absolute_scope(f"worker_{k}"):
            take.append(ops.assign(graph, variables[k], total).node)
    clients = (
        Client("give", targets=tuple(give), feeds=fed),
        Client("exchange", targets=tuple(take)),
        Client("look", {f"worker-{k}": each for k, each in enumerate(variables)}),
    )
    servers = exchange.processes - exchange.workers
    return Program(graph, {each.name: each for each in clients}, {}, exchange.workers, servers)


def push_pull(graph: Graph, parts: Sequence[Tensor], devices: Sequence[str], name: str) -> list[Tensor]:
    """Sum one tensor per worker on the first server, in worker order; the server sends the sum to every worker.

    :func:`~runner.strategies.synchronous.programs.with_servers` sums gradients in the same way. A tensor of n bytes is
    sent once by each worker and once to each worker, 2 K n bytes in total for K workers.
    """
    with graph.device(server_task(0)), graph.absolute_scope(f"reduce/{name}"):
        total = ordered_sum(graph, parts)
    return [total] * len(devices)


class Exchanging:
    """The worker processes of an exchange and their session, which serves one vector size at a time."""

    versions: Mapping[str, str] = {"runner": versions()["runner"]}

    def __init__(self, exchange: Exchange, folder: Path, stack: ExitStack) -> None:
        """folder: for log files. stack: ends the processes when it closes."""
        self._exchange = exchange
        self._folder = folder
        self._opened = stack.enter_context(ExitStack())
        self._session: Session | None = None
        self._nbytes = 0

    def exchange(self, nbytes: int, times: int) -> tuple[list[float], float]:
        """See :class:`~benchmarks.exchange_protocol.ExchangeSubject`.

        Steps run in series, as in training; a step takes its share of the time from the request of the series to the
        last worker's reply.
        """
        session = self._session_for(nbytes)
        values = {f"worker-{k}": given(k, nbytes) for k in range(self._exchange.workers)}
        session.run("give", feeds=values)
        seconds: list[float] = []
        for step in range(0, times, session.longest_series):
            count = min(session.longest_series, times - step)
            begin = time.perf_counter()
            session.run_series("exchange", step, [{}] * count)
            seconds += [(time.perf_counter() - begin) / count] * count
        session.run("give", feeds=values)
        session.run("exchange", step=times)
        sums = session.run("look").values()
        return seconds, max(deviation(total, self._exchange.workers) for total in sums)

    def _session_for(self, nbytes: int) -> Session:
        if self._session is None or nbytes != self._nbytes:
            self._session = None
            self._opened.close()
            program = exchange_program(self._exchange, nbytes)
            self._session = self._opened.enter_context(
                ClusterSession(
                    program,
                    local_cluster(program.workers, program.servers),
                    load_kernels(),
                    None,
                    run_id=secrets.token_hex(8),
                    epoch=1,
                    logs=self._folder,
                    threads=1,
                    facts=joining_facts({}),
                )
            )
            self._nbytes = nbytes
        return self._session


if __name__ == "__main__":
    with ExitStack() as exit_stack:
        logs = exit_stack.enter_context(tempfile.TemporaryDirectory(prefix="benchmark-exchange-"))
        serve_exchanges(Exchanging(Exchange.of(sys.argv[1:]), Path(logs), exit_stack))
