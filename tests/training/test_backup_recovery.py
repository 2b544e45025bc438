"""Runs with backup workers that lose workers: the others go on, and new processes take part later or are lost too."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from runner.callback import Callback
from runner.engine.cluster.cluster_session import ClusterSession
from runner.engine.cluster.command_process import CommandProcess
from runner.engine.cluster.launchers import LocalLauncher, Tickets
from runner.engine.cluster.supervisor import Supervisor
from runner.engine.cluster.worker_group import WorkerGroup
from runner.errors import ClusterError, NotStartedAgainError
from runner.records.decisions import read_decisions
from runner.training.recovery import Recovery
from tests.engine.cluster.test_processes import wait_until_dead
from tests.small_runs import typed
from tests.training.test_recovery import STRATEGIES, Disturbance, recoveries_of, train

BACKED = (
    *STRATEGIES["servers"],
    *typed("parallelism.backup_workers=1 checkpoint.every_steps=2 train.eval_every=8 train.steps=16"),
)
"""Two of three workers count in each update; all take part in the evaluations, after updates 8 and 16."""
WORKER_0_LATE = typed(
    "cluster.emulate=true cluster.stragglers.distribution=constant cluster.stragglers.median_ms=40 "
    "cluster.stragglers.workers=[0]"
)


def test_a_run_does_not_wait_for_a_backup_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The new process joins only in the evaluation after update 8, and counts from then on, because it is in time."""
    monkeypatch.setattr(WorkerGroup, "has_joined", False)
    lost = Disturbance({4: ("worker-2", signal.SIGKILL)})
    summary = train(tmp_path / "run", (*BACKED, *WORKER_0_LATE), lost)
    assert (summary.status, summary.steps, summary.recoveries) == ("finished", 16, 1)
    (recorded,) = recoveries_of(tmp_path / "run")
    assert (recorded["worker"], recorded["replaced"], recorded["started_s"]) == ("worker-2", ["worker-2"], None)
    assert recorded["seconds"] == pytest.approx(recorded["fenced_s"] + recorded["state_s"])
    assert recorded["step"] < 8
    assert recorded["rejoined_step"] == 8
    contributors = tmp_path / "run" / "contributors.jsonl"
    lines = {line["step"]: line for line in read_decisions(contributors)}
    assert list(lines) == list(range(16))
    for step in range(recorded["continued_from"], 8):
        assert (lines[step]["contributors"], lines[step]["dropped"]) == ([0, 1], [])
    assert any(2 in lines[step]["contributors"] for step in range(8, 16))
    again = train(tmp_path / "again", (*BACKED, f"parallelism.replay={contributors}"))
    assert again.weights_sha256 == summary.weights_sha256


def test_a_backup_worker_that_does_not_join_again_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none_joins(session: ClusterSession) -> None:
        raise NotStartedAgainError("no 'hello' from worker-2", 2)

    monkeypatch.setattr(WorkerGroup, "has_joined", False)
    monkeypatch.setattr(Recovery, "is_due", False)
    monkeypatch.setattr(ClusterSession, "_wait_for_absent", none_joins)
    with pytest.raises(NotStartedAgainError, match=r"^no 'hello' from worker-2$"):
        train(tmp_path / "run", BACKED, Disturbance({4: ("worker-2", signal.SIGKILL)}))
    (recorded,) = recoveries_of(tmp_path / "run")
    assert (recorded["replaced"], recorded["remaining"], recorded["rejoined_step"]) == ([], 2, None)


