"""Launched clients in one process: results, order and refused calls."""

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from runner.engine.compile.program import Client, Program
from runner.engine.graph import ops
from runner.engine.graph.device import local_cluster, worker_device
from runner.engine.graph.graph import Graph
from runner.engine.run.interleaving import Ending, Interleaving, Recorded, VirtualTime
from runner.engine.run.local_session import LocalSession
from runner.engine.run.step_driver import Clients, Finished
from runner.errors import RunnerError
from runner.kernels.registry import Registry
from tests.engine.run.launched_programs import SIZE, pushed, tally
from tests.engine.run.matching_spans import expect_matching_transfers

Opened = Callable[..., LocalSession]


@pytest.fixture
def opened(registry: Registry) -> Iterator[Opened]:
    """Opens sessions of the tally program, whose variables are zero."""
    sessions = []

    def begin(interleaving: Interleaving | None = None, program: Program | None = None) -> LocalSession:
        program = program or tally()
        session = LocalSession(
            program, local_cluster(program.workers, program.servers), registry, interleaving=interleaving
        )
        sessions.append(session)
        session.run("init")
        return session

    yield begin
    for session in sessions:
        session.close()


def ends(session: Clients, *clients: str, step: int = 0) -> list[Finished]:
    """Launch clients together and wait for all."""
    for client in clients:
        session.launch(client, step=step)
    return [session.finished() for _ in clients]


def value(array: Any) -> float:
    """The element of a tensor whose elements are all equal."""
    assert np.unique(array).size == 1
    return float(array[0])


def test_launched_clients_compute_the_same_as_run_clients(opened: Opened) -> None:
    one_by_one, together = opened(), opened()
    assert value(one_by_one.run("work_0")["own"]) == 1.0
    assert value(one_by_one.run("push_0")["total"]) == 1.0
    assert [value(each.fetches["own"]) for each in ends(together, "work_0")] == [1.0]
    assert [value(each.fetches["total"]) for each in ends(together, "push_0")] == [1.0]
    assert one_by_one.sent_bytes() == together.sent_bytes() == [SIZE * 8, 0, 0]


@pytest.mark.parametrize(("seconds", "total"), [((1.0, 9.0), 1.0 / 2 + 2.0), ((9.0, 1.0), 2.0 / 2 + 1.0)])
def test_fastest_worker_is_served_first(opened: Opened, seconds: tuple[float, float], total: float) -> None:
    def part_s(client: str, device: str, step: int) -> float:
        return seconds[int(client[-1])] if client.startswith("work") else 1.0

    session = opened(VirtualTime(part_s, lambda nbytes: 0.0))
    session.launch("work_0")
    session.launch("work_1")
    for _ in range(2):
        worker = session.finished().client[-1]
        session.launch(f"push_{worker}")
        last = session.finished().fetches["total"]
    assert value(last) == total
    assert value(session.run("save")["total"]) == total


def draws(seed: int) -> VirtualTime:
    """Virtual time with random durations."""
    generator = np.random.default_rng(seed)
    return VirtualTime(lambda client, device, step: float(generator.lognormal()), lambda nbytes: 0.1)


def outcome(finished: list[Finished]) -> list[tuple[str, int, dict[str, float]]]:
    return [(each.client, each.step, {name: value(v) for name, v in each.fetches.items()}) for each in finished]


def test_interleaving_is_a_function_of_the_seed(opened: Opened) -> None:
    first, again, other = (outcome(pushed(opened(draws(seed)), rounds=9)) for seed in (1, 1, 2))
    assert first == again
    assert first[-1] != other[-1]


def test_recorded_turns_replay_bit_for_bit(opened: Opened) -> None:
    finished = pushed(opened(draws(3)), rounds=9)
    record = Recorded([Ending(each.client, each.step, each.turns) for each in finished])
    assert outcome(pushed(opened(record), rounds=9)) == outcome(finished)


def test_second_launch_of_a_running_client_is_refused(opened: Opened) -> None:
    session = opened()
    session.launch("work_0")
    with pytest.raises(RunnerError, match="client 'work_0' was launched, but is under way: wait until it has finished"):
        session.launch("work_0")


