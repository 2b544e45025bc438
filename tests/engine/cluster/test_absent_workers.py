"""With backup workers, a session goes on without a lost worker, whose replacement takes part later."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest

from runner.engine.cluster.cluster_session import ClusterSession
from runner.engine.cluster.launchers import LocalLauncher
from runner.engine.cluster.starting import Recovered
from runner.engine.cluster.worker_group import WorkerGroup
from runner.engine.run.step_driver import bind
from runner.errors import WorkerLostError
from runner.optimizers.sgd import Momentum
from runner.strategies.sync_data import SyncData
from runner.strategies.synchronous.first_arrivals import CountedShares
from tests.engine.cluster.conftest import SOURCE, Sessions
from tests.engine.run.launched_programs import expect_matching_transfers
from tests.strategies.networks import NETWORKS, workload_of
from tests.strategies.training import expect_same_bits

BACKED = SyncData(workers=2, combine="parameter_server", servers=2, backup_workers=1).build(
    workload_of(NETWORKS["dense"], Momentum(), batch_size=4)
)


def updates(session: ClusterSession, steps: range) -> dict[int, list[int]]:
    """Make updates of ``BACKED``; return step -> the workers that began it, in order, and wait for late workers."""
    driver = bind(BACKED.step_driver, session)
    for step in steps:
        driver.update(step, np.float64(0.1))
    driver.synchronize()
    lines = driver.decisions()["contributors"]
    return {
        line["step"]: sorted([*line["contributors"], *(each["worker"] for each in line["dropped"])]) for line in lines
    }


def lose_one(sessions: Sessions, session: ClusterSession, lost: str, epoch: int) -> Recovered:
    """Kill a worker, wait until updates of ``BACKED`` notice it, and go on without it if enough workers are left."""
    sessions.worker(int(lost[-1])).kill()
    with pytest.raises(WorkerLostError, match=rf"^{lost} "):
        updates(session, range(10_000))
    recovered = session.recover(lost, epoch, bind(BACKED.step_driver, session).can_go_on)
    session.run("init")
    return recovered


@contextmanager
def without_worker_2(sessions: Sessions, *, over_tcp: bool = False) -> Iterator[ClusterSession]:
    """Yield a session that has lost worker-2 after some updates, with ``init`` run again."""
    launcher = LocalLauncher(sessions.logs, 1, over_tcp=over_tcp)
    with sessions.new({**SOURCE, "batch_size": 6}, program=BACKED, launcher=launcher) as session:
        session.run("init")
        updates(session, range(2))
        recovered = lose_one(sessions, session, "worker-2", 2)
        assert (recovered.replaced, recovered.started_s) == (("worker-2",), None)
        yield session


@pytest.mark.parametrize("over_tcp", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_others_make_updates_until_the_replacement_takes_part(
    sessions: Sessions, over_tcp: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with without_worker_2(sessions, over_tcp=over_tcp) as session:
        with monkeypatch.context() as patched:
            patched.setattr(WorkerGroup, "has_joined", False)
            assert updates(session, range(3)) == {step: [0, 1] for step in range(3)}
            assert session.absent == {"worker-2"}
        step = 3
        while session.absent:
            assert step < 10_000
            updates(session, range(step, step + 1))
            step += 1
        began = updates(session, range(step, step + 20))
        assert 2 in {worker for workers in began.values() for worker in workers}


def test_clients_of_all_workers_wait_for_the_replacement(sessions: Sessions) -> None:
    with without_worker_2(sessions) as session:
        feeds = {"step": np.int64(0)}
        session.launch("read_0")
        session.start_trace(["read_0", "read_2"])
        assert session.absent == set()
        session.launch("read_2")
        assert [session.finished().client for _ in range(2)] == ["read_0", "read_2"]
        expect_matching_transfers(session.stop_trace().spans)
        scored = session.run("eval", step=0, feeds=feeds)
        lose_one(sessions, session, "worker-2", 3)
        expect_same_bits(session.run("eval", step=0, feeds=feeds), scored)
        assert session.absent == set()


def test_loss_of_more_than_the_backup_workers_waits_for_all_replacements(
    sessions: Sessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(WorkerGroup, "has_joined", False)
    with without_worker_2(sessions) as session:
        recovered = lose_one(sessions, session, "worker-1", 3)
        assert recovered.replaced == ("worker-1", "worker-2")
        assert recovered.started_s is not None
        assert updates(session, range(20)).keys() == set(range(20))
        lose_one(sessions, session, "worker-0", 4)  # the session ends before the replacement has joined


def test_replay_waits_for_the_replacement(sessions: Sessions) -> None:
    settings = BACKED.step_driver
    assert isinstance(settings, CountedShares)
    with without_worker_2(sessions) as session:
        assert bind(settings, session).can_go_on()
        assert not bind(replace(settings, replayed={0: (0, 1)}), session).can_go_on()
