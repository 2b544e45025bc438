"""Runs that lose workers: new processes continue, and the results are those of an undisturbed run."""

import json
import os
import re
import signal
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from threading import Event, Timer
from typing import Any

import numpy as np
import psutil
import pytest

from runner.callback import Callback, StopTraining
from runner.checkpoint import background, newest
from runner.config.configuration import load_stored
from runner.engine.cluster.cluster_session import ClusterSession
from runner.engine.cluster.launchers import LocalLauncher
from runner.errors import ClusterError, Interrupted
from runner.records.record import Record
from runner.records.run_directory import RunDirectory
from runner.records.summary import Summary
from runner.strategies.downpour.order import Downpour
from runner.tracking import RunInfo, Tracker, read_metrics
from runner.training import saving, trainer
from runner.training.recovery import Recovery
from runner.training.run import run
from tests.engine.cluster.conftest import wait_for_spares
from tests.integration.command import processes_of
from tests.small_runs import small_config, typed

LENGTH = typed("train.steps=8 train.eval_every=4 train.log_every=1")
SYNC = ("parallelism=sync_data", "parallelism.workers=2", *LENGTH)
STRATEGIES = {
    "sync_data": SYNC,
    "all_reduce": (*SYNC, "parallelism.combine=all_reduce"),
    "ring_all_reduce": (*SYNC, "parallelism.combine=ring_all_reduce"),
    "servers": (*SYNC, "parallelism.combine=parameter_server", "parallelism.servers=1"),
    "hybrid": ("parallelism=hybrid", "parallelism.workers=2", *LENGTH),
    "model": ("parallelism=model", "parallelism.workers=2", "parallelism.constraints={fc1: 0, fc2: 1}", *LENGTH),
    "sandblaster": typed("parallelism=sandblaster parallelism.workers=2 optimizer=lbfgs schedule=constant") + LENGTH,
    "async_data": ("parallelism=async_data", "parallelism.workers=2", "parallelism.servers=1", *LENGTH),
}


class Disturbance(Callback):
    """Sends signals to processes of the run. at: step -> name of the process and the signal."""

    def __init__(self, at: dict[int, tuple[str, signal.Signals]]) -> None:
        self._at = at
        self.steps: list[int] = []
        self.survivors: set[psutil.Process] = set()

    def on_step(self, step: int, loss: float) -> None:
        self.steps.append(step)
        if step in self._at:
            name, signum = self._at[step]
            self.survivors = {child for child in processes() if _name(child) != name}
            (process,) = [child for child in processes() if _name(child) == name]
            process.send_signal(signum)


class InsideStep(Disturbance):
    """Sends the signals inside a step, which lasts longer because links are emulated (``SLOW``)."""

    def on_step(self, step: int, loss: float) -> None:
        Timer(0.06, lambda: Disturbance.on_step(self, step, loss)).start()


SLOW = ("cluster.emulate=true", "cluster.latency_ms=40")


def processes() -> list[psutil.Process]:
    """Return the worker processes of this process."""
    return [child for child in psutil.Process().children() if _ticket(child)]


def _name(process: psutil.Process) -> str:
    return Path(_ticket(process)).stem.partition(".")[2]


def _ticket(process: psutil.Process) -> str:
    try:
        arguments = process.cmdline()
    except psutil.NoSuchProcess:
        return ""
    return arguments[arguments.index("--key") + 1] if "--key" in arguments else ""


def recoveries_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "recoveries.jsonl").read_text().splitlines()]


def train(folder: Path, overrides: Sequence[str], *callbacks: Callback) -> Summary:
    return run(small_config(*overrides), folder, overrides=overrides, callbacks=callbacks)


Undisturbed = Callable[[str], Summary]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    """Return a function that returns the summary of an undisturbed run, in one process if its clients do not race."""

    def trained(name: str) -> Summary:
        alone = () if name in ("async_data", "sandblaster") else ("cluster.one_process=true",)
        return train(tmp_path_factory.mktemp("undisturbed") / "run", (*STRATEGIES[name], *alone))

    return cache(trained)