def test_run_is_refused_while_clients_are_launched(opened: Opened) -> None:
    session = opened()
    session.launch("work_0")
    with pytest.raises(
        RunnerError, match="client 'save' was run while work_0 are under way: wait until they have finished"
    ):
        session.run("save")
    session.finished()
    session.run("save")


def test_trace_begins_and_ends_while_clients_run(opened: Opened) -> None:
    session = opened()
    session.launch("work_0", step=4)
    session.start_trace(["work_0", "push_0"])
    session.finished()
    ends(session, "push_0", step=5)
    session.launch("work_0", step=6)
    timeline = session.stop_trace()
    session.finished()
    assert [(run.client, run.number, run.step, run.launched) for run in timeline.runs] == [
        ("work_0", 0, 4, True),
        ("push_0", 0, 5, True),
    ]
    assert {(span.client, span.number, span.step) for span in timeline.spans} == {("work_0", 0, 4), ("push_0", 0, 5)}
    expect_matching_transfers(timeline.spans)


def test_runs_before_the_trace_are_counted(opened: Opened) -> None:
    session = opened()
    ends(session, "work_0", "work_1")
    ends(session, "work_0")
    session.start_trace(["work_0", "work_1"])
    ends(session, "work_0", "work_1")
    timeline = session.stop_trace()
    counted = {("work_0", 2), ("work_1", 1)}
    assert {(run.client, run.number) for run in timeline.runs} == counted
    assert {(span.client, span.number) for span in timeline.spans} == counted


def fed() -> Program:
    """A deferred client that doubles its feed."""
    graph = Graph()
    with graph.device(worker_device(0)):
        there = ops.placeholder(graph, (2,), "float64")
        client = Client("double", fetches={"twice": ops.scale(graph, there, 2.0)}, feeds={"x": (there,)}, deferred=True)
    return Program(graph, {"double": client, "init": Client("init")}, {}, workers=1)


def test_feeds_are_copied_at_the_launch(opened: Opened) -> None:
    session = opened(program=fed())
    value = np.ones(2)
    session.launch("double", feeds={"x": value})
    value[:] = 5.0
    assert session.finished().fetches["twice"].tolist() == [2.0, 2.0]


@pytest.mark.parametrize(("value", "came"), [(np.ones(3), r"float64\[3\]"), (np.ones(2, "float32"), r"float32\[2\]")])
def test_wrong_feed_is_refused_at_the_launch(opened: Opened, value: Any, came: str) -> None:
    session = opened(program=fed())
    with pytest.raises(RunnerError, match=rf"^feed .*: came {came}, expected float64\[2\]$"):
        session.launch("double", feeds={"x": value})
    session.launch("double", feeds={"x": np.ones(2)})
    assert session.finished().client == "double"


def test_waiting_without_a_launched_client_is_refused(opened: Opened) -> None:
    with pytest.raises(RunnerError, match="no client is under way: launch one first"):
        opened().finished()


def test_only_deferred_clients_are_launched(opened: Opened) -> None:
    with pytest.raises(RunnerError, match="client 'save' was launched, but is not deferred: run it"):
        opened().launch("save")


def test_parts_that_wait_for_each_other_are_refused(registry: Registry) -> None:
    graph = Graph()
    with graph.device(worker_device(0)):
        there = ops.placeholder(graph, (1,), "float64")
    with graph.device(worker_device(1)):
        away = ops.exp(graph, there)
    with graph.device(worker_device(0)):
        back = ops.neg(graph, away)
    client = Client("round", fetches={"back": back}, feeds={"there": (there,)})
    program = Program(graph, {"round": client}, {}, workers=2)
    with closing(LocalSession(program, local_cluster(2), registry)) as session:
        assert session.run("round", feeds={"there": np.ones(1)})["back"].tolist() == [-np.e]
    deferred = replace(program, clients={"round": replace(client, deferred=True)})
    expected = "client 'round' is deferred, but .*task:0.* would wait for tensors that depend on tensors they send"
    with (
        closing(LocalSession(deferred, local_cluster(2), registry)) as session,
        pytest.raises(RunnerError, match=expected),
    ):
        session.launch("round", feeds={"there": np.ones(1)})


def test_training_clients_are_the_deferred_ones() -> None:
    assert {client.name for client in tally().training} == {
        f"{n}_{k}" for n in ("fetch", "work", "push") for k in (0, 1)
    }
