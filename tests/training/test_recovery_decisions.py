"""Which losses a run survives, and when it copies its variables; no process is started."""

import json
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runner.engine.cluster.starting import Recovered
from runner.engine.run.step_driver import Clients, Rounds, bind
from runner.errors import ClusterError, ResourceError, WorkerLostError
from runner.records.run_directory import RunDirectory
from runner.training import recovery
from runner.training.recovery import Recovery
from runner.training.restart_budget import RestartBudget
from runner.training.saving import Progress, Start

CRASH = WorkerLostError("worker-0", "was killed by SIGSEGV", "died", by_chance=False)
CRASH_OF_1 = WorkerLostError("worker-1", "was killed by SIGSEGV", "died later", by_chance=False)
KILL = WorkerLostError("worker-0", "was killed by SIGKILL", "died", by_chance=True)
SECOND_STARVED = "second process that was killed for lack of memory"
STARVED = WorkerLostError("worker-0", "was killed by SIGKILL", "died", by_chance=True, out_of_memory=True)


class NoRecord:
    def rewind(self, step: int) -> None: ...

    def metrics(self, step: int, values: object) -> None: ...


@pytest.mark.parametrize(
    ("faults", "ends"),
    [
        ([(KILL, 5, None)] * 3, ""),
        ([(KILL, 5, None)] * 4, "already restarted 3 times"),
        ([(KILL, step, None) for step in (5, 5, 5, 24)], "already restarted 3 times"),
        ([(KILL, step, None) for step in (5, 5, 5, 25, 26, 27)], ""),
        ([(KILL, step, None) for step in (25, 25, 25, 5)], "already restarted 3 times"),
        ([(KILL, 5, None)] * 3 + [(KILL, 7, 5)], "already restarted 3 times"),
        ([(KILL, 5, None)] * 3 + [(KILL, 7, 6)] * 3, ""),
        ([(CRASH, 5, None), (CRASH, 6, None)], ""),
        ([(STARVED, 5, None), (KILL, 6, None)], ""),
        ([(STARVED, 5, None), (KILL, 6, None), (STARVED, 7, None)], SECOND_STARVED),
        ([(STARVED, 5, None), (STARVED, 25, None)], ""),
        ([(CRASH, 5, None), (KILL, 6, None), (CRASH, 5, None)], "^died\nworker-0 .*SIGSEGV a second time in step 5"),
        ([(CRASH, 5, None, 16), (CRASH, 21, None)], ""),
        ([(CRASH, 5, None, 16), (CRASH, 20, None)], "a second time in step 20, so the run is not restarted"),
        (
            [(CRASH, 5, None, 2), (CRASH, 3, None, 3)],
            "a second time in one of the steps 3 to 5, so the run is not restarted",
        ),
        (
            [(CRASH, 5, None), (CRASH_OF_1, 5, None)],
            "^died\nworker-1 .* a second time in step 5, so the run is not restarted",
        ),
    ],
)
def test_restarts_are_limited(faults: list[tuple[Any, ...]], ends: str, tmp_path: Path) -> None:
    """Each fault has the step that it interrupts, the newest step that was saved before, and the length of a series."""
    budget = RestartBudget(3, tmp_path)
    *first, last = faults
    for fault in first:
        budget.admit(*fault)
    if ends:
        with pytest.raises(ResourceError if "memory" in ends else ClusterError, match=ends):
            budget.admit(*last)
    else:
        budget.admit(*last)


def test_the_time_between_copies_grows_with_their_duration(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Session:
        def load(self, client: str) -> None:
            clock.now += 1.0

        def run(self, client: str) -> dict[str, np.ndarray]:
            clock.now += duration.pop(0)
            return {}

    class Clock:
        now = 100.0

        def monotonic(self) -> float:
            return self.now

    clock, duration = Clock(), [3.0, *8 * [30.0]]
    monkeypatch.setattr(recovery, "time", clock)
    with RunDirectory.open(tmp_path, resume=False) as directory:
        copies = Recovery(Session(), directory, None, 3, Start())  # type: ignore[arg-type]
        assert not copies.is_due
        clock.now += 0.1
        assert copies.is_due
        copies.copy(Progress(4))
        assert copies.boundary.progress.done == 4
        for seconds in (*8 * [150.0], 1500.0):
            clock.now += seconds - 1.0
            assert not copies.is_due
            clock.now += 1.0
            assert copies.is_due
            if duration:
                copies.copy(Progress(4))


def test_updates_without_a_lost_worker_do_not_reset_the_count_of_restarts(tmp_path: Path) -> None:
    class Session:
        absent: Collection[str] = ("worker-0",)

        def recover(self, lost: str, epoch: int, can_go_on: Callable[[], bool]) -> Recovered:
            return Recovered((lost,), 0.0, 0.0, None if can_go_on() else 1.0)

        def run(self, client: str) -> dict[str, np.ndarray]:
            return {}

        def start_spares(self) -> None:
            started.append(1)

    session, started = Session(), list[int]()
    with RunDirectory.open(tmp_path, resume=False) as directory:
        lost = Recovery(session, directory, NoRecord(), 1, Start())  # type: ignore[arg-type]
        lost.budget.admit(KILL, 5, None)
        assert "does not wait for the new process" in lost.recover(KILL, range(5, 6), lambda: True)
        for done in range(1, 61):
            lost.after_step(done)
        with pytest.raises(ClusterError, match="already restarted 1 times"):
            lost.budget.admit(KILL, 60, None)
        assert not directory.recoveries_jsonl.exists()
        assert not started, "the start of a process would delay the run"
        session.absent = ()
        lost.after_step(61)
        assert len(started) == 1
        assert json.loads(directory.recoveries_jsonl.read_text())["rejoined_step"] == 60
        lost.budget.admit(KILL, 80, None)


def test_variables_of_a_process_without_values_are_restored(tmp_path: Path) -> None:
    """A worker is lost while the variables of a replaced server are restored, and again later."""

    class Session:
        def recover(self, lost: str, epoch: int, can_go_on: Callable[[], bool]) -> Recovered:
            return Recovered((lost,), 0.0, 0.0, 1.0)

        def participants(self, client: str) -> set[str]:
            return {"ps-0"}

        def load(self, client: str) -> None: ...

        def run(self, client: str, **_: Any) -> dict[str, np.ndarray]:
            ran.append(client)
            if len(ran) == 1:
                raise KILL
            return {}

    ran = list[str]()
    killed = WorkerLostError("ps-0", "was killed by SIGKILL", "died", by_chance=True)
    with RunDirectory.open(tmp_path, resume=False) as directory:
        lost = Recovery(Session(), directory, NoRecord(), 3, Start())  # type: ignore[arg-type]
        with pytest.raises(WorkerLostError, match="died"):
            lost.recover(killed, range(5, 6), lambda: False, Progress(5))
        lost.recover(KILL, range(5, 6), lambda: False, Progress(5))
        assert (ran, lost.boundary.progress.done) == (["init", "init"], 0)
        lost.recover(KILL, range(7, 8), lambda: False, Progress(7))
        assert (ran[2:], lost.boundary.progress.done) == (["save", "restore"], 7)


def test_variables_are_not_copied_within_a_round() -> None:
    class AtOnce(Clients):
        def run(self, client: str, **_: Any) -> dict[str, np.ndarray]:
            return {}

    driver = bind(Rounds("average", steps=2), AtOnce())
    found = [driver.is_synchronized]
    for step in range(3):
        driver.update(step, np.float64(0.1))
        found.append(driver.is_synchronized)
    driver.synchronize()
    assert [*found, driver.is_synchronized] == [True, False, True, False, True]