MEMORY, START = "in memory", "at the start"
LOST = [
    ("sync_data", "worker-1", signal.SIGKILL, MEMORY),
    ("servers", "ps-0", signal.SIGKILL, START),
    pytest.param("sync_data", "worker-0", signal.SIGSTOP, START, marks=pytest.mark.slow),
    pytest.param("hybrid", "worker-0", signal.SIGKILL, MEMORY, marks=pytest.mark.slow),
    pytest.param("model", "worker-1", signal.SIGKILL, MEMORY, marks=pytest.mark.slow),
    pytest.param("model", "worker-0", signal.SIGSEGV, START, marks=pytest.mark.slow),
    pytest.param("sandblaster", "worker-1", signal.SIGKILL, MEMORY, marks=pytest.mark.slow),
    pytest.param("sandblaster", "ps-0", signal.SIGKILL, START, marks=pytest.mark.slow),
    pytest.param("async_data", "worker-1", signal.SIGKILL, MEMORY, marks=pytest.mark.slow),
    pytest.param("async_data", "ps-0", signal.SIGKILL, MEMORY, marks=pytest.mark.slow),
]
"""Strategy, the lost process, the signal that it gets after 6 of 8 steps, and the boundary to which the run returns."""


@pytest.mark.parametrize(("strategy", "process", "signum", "boundary"), LOST)
def test_a_run_goes_on_after_it_lost_a_process(
    strategy: str,
    process: str,
    signum: signal.Signals,
    boundary: str,
    undisturbed: Undisturbed,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Recovery, "is_due", boundary == MEMORY)
    lost = Disturbance({6: (process, signum)})
    summary = train(tmp_path / "run", STRATEGIES[strategy], lost)
    assert (summary.status, summary.steps, summary.recoveries) == ("finished", 8, 1)
    assert lost.steps == list(range(1, 9)), "callbacks are called once for each step"
    expected = undisturbed(strategy)
    assert expected.recoveries == 0
    if strategy == "async_data":
        assert np.isfinite(summary.final["train/loss"])
    else:
        assert summary.weights_sha256 == expected.weights_sha256
        assert summary.final["test/loss"] == expected.final["test/loss"]
    lines = [record for record in read_metrics(tmp_path / "run" / "metrics.jsonl") if "train/loss" in record.values]
    assert [record.step for record in lines] == list(range(1, 9))
    (recorded,) = recoveries_of(tmp_path / "run")
    assert (recorded["worker"], recorded["epoch"], recorded["replaced"]) == (process, 2, [process])
    sources = ["memory of the master" if boundary == MEMORY else "initial values"]
    if (strategy, process) == ("async_data", "worker-1"):
        sources.append("other processes")
    assert recorded["state_from"] in sources
    assert recorded["seconds"] == pytest.approx(recorded["fenced_s"] + recorded["started_s"] + recorded["state_s"])
    assert recorded["found_s"] > 0
    assert recorded["redone_s"] is None or recorded["redone_s"] > 0, "None if only an evaluation was interrupted"
    assert recorded["step"] >= 6, "other processes may finish steps before the loss is noticed"
    if boundary == START:
        assert recorded["continued_from"] == 0
    elif strategy == "async_data":
        assert recorded["continued_from"] >= 5
    else:
        assert recorded["step"] - recorded["continued_from"] <= 1
    assert processes_of(summary.run_id) == []
    with RunDirectory.open(tmp_path / "run", resume=True) as directory:
        assert directory.epoch == 3


def test_asynchronous_training_continues_from_the_variables_of_the_servers(tmp_path: Path) -> None:
    at = {20: ("worker-1", signal.SIGKILL), 200: ("worker-0", signal.SIGKILL)}
    overrides = typed("parallelism=async_data parallelism.workers=2 parallelism.servers=2 parallelism.n_push=2")
    length = typed("train.steps=400 train.eval_every=400 train.log_every=1")
    summary = train(tmp_path / "run", (*overrides, *length), Disturbance(at))
    assert (summary.status, summary.steps, summary.recoveries) == ("finished", 400, 2)
    for recorded, step in zip(recoveries_of(tmp_path / "run"), at, strict=True):
        assert recorded["state_from"] == "other processes"
        assert recorded["continued_from"] == recorded["step"] >= step
        assert recorded["redone_s"] > 0
    lines = [each for each in read_metrics(tmp_path / "run" / "metrics.jsonl") if "train/loss" in each.values]
    assert [each.step for each in lines] == list(range(1, 401))


