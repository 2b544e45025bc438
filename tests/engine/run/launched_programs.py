"""A small program whose clients run concurrently; the order of their parts, one for each device, changes the result."""

from collections.abc import Sequence

import pytest

from runner.engine.compile.program import Client, Program
from runner.engine.graph import Graph, Tensor, ops, worker_device
from runner.engine.graph.device import server_device
from runner.engine.run.step_driver import Clients, Finished
from runner.engine.run.timeline import Span
from runner.errors import RunnerError

SIZE = 3


def tally() -> Program:
    """Return a program with a variable ``total`` on a server and a variable ``own`` on each of two workers.

    ``fetch_k`` copies the total to worker k; ``work_k`` sets own to own * 1.5 + k + 1 and fetches own; ``push_k`` sends
    own to the server, sets total to total / 2 + own and fetches total. The order of pushes changes the result.
    """
    graph = Graph()
    total = _variable(graph, server_device(0), "total")
    owns = [_variable(graph, worker_device(k), f"own_{k}") for k in range(2)]
    started = tuple(_start(graph, each) for each in (total, *owns))
    clients = [Client("init", targets=started), Client("save", fetches={"total": total})]
    for k, own in enumerate(owns):
        clients += [_fetch(graph, total, own, k), _work(graph, own, k), _push(graph, total, own, k)]
    return Program(graph, {client.name: client for client in clients}, {}, workers=2, servers=1)


def pushed(session: Clients, rounds: int) -> list[Finished]:
    """Let two workers fetch, work and push ``rounds`` times; return the clients in the order in which they finished."""
    following = {"fetch": "work", "work": "push", "push": "fetch"}
    finished = []
    for k in range(2):
        session.launch(f"fetch_{k}")
    left = {"0": 3 * rounds, "1": 3 * rounds}
    while any(left.values()):
        ended = session.finished()
        finished.append(ended)
        kind, k = ended.client.split("_")
        left[k] -= 1
        if left[k]:
            session.launch(f"{following[kind]}_{k}", step=ended.step + (kind == "push"))
    return finished


def expect_misuse_refused(session: Clients) -> None:
    """Expect errors of clients that are launched, run or awaited at a wrong time; afterwards ``work_0`` is running."""
    with pytest.raises(RunnerError, match="no client is running: launch one first"):
        session.finished()
    with pytest.raises(RunnerError, match="client 'save' was launched, but is not deferred: call run"):
        session.launch("save")
    session.launch("work_0")
    with pytest.raises(RunnerError, match="client 'work_0' was launched while running: wait until it has finished"):
        session.launch("work_0")
    with pytest.raises(RunnerError, match="client 'init' was run before work_0 finished: wait for launched"):
        session.run("init")


def _variable(graph: Graph, device: str, name: str) -> Tensor:
    with graph.device(device):
        return ops.variable(graph, (SIZE,), "float64", name=name)


def _start(graph: Graph, variable: Tensor) -> str:
    with graph.device(graph.nodes[variable.node].device):
        return ops.assign(graph, variable, ops.fill(graph, 0.0, (SIZE,), "float64")).node


def _fetch(graph: Graph, total: Tensor, own: Tensor, k: int) -> Client:
    with graph.device(worker_device(k)):
        return Client(f"fetch_{k}", targets=(ops.assign(graph, own, total).node,), deferred=True)


def _work(graph: Graph, own: Tensor, k: int) -> Client:
    with graph.device(worker_device(k)):
        result = ops.add(graph, ops.scale(graph, own, 1.5), ops.fill(graph, k + 1.0, (SIZE,), "float64"))
        target = ops.assign(graph, own, result).node
    return Client(f"work_{k}", fetches={"own": result}, targets=(target,), deferred=True, slowed=True)


def _push(graph: Graph, total: Tensor, own: Tensor, k: int) -> Client:
    with graph.device(server_device(0)):
        result = ops.add(graph, ops.scale(graph, total, 0.5), own)
        target = ops.assign(graph, total, result).node
    return Client(f"push_{k}", fetches={"total": result}, targets=(target,), deferred=True)


def expect_matching_transfers(spans: Sequence[Span]) -> None:
    """Assert that every receive has a send of the same run, key and size on its peer device."""
    sends = {_transfer(s): s for s in spans if s.kind == "send"}
    waits = {_transfer(s): s for s in spans if s.kind == "wait"}
    received = [s for s in spans if s.kind == "receive"]
    assert {_transfer(s) for s in received} == set(sends) == set(waits)
    assert len(received) == len(sends) > 0
    for each in received:
        send, wait = sends[_transfer(each)], waits[_transfer(each)]
        assert send.step == wait.step == each.step
        assert send.begin_ns <= wait.end_ns <= each.begin_ns
        assert (send.device, send.peer, send.nbytes) == (each.peer, each.device, each.nbytes)
        assert each.nbytes > 0


def _transfer(span: Span) -> tuple[str, int, str]:
    return span.client, span.number, span.key
