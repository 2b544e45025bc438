"""Sessions on real worker processes: results, traces and launched clients."""

import stat
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runner.engine.cluster.cluster_session import ClusterSession
from runner.engine.cluster.launchers import LocalLauncher
from runner.engine.cluster.transport.messages import MOST_STEPS
from runner.engine.compile.program import Program
from runner.engine.graph.device import Cluster, Device, local_cluster, server_device, worker_device
from runner.engine.run.interleaving import Ending, Recorded
from runner.engine.run.local_session import LocalSession
from runner.errors import RunnerError
from runner.kernels.registry import Registry
from tests.engine.cluster import conftest
from tests.engine.cluster.conftest import PROGRAM, RING, SERVED, SOURCE, WORKERS, Sessions, in_process, losses, train
from tests.engine.run.launched_programs import SIZE, expect_matching_transfers, expect_misuse_refused, pushed, tally
from tests.strategies.networks import TEST_BATCH
from tests.strategies.training import Weights, expect_same_bits

Expected = tuple[list[Weights], LocalSession]
Shared = tuple[ClusterSession, Sessions]


@pytest.fixture(scope="module")
def expected(registry: Registry) -> Expected:
    """Return the fetches of ``PROGRAM`` run in this process, and the session that ran the program."""
    with in_process(registry) as session:
        return losses(session), session


