"""Exchanges: what goes in, what has to come out, and that our programs compute it with the bytes of the formula."""

import json
import subprocess
import sys

import numpy as np
import pytest

from benchmarks.environments import ROOT
from benchmarks.exchange import exchange_program
from benchmarks.exchange_protocol import PUSH_PULL, RING, Exchange, deviation, given
from runner.engine.graph.device import local_cluster
from runner.engine.run.local_session import LocalSession
from runner.kernels.registry import Registry

EXCHANGES = [Exchange(RING, 2), Exchange(RING, 3), Exchange(RING, 4), Exchange(PUSH_PULL, 2), Exchange(PUSH_PULL, 3)]


@pytest.mark.parametrize("exchange", EXCHANGES, ids=str)
@pytest.mark.parametrize("nbytes", [4, 4 * 1000, 4 * 4099])
def test_the_sum_of_all_is_left_with_every_worker(exchange: Exchange, nbytes: int, registry: Registry) -> None:
    program = exchange_program(exchange, nbytes)
    session = LocalSession(program, local_cluster(program.workers, program.servers), registry)
    try:
        session.run("give", feeds={f"worker-{k}": given(k, nbytes) for k in range(exchange.workers)})
        before = sum(session.sent_bytes())
        session.run("exchange")
        each_way = exchange.workers if exchange.collective == PUSH_PULL else exchange.workers - 1
        assert sum(session.sent_bytes()) - before == 2 * each_way * nbytes
        sums = session.run("look")
    finally:
        session.close()
    assert [deviation(sums[f"worker-{k}"], exchange.workers) for k in range(exchange.workers)] == [
        0.0
    ] * exchange.workers


def test_a_wrong_sum_shows() -> None:
    right = given(0, 4000) + given(1, 4000)
    assert deviation(right, 2) == 0.0
    assert deviation(given(0, 4000), 2) > 0.0
    assert deviation(np.roll(right, 500), 2) > 0.0
    for value in (np.nan, np.inf):
        right[7] = value
        assert deviation(right, 2) == float("inf")


def test_a_written_exchange_is_read_back_and_others_are_refused() -> None:
    for exchange in EXCHANGES:
        assert Exchange.of(exchange.arguments) == exchange
    assert (Exchange(RING, 3).processes, Exchange(PUSH_PULL, 3).processes) == (3, 4)
    for collective, workers in (("tree", 2), (RING, 1)):
        with pytest.raises(
            ValueError, match=f"exchange {collective!r} of {workers} workers: expected one of ring, push"
        ):
            Exchange(collective, workers)


def test_our_processes_exchange_and_answer() -> None:
    requests = [{"do": "start"}, *({"do": "exchange", "nbytes": nbytes, "times": 2} for nbytes in (4, 4096))]
    command = [sys.executable, "-m", "benchmarks.exchange", PUSH_PULL, "2"]
    text = "".join(json.dumps(request) + "\n" for request in requests)
    done = subprocess.run(command, cwd=ROOT, input=text, capture_output=True, text=True, timeout=100, check=True)
    started, *answers = map(json.loads, done.stdout.splitlines())
    assert "runner" in started["versions"]
    assert [(len(answer["seconds"]), answer["deviation"]) for answer in answers] == [(2, 0.0), (2, 0.0)]
