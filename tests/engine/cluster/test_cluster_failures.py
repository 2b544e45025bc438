"""Failures of sessions on real worker processes: the errors raised, and the removal of processes and files."""

import secrets
import signal
import sys
import time
from pathlib import Path

import pytest

from runner.engine.cluster.cluster_session import ClusterSession
from runner.engine.cluster.process_exit import Exit
from runner.engine.cluster.transport import heartbeat
from runner.engine.cluster.transport.heartbeat import HeartbeatMonitor
from runner.engine.cluster.transport.messages import IDLE, STEP
from runner.errors import ClusterError, ConfigError, ResourceError, RunnerError, WorkerLostError
from tests.engine.cluster.conftest import SOURCE, WORKERS, Sessions, suspended, train
from tests.integration.command import Command, processes_of, wait_until


def test_closed_session_has_no_workers_and_no_shared_memory(sessions: Sessions) -> None:
    with sessions.new() as session:
        session.run("init")
        directory, libraries = sessions.directory, session.libraries()
        workers = session._group.supervisor.workers.values()
        session.close()
        assert [worker.exit and worker.exit.code for worker in workers] == [0, 0], "they exit by themselves"
        assert not directory.exists()
        assert processes_of(sessions.run_ids[-1]) == []
        assert str(directory) not in Path("/proc/self/maps").read_text()
        with pytest.raises(
            RunnerError, match="the session has not started its workers: use the session in a `with` block"
        ):
            session.run("init")
        session.close()
    assert session.libraries() == libraries
    assert (sessions.logs / "worker-0.log").exists()


def test_exception_inside_the_block_leaves_no_process_or_directory(sessions: Sessions) -> None:
    def fail(session: ClusterSession) -> None:
        session.run("init")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), sessions.new() as session:
        fail(session)


def test_failed_start_leaves_no_process_or_directory(sessions: Sessions, tmp_path: Path) -> None:
    (tmp_path / "worker-1.log").mkdir()
    for logs, expected in (
        (tmp_path / "missing", r"cannot start worker-0: .*missing/worker-0\.log: No such file"),
        (tmp_path, r"cannot start worker-1: .*worker-1\.log: Is a directory"),
    ):
        with pytest.raises(ResourceError, match=expected):
            sessions.new(logs=logs).__enter__()


def test_source_error_keeps_its_class_names_the_worker_and_leaves_no_secret_in_its_log(sessions: Sessions) -> None:
    source = {**SOURCE, "config": {"name": "no-such-data?token=hunter2"}}
    expected = r"^worker-\d: unknown dataset: data.name is 'no-such-data"
    with pytest.raises(ConfigError, match=expected) as caught, sessions.new(source) as session:
        session.run("init")
    text = (sessions.logs / f"{str(caught.value).partition(':')[0]}.log").read_text()
    assert "data.name is 'no-such-data?token=[redacted]" in text
    assert "hunter2" not in text


@pytest.mark.parametrize(("code", "again"), [(1, True), (4, False), (5, False), (7, True), (-11, True)])
def test_an_exit_after_an_error_that_would_recur_is_not_a_lost_worker(code: int, again: bool) -> None:
    error = Exit(code, after_s=1.0).error("worker-0", "text")
    assert isinstance(error, WorkerLostError) == again
    assert (isinstance(error, WorkerLostError) and error.by_chance) == (code == ClusterError.exit_code)


def test_stuck_worker_logs_its_stack(sessions: Sessions, monkeypatch: pytest.MonkeyPatch) -> None:
    """Worker 1 is suspended while it is idle, so worker 0 waits in its step for a tensor from worker 1."""
    monkeypatch.setattr(heartbeat, "STOPPED_S", 1000.0)
    monitor = HeartbeatMonitor({STEP: 2.0}, silence_s=1000.0)
    with sessions.new(monitor=monitor) as session:
        session.run("init")
        train(session, 3)
        while monitor._watched["worker-1"].section != IDLE:
            # Only worker 0 runs "save"; during "save", the master reads the heartbeats.
            session.run("save")
        expected = "worker-0 is stuck: no progress in section 'step' at step 4"
        with suspended(sessions.worker(1)), pytest.raises(ClusterError, match=expected):
            train(session, 4)
        assert "_call_all" in (sessions.logs / "worker-0.log").read_text()


SILENCE_S = 3.0
TRAINING = f"""
import sys
import threading
from pathlib import Path
from runner.engine.cluster.cluster_session import ClusterSession
from runner.engine.graph.device import local_cluster
from runner.engine.run.kernel_table import load_kernels
from runner.engine.cluster.transport.heartbeat import HeartbeatMonitor
from runner.records.summary import joining_facts
from tests.engine.cluster.conftest import PROGRAM, SOURCE, train

monitor = HeartbeatMonitor(silence_s={SILENCE_S})
run = dict(run_id=sys.argv[1], epoch=1, logs=Path(sys.argv[2]), threads=1, monitor=monitor)
run["facts"] = joining_facts({{}})

def beat():
    while True:
        with Path(sys.argv[2], "beats").open("a") as file:
            file.write(".")
        threading.Event().wait(0.1)

threading.Thread(target=beat, daemon=True).start()
with ClusterSession(PROGRAM, local_cluster({WORKERS}), load_kernels(), SOURCE, **run) as session:
    session.run("init")
    while not Path(sys.argv[2], "enough").exists():
        train(session, 0)
        Path(sys.argv[2], "begun").touch()
"""
"""The program of a master that appends to the file ``beats`` and trains until the file ``enough`` exists."""


@pytest.mark.slow
def test_run_continues_after_all_its_processes_were_suspended(tmp_path: Path) -> None:
    """A debugger or a paused container can suspend the master and its workers; the last to continue may be a worker."""
    run_id = secrets.token_hex(8)
    command = Command(Path(__file__).parents[2], run_id, str(tmp_path), executable=(sys.executable, "-c", TRAINING))
    beats = tmp_path / "beats"

    def wait_for_master() -> None:
        """Wait until the master has written five more beats."""
        enough = beats.stat().st_size + 5
        wait_until(lambda: beats.stat().st_size >= enough, "beats of the master")

    try:
        wait_until((tmp_path / "begun").exists, "the session has begun")
        workers = command.workers()
        for worker in workers:
            worker.suspend()
        wait_for_master()
        command.send(signal.SIGSTOP)
        end_s = time.monotonic() + SILENCE_S + 0.5
        wait_until(lambda: time.monotonic() >= end_s, "a silence of all processes that is too long")
        command.send(signal.SIGCONT)
        wait_for_master()
        for worker in workers:
            worker.resume()
        (tmp_path / "enough").touch()
        assert command.finish() == 0, command.errors
        assert len(workers) == WORKERS
    finally:
        command.kill()
    assert processes_of(run_id) == []