@pytest.fixture(scope="module")
def shared(registry: Registry, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    """Yield one session, which several tests share because they leave it usable, and its ``Sessions``."""
    sessions = Sessions(registry, tmp_path_factory.mktemp("logs"))
    with sessions.new() as session:
        directory = sessions.directory
        yield session, sessions
    conftest.expect_nothing_left(sessions, [directory])


@pytest.fixture
def session(shared: Shared) -> ClusterSession:
    return shared[0]


def test_workers_compute_the_result_of_one_process(session: ClusterSession, expected: Expected) -> None:
    before = session.sent_bytes()
    conftest.expect_same_losses(losses(session), expected[0])
    sent = [after - earlier for after, earlier in zip(session.sent_bytes(), before, strict=True)]
    assert sent == expected[1].sent_bytes()
    assert min(sent) > 0


@pytest.mark.parametrize("program", [PROGRAM, SERVED, RING], ids=["reduced", "served", "ring"])
def test_a_series_of_steps_equals_single_steps(sessions: Sessions, registry: Registry, program: Program) -> None:
    """A series longer than the arenas hold is cut. The workers of a ring read from and send to different peers."""
    feeds = [{"step": np.int64(step), "learning_rate": np.float64(0.1 / (1 + step))} for step in range(MOST_STEPS + 5)]
    with in_process(registry, program) as local, sessions.new(program=program) as session:
        assert (local.longest_series, session.longest_series) == (1, MOST_STEPS)
        found, expected = [], []
        for each, fetched in ((session, found), (local, expected)):
            each.run("init")
            fetched += each.run_series("train", 0, feeds)
            fetched.append(each.run("save"))
        conftest.expect_same_losses(found, expected)
        assert session.sent_bytes() == local.sent_bytes()


@pytest.mark.parametrize("lanes", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_workers_without_shared_memory_compute_the_same(sessions: Sessions, expected: Expected, lanes: int) -> None:
    """Over TCP, no process maps memory of another one."""
    with sessions.new(launcher=LocalLauncher(sessions.logs, 1, over_tcp=True, lanes=lanes)) as session:
        before = session.sent_bytes()
        conftest.expect_same_losses(losses(session), expected[0])
        assert session.sent_bytes() != before
        assert list(sessions.directory.iterdir()) == [], "no socket, no arena, and no ticket is left"
        processes = ["self", *(sessions.worker(k).pid for k in range(WORKERS))]
        maps = [Path(f"/proc/{each}/maps").read_text() for each in processes]
        assert not [text for text in maps if str(sessions.directory) in text]
        session.run("restore", feeds=session.run("save"))
        expect_same_bits(session.run("save"), expected[0][-1])


def test_clients_of_one_signature_read_their_own_inputs(sessions: Sessions, registry: Registry) -> None:
    scoring = PROGRAM.clients["eval"]
    inputs = tuple(replace(slot, split="train") for slot in scoring.inputs)
    other = replace(scoring, name="other", inputs=inputs)
    program = replace(PROGRAM, clients={**PROGRAM.clients, "other": other})
    source = {**SOURCE, "batch_size": TEST_BATCH}
    found = []
    for opened in (in_process(registry, program, source), sessions.new(source, program=program)):
        with opened as session:
            session.run("init")
            feeds = {"step": np.int64(0)}
            found.append([session.run(client, feeds=feeds) for client in ("eval", "other", "eval")])
    conftest.expect_same_losses(*found)
    assert not np.array_equal(found[0][0]["labels"], found[0][1]["labels"])


def test_restore_undoes_training(session: ClusterSession) -> None:
    session.run("init")
    train(session, 0)
    saved = session.run("save")
    after = train(session, 1)
    session.run("restore", feeds=saved)
    expect_same_bits(session.run("save"), saved)
    expect_same_bits(train(session, 1), after)


@pytest.mark.parametrize(
    ("feeds", "message"),
    [
        ({"learning_rate": np.ones(2)}, r"^feed replica_0/learning_rate:0: got float64\[2\], expected float64\[\]$"),
        ({"learning_rate": np.float32(0.1)}, r"^feed replica_0/learning_rate:0: got float32\[\], expected float64"),
        ({"momentum": 0.9}, r"client 'train' was fed \['learning_rate', 'momentum', 'step'\], but takes"),
    ],
)
def test_wrong_feed_is_refused_and_the_session_continues(
    session: ClusterSession, expected: Expected, feeds: Mapping[str, Any], message: str
) -> None:
    session.run("init")
    right = {"step": np.int64(0), "learning_rate": np.float64(0.1)}
    with pytest.raises(RunnerError, match=message):
        session.run("train", feeds={**right, **feeds})
    expect_same_bits(train(session, 0), expected[0][0])


def test_trace_has_the_steps_of_its_client_on_every_worker(session: ClusterSession) -> None:
    session.run("init")
    with pytest.raises(RunnerError, match="no trace is being recorded"):
        session.stop_trace()
    session.start_trace(["train"])
    with pytest.raises(RunnerError, match="a trace of eval was requested during another trace: stop the first trace"):
        session.start_trace(["eval"])
    train(session, 0)
    session.run("eval", step=1, feeds={"step": np.int64(1)})
    train(session, 1)
    timeline = session.stop_trace()
    train(session, 2)
    expect_matching_transfers(timeline.spans)
    assert [(run.process, run.client, run.step) for run in timeline.runs] == [("master-0", "train", k) for k in (0, 1)]
    # Other tests use the same session, so only the difference between the run numbers is known.
    numbers = {run.step: run.number for run in timeline.runs}
    assert numbers[1] == numbers[0] + 1
    assert {(span.process, span.client, span.step, span.number) for span in timeline.spans} == {
        (worker, "train", *run) for worker in ("worker-0", "worker-1") for run in numbers.items()
    }
    assert all(run.begin_ns < run.end_ns for run in timeline.runs)


def test_running_session_has_only_sockets_in_its_directory(shared: Shared) -> None:
    session, sessions = shared
    session.run("init")
    train(session, 0)
    directory = sessions.directory
    assert {path.name for path in directory.iterdir()} == {"master-0", "worker-0", "worker-1"}
    assert all(stat.S_ISSOCK(path.stat().st_mode) for path in directory.iterdir())
    assert f"{directory}/arena-" in Path("/proc/self/maps").read_text()


def test_memory_and_libraries_are_reported_and_the_token_is_hidden(shared: Shared, expected: Expected) -> None:
    session, sessions = shared
    losses(session)
    assert set(session.peak_memory_bytes()) == {"master", "worker-0", "worker-1"}
    assert min(session.peak_memory_bytes().values()) > 10_000_000
    assert session.libraries() == expected[1].libraries()
    assert {path.name for path in sessions.logs.iterdir()} == {"worker-0.log", "worker-1.log"}
    secret = session._identity.token
    for index in range(WORKERS):
        assert secret not in " ".join(sessions.worker(index).cmdline())
        assert secret not in sessions.worker(index).environ().values()


def test_two_sessions_run_concurrently(sessions: Sessions, expected: Expected, session: ClusterSession) -> None:
    with sessions.new() as other:
        for each in (session, other):
            each.run("init")
        for step in range(3):
            for each in (session, other):
                expect_same_bits(train(each, step), expected[0][step])
    expect_same_bits(session.run("save"), expected[0][-1])


def test_parameter_servers_are_separate_processes(sessions: Sessions, registry: Registry) -> None:
    with in_process(registry, SERVED) as local:
        expected, expected_sent = losses(local), local.sent_bytes()
    with sessions.new(program=SERVED) as session:
        conftest.expect_same_losses(losses(session), expected)
        assert session.sent_bytes() == expected_sent
        assert min(expected_sent) > 0
        names = {"worker-0", "worker-1", "ps-0", "ps-1"}
        assert set(session.peak_memory_bytes()) == {"master", *names}
        assert {path.name for path in sessions.logs.iterdir()} == {f"{name}.log" for name in names}


def test_recorded_turns_replay_launched_clients_bit_for_bit(sessions: Sessions, registry: Registry) -> None:
    program = tally()
    with sessions.new(None, program=program) as session:
        session.run("init")
        endings = pushed(session, rounds=9)
        total, sent = session.run("save"), session.sent_bytes()
    record = Recorded([Ending(each.client, each.step, each.turns) for each in endings])
    with closing(LocalSession(program, local_cluster(2, 1), registry, interleaving=record)) as replayed:
        replayed.run("init")
        for mine, other in zip(pushed(replayed, rounds=9), endings, strict=True):
            assert (mine.client, mine.step, mine.turns) == (other.client, other.step, other.turns)
            expect_same_bits(mine.fetches, other.fetches)
        expect_same_bits(replayed.run("save"), total)
        assert replayed.sent_bytes() == sent


def test_launched_client_shares_no_plan_with_a_client_that_is_not_deferred(sessions: Sessions) -> None:
    program = tally()
    alone = replace(program.clients["push_0"], name="alone", deferred=False)
    with sessions.new(None, program=replace(program, clients={**program.clients, "alone": alone})) as session:
        session.run("init")
        session.run("alone")
        session.launch("push_0")
        assert session.finished().client == "push_0"
        for name, deferred in (("alone", False), ("push_0", True)):
            plan = session._plans.loaded(session._plans.client(name))
            assert plan is not None
            assert plan.assignments["ps-0"].deferred is deferred


@pytest.fixture(scope="module")
def launching(registry: Registry, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterSession]:
    """Yield one session of the ``tally`` program, which several tests share because they leave it usable."""
    with Sessions(registry, tmp_path_factory.mktemp("logs")).new(None, program=tally()) as session:
        session.run("init")
        yield session


def test_no_client_runs_or_loads_while_launched_clients_run(launching: ClusterSession) -> None:
    session = launching
    expect_misuse_refused(session)
    new = replace(session._program.clients["save"], name="new", exact=True)
    with pytest.raises(RunnerError, match="client 'new' was loaded before work_0 finished: wait for launched clients"):
        session._load(new)
    assert session.finished().client == "work_0"
    session.run("init")


def test_variables_are_saved_while_launched_clients_run(launching: ClusterSession) -> None:
    session = launching
    session.run("init")
    before = np.zeros(SIZE)
    for step in range(20):
        session.launch("push_1", step=step)
        session.launch("work_1", step=step)
        saved = session.run("save")["total"]
        ended = {each.client: each for each in (session.finished(), session.finished())}
        assert {name: each.step for name, each in ended.items()} == {"push_1": step, "work_1": step}
        after = ended["push_1"].fetches["total"]
        assert np.array_equal(saved, before) or np.array_equal(saved, after)
        before = after


def test_trace_begins_and_ends_while_clients_run(launching: ClusterSession) -> None:
    session = launching
    session.launch("work_0", step=7)
    session.start_trace(["work_0", "push_0"])
    assert session.finished().client == "work_0"
    session.launch("work_0", step=8)
    session.launch("push_0", step=9)
    ended = [session.finished(), session.finished()]
    session.launch("work_0", step=10)
    timeline = session.stop_trace()
    # A client that finishes while spans are collected is reported afterwards.
    ended.append(session.finished())
    assert sorted((each.client, each.step) for each in ended) == [("push_0", 9), ("work_0", 8), ("work_0", 10)]
    # Other tests use the same session, so the number of the first run is not known.
    first = next(run.number for run in timeline.runs if run.step == 7)
    runs = {("work_0", first + 1, 8), ("push_0", 0, 9)}
    assert {(run.client, run.number, run.step) for run in timeline.runs} == {("work_0", first, 7), *runs}
    assert runs <= {(s.client, s.number, s.step) for s in timeline.spans}
    expect_matching_transfers([span for span in timeline.spans if span.client == "push_0"])
    session.run("save")


@pytest.mark.parametrize(
    ("devices", "names"),
    [
        ((worker_device(0), "/job:worker/task:0/device:cpu:1"), "worker-0, worker-1"),
        ((worker_device(0), worker_device(2)), "worker-0, worker-1"),
        ((worker_device(0), server_device(1)), "worker-0, ps-0"),
    ],
)
def test_wrong_devices_are_refused(registry: Registry, tmp_path: Path, devices: tuple[str, str], names: str) -> None:
    cluster = Cluster(tuple(map(Device, devices)))
    with pytest.raises(ValueError, match=f"expected one device for each of {names}"):
        ClusterSession(PROGRAM, cluster, registry, None, run_id="r", epoch=1, logs=tmp_path, threads=1, facts={})