def test_asynchronous_training_saves_by_time_while_its_workers_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin_again, calls = Downpour.begin_again, list[Downpour]()

    def counted(driver: Downpour) -> None:
        calls.append(driver)
        begin_again(driver)

    monkeypatch.setattr(background, "COST", 0)
    monkeypatch.setattr(Downpour, "begin_again", counted)
    overrides = typed("parallelism=async_data parallelism.workers=2 parallelism.servers=2 parallelism.n_push=2")
    length = typed("train.steps=200 train.eval_every=100 checkpoint.every_s=0")
    summary = train(tmp_path / "run", (*overrides, *length))
    steps = sorted(int(path.name.removeprefix("step-")) for path in (tmp_path / "run" / "checkpoints").iterdir())
    assert len(steps) == 3
    assert steps[0] > 100, "of the checkpoints, the newest three are kept"
    assert len(calls) == 1, "only the last checkpoint waits for the workers"
    record = f"parallelism.replay={tmp_path / 'run' / 'endings-1.jsonl'}"
    assert train(tmp_path / "again", (*overrides, *length, record)).weights_sha256 == summary.weights_sha256


INSIDE = [
    ("sync_data", "worker-1"),
    pytest.param("model", "worker-0", marks=pytest.mark.slow),
    pytest.param("all_reduce", "worker-0", marks=pytest.mark.slow),
    pytest.param("ring_all_reduce", "worker-1", marks=pytest.mark.slow),
    pytest.param("servers", "worker-1", marks=pytest.mark.slow),
    pytest.param("hybrid", "worker-1", marks=pytest.mark.slow),
    pytest.param("sandblaster", "worker-0", marks=pytest.mark.slow),
]
"""Strategy and the process that is killed inside a step."""


@pytest.mark.parametrize(("strategy", "process"), INSIDE)
def test_others_survive_a_kill_in_a_step(strategy: str, process: str, undisturbed: Undisturbed, tmp_path: Path) -> None:
    alive: set[psutil.Process] = set()

    class Ends(Callback):
        def on_step(self, step: int, loss: float) -> None:
            if step == 8:
                alive.update(processes())

    lost = InsideStep({5: (process, signal.SIGKILL)})
    summary = train(tmp_path / "run", [*STRATEGIES[strategy], *SLOW], lost, Ends())
    assert summary.recoveries == 1
    assert summary.weights_sha256 == undisturbed(strategy).weights_sha256
    assert lost.survivors
    assert lost.survivors < alive
    assert len(alive) == len(lost.survivors) + 1
    assert processes_of(summary.run_id) == []