@pytest.mark.slow
def test_a_backup_worker_that_hangs_before_it_joins_is_lost_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time limit of the first new process, which never joins, ends immediately. The second new process joins."""
    hung: list[str] = []
    start, replace = LocalLauncher.start, WorkerGroup.replace

    def hangs(launcher: LocalLauncher, tickets: Tickets, address: str, supervisor: Supervisor, *rest: Any) -> None:
        if len(tickets) > 1 or hung:
            start(launcher, tickets, address, supervisor, *rest)
            return
        hung.extend(tickets)
        supervisor.start(hung[0], ("/bin/sleep", "600"), launcher.logs / "hung.log", os.environ)

    def late(group: WorkerGroup, lost: str, epoch: int) -> list[str]:
        replaced = replace(group, lost, epoch)
        if epoch == 2:
            group._replaced_at -= group.launcher.join_s
            group._resumed_at = group._replaced_at
        return replaced

    monkeypatch.setattr(LocalLauncher, "start", hangs)
    monkeypatch.setattr(WorkerGroup, "replace", late)
    lost = Disturbance({4: ("worker-2", signal.SIGKILL)})
    summary = train(tmp_path / "run", (*BACKED, *WORKER_0_LATE, *typed("train.eval_every=16 train.steps=32")), lost)
    assert (summary.status, summary.steps, summary.recoveries) == ("finished", 32, 2)
    first, second = recoveries_of(tmp_path / "run")
    assert (first["worker"], first["cause"], first["rejoined_step"]) == ("worker-2", "was killed by SIGKILL", None)
    assert (second["worker"], second["cause"]) == ("worker-2", "did not join the run again")
    assert second["step"] < 16, "the loss is noticed before the evaluation"
    assert second["rejoined_step"] is not None


class FailingStarts(Callback):
    """Starts of single processes by a command that fails: immediately, or when the run has gone on by a step.

    fails: number of starts that fail; -1 for all.
    """

    def __init__(self, fails: int, monkeypatch: pytest.MonkeyPatch, *, at_once: bool = False) -> None:
        self._commands: list[CommandProcess] = []
        start, replace = LocalLauncher.start, WorkerGroup.replace

        def starts(launcher: LocalLauncher, tickets: Tickets, address: str, supervisor: Supervisor, *rest: Any) -> None:
            supervisor.end_idle_commands()
            if len(tickets) > 1 or len(self._commands) == fails:
                start(launcher, tickets, address, supervisor, *rest)
                return
            name, script = f"srun-{len(self._commands)}", "read line; echo 'srun: error: Unable to create step'; exit 1"
            argv = ("/bin/sh", "-c", script)
            command = supervisor.start(name, argv, launcher.logs / name, os.environ, list(tickets))
            self._commands.append(command)

        def fails_at_once(group: WorkerGroup, lost: str, epoch: int) -> list[str]:
            replaced = replace(group, lost, epoch)
            self.on_step(0, 0.0)
            wait_until_dead(self._commands[-1])
            group._check_workers(())
            return replaced

        monkeypatch.setattr(LocalLauncher, "start", starts)
        if at_once:
            monkeypatch.setattr(WorkerGroup, "replace", fails_at_once)

    def on_step(self, step: int, loss: float) -> None:
        if self._commands and self._commands[-1].exit is None:
            self._commands[-1].write_line("")


def test_a_start_that_fails_after_the_run_has_gone_on_costs_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = Disturbance({4: ("worker-2", signal.SIGKILL)})
    summary = train(tmp_path / "run", (*BACKED, *WORKER_0_LATE), lost, FailingStarts(1, monkeypatch))
    assert (summary.status, summary.steps, summary.recoveries) == ("finished", 16, 2)
    first, second = recoveries_of(tmp_path / "run")
    assert (first["replaced"], first["rejoined_step"]) == (["worker-2"], None)
    assert (second["worker"], second["cause"], second["replaced"]) == ("srun-0", "exited with code 1", ["worker-2"])
    assert second["rejoined_step"] is not None


@pytest.mark.parametrize("at_once", [pytest.param(False, marks=pytest.mark.slow), True])
def test_starts_that_always_fail_end_the_run_when_no_restart_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: bool
) -> None:
    lost = Disturbance({4: ("worker-2", signal.SIGKILL)})
    ends = (
        r"(?s)^srun-2 \(pid \d+\) exited with code 1 after .*\| srun: error: Unable to create step\n"
        r".*already restarted 3 times"
    )
    given = (*BACKED, *WORKER_0_LATE, "train.eval_every=32")
    with pytest.raises(ClusterError, match=ends):
        train(tmp_path / "run", given, lost, FailingStarts(-1, monkeypatch, at_once=at_once))
    recoveries = recoveries_of(tmp_path / "run")
    assert [each["worker"] for each in recoveries] == ["worker-2", "srun-0", "srun-1"]
    failed = [f"srun-{number} exited with code 1" for number in range(3)]
    assert [each.get("failed") for each in recoveries] == (failed if at_once else [None] * 3)