def test_a_spare_process_takes_over(undisturbed: Undisturbed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wait_for_spares(monkeypatch)
    lost = Disturbance({6: ("worker-1", signal.SIGKILL)})
    summary = train(tmp_path / "run", [*SYNC, "cluster.spares=1"], lost)
    assert summary.weights_sha256 == undisturbed("sync_data").weights_sha256
    assert recoveries_of(tmp_path / "run")[0]["replaced"] == ["worker-1"]
    logs = {name: (tmp_path / "run" / "workers" / f"{name}.log").read_text() for name in ("spare-0", "worker-1")}
    assert {name: len(re.findall("has joined the run", text)) for name, text in logs.items()} == dict.fromkeys(logs, 2)
    assert "Traceback" not in logs["spare-0"]
    assert processes_of(summary.run_id) == []


THREE = ("parallelism=sync_data", "parallelism.workers=3", "schedule=constant", *LENGTH[1:])
STRAGGLER = "cluster.emulate=true cluster.stragglers.distribution=constant cluster.stragglers.median_ms=1"


def no_room_for_a_replacement(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the launcher fail to start a single process."""
    start = LocalLauncher.start

    def limited(launcher: LocalLauncher, tickets: Mapping[str, Any], *rest: Any) -> None:
        if len(tickets) == 1:
            raise ClusterError(f"no room for {', '.join(tickets)}")
        start(launcher, tickets, *rest)

    monkeypatch.setattr(LocalLauncher, "start", limited)


def test_a_run_goes_on_with_fewer_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends like a run that was stopped, and resumed with fewer workers, at the step from which it went on."""
    lost = Disturbance({6: ("worker-1", signal.SIGKILL)})
    train(tmp_path / "first", ())
    three = (*THREE, f"init_from={tmp_path / 'first'}")
    fewer = (*three, "train.steps=8", "cluster.min_workers=2")
    with monkeypatch.context() as patched:
        no_room_for_a_replacement(patched)
        patched.setattr(Recovery, "is_due", property(lambda recovery: recovery.boundary.progress.done < 3))
        summary = train(tmp_path / "run", fewer, lost)
    (recorded,) = recoveries_of(tmp_path / "run")
    assert (recorded["worker"], recorded["replaced"], recorded["remaining"]) == ("worker-1", [], 2)
    assert recorded["continued_from"] == 3
    assert lost.steps == list(range(1, 9)), "callbacks are not called again for steps 4 to 6"
    assert (summary.status, summary.steps, summary.recoveries) == ("finished", 8, 1)
    stored = load_stored(tmp_path / "run" / "config.yaml")
    assert stored.parallelism.workers == 2
    assert stored.init_from == str(tmp_path / "first" / "checkpoints" / "step-3")
    assert "cluster.workers was 3 and is 2 from now on" in (tmp_path / "run" / "run.log").read_text()
    alone = (*three, "cluster.one_process=true")
    train(tmp_path / "other", (*alone, f"train.steps={recorded['continued_from']}"))
    resumed = small_config(*alone, "train.steps=8", "parallelism.workers=2")
    assert summary.weights_sha256 == run(resumed, tmp_path / "other", overrides=(), resume=True).weights_sha256


@pytest.mark.parametrize(
    ("fewest", "ends"),
    [
        ("null", "^no room for worker-1$"),
        ("3", "^no room for worker-1$"),
        (
            f"1 {STRAGGLER} cluster.stragglers.workers=[2]",
            r"(?s)^no room for worker-1\nThe run cannot continue with 2 worker\(s\): cluster\.stragglers",
        ),
    ],
)
def test_a_failed_run_keeps_its_state(fewest: str, ends: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    no_room_for_a_replacement(monkeypatch)
    monkeypatch.setattr(Recovery, "is_due", True)
    lost = Disturbance({6: ("worker-1", signal.SIGKILL)})
    with pytest.raises(ClusterError, match=ends):
        train(tmp_path / "run", (*THREE, "train.steps=8", *typed(f"cluster.min_workers={fewest}")), lost)
    (recorded,) = recoveries_of(tmp_path / "run")
    checkpoints = tmp_path / "run" / "checkpoints"
    assert newest(checkpoints) == checkpoints / f"step-{recorded['continued_from']}"


def test_a_recovery_does_not_wait_for_a_checkpoint(
    tmp_path: Path, undisturbed: Undisturbed, monkeypatch: pytest.MonkeyPatch
) -> None:
    recovered, recover, save = Event(), Recovery.recover, saving.save_checkpoint
    found = []

    def recover_then_note(*arguments: Any) -> str:
        text = recover(*arguments)
        recovered.set()
        return text

    def save_later(*arguments: Any, **named: Any) -> Path:
        found.append(recovered.wait(10.0))
        return save(*arguments, **named)

    monkeypatch.setattr(Recovery, "recover", recover_then_note)
    monkeypatch.setattr(saving, "save_checkpoint", save_later)
    lost = Disturbance({6: ("worker-1", signal.SIGKILL)})
    summary = train(tmp_path / "run", [*SYNC, "checkpoint.every_steps=5"], lost)
    assert found == [True, True]
    assert summary.weights_sha256 == undisturbed("sync_data").weights_sha256
    assert recoveries_of(tmp_path / "run")[0]["continued_from"] >= 5


def test_updates_before_the_interrupted_ones_are_repeated_in_series(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The interrupted updates are repeated one by one, so that the cause of a recurring fault is found."""
    series: list[tuple[int, int]] = []
    run_series = ClusterSession.run_series

    def run_or_lose(session: ClusterSession, client: str, first: int, feeds: Any) -> Any:
        series.append((first, len(feeds)))
        if first == 4 and len(feeds) == 3:
            (process,) = [child for child in processes() if _name(child) == "worker-1"]
            process.kill()
        return run_series(session, client, first, feeds)

    monkeypatch.setattr(ClusterSession, "run_series", run_or_lose)
    monkeypatch.setattr(Recovery, "is_due", False)
    monkeypatch.setattr(trainer, "series_length", lambda longest, step_s: 3)
    train(tmp_path / "run", [*SYNC, "train.eval_every=8"])
    in_series = [each for each in series if each[1] > 1]
    assert in_series == [(1, 3), (4, 3), (0, 3)]


class StopAtSix(Callback):
    def on_step(self, step: int, loss: float) -> None:
        if step == 6:
            raise StopTraining


def test_a_stopped_run_ends_at_the_same_step_after_a_recovery(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker is lost after the callback has stopped the run, and the run returns to an earlier step."""
    monkeypatch.setattr(Recovery, "is_due", False)
    summary = train(tmp_path / "run", SYNC, StopAtSix(), Disturbance({6: ("worker-1", signal.SIGKILL)}))
    assert (summary.recoveries, summary.steps, summary.status) == (1, 6, "finished")
    assert summary.stopped.startswith("after step 6 of 8: StopAtSix")


class Preemption(Disturbance):
    """Sends SIGTERM to this process too."""

    def on_step(self, step: int, loss: float) -> None:
        super().on_step(step, loss)
        if step in self._at:
            os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.slow
def test_a_signal_to_all_processes_leaves_a_checkpoint(tmp_path: Path, undisturbed: Undisturbed) -> None:
    with pytest.raises(Interrupted) as caught:
        train(tmp_path / "run", SYNC, Preemption({4: ("worker-0", signal.SIGTERM)}))
    assert caught.value.exit_code == 143
    assert list((tmp_path / "run" / "checkpoints").glob("step-*"))
    resumed = run(small_config(*SYNC), tmp_path / "run", overrides=SYNC, resume=True)
    assert (resumed.steps, resumed.recoveries) == (8, 1), "recoveries of all starts"
    assert resumed.weights_sha256 == undisturbed("sync_data").weights_sha256


def test_a_tracker_gets_the_metrics_of_repeated_steps_once(tmp_path: Path) -> None:
    class Kept(Tracker):
        def log_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
            kept.append((step, dict(metrics)))

    kept: list[tuple[int, dict[str, float]]] = []
    with RunDirectory.open(tmp_path, resume=False) as directory:
        record = Record(directory, Kept(), RunInfo("id", "name", tmp_path), pictures=False)
        for step in (1, 2, 3):
            record.metrics(step, {"train/loss": 1.0})
        record.rewind(1)
        assert [each.step for each in read_metrics(directory.metrics_jsonl)] == [1]
        for step in (2, 3, 4):
            record.metrics(step, {"train/loss": 1.0, **({"test/loss": 2.0} if step == 3 else {})})
        record.close("finished")
        assert [each.step for each in read_metrics(directory.metrics_jsonl)] == [1, 2, 3, 4]
    loss = {"train/loss": 1.0}
    assert kept == [(1, loss), (2, loss), (3, loss), (3, {"test/loss": 2.0}), (4, loss)]


def test_a_used_up_budget_ends_the_run(tmp_path: Path) -> None:
    lost = Disturbance(dict.fromkeys((2, 3), ("worker-1", signal.SIGKILL)))
    with pytest.raises(ClusterError, match=r"(?s)SIGKILL.*already restarted 1 times.*runner resume=") as caught:
        train(tmp_path / "run", [*SYNC, "train.restarts=1"], lost)
    assert caught.value.exit_code == 7
    summary = Summary.read(tmp_path / "run" / "summary.json")
    assert (summary.status, summary.recoveries) == ("failed", 1)
