"""The trace window: the recorded steps, and the time at which their files are written."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from runner.engine.run.local_session import LocalSession
from runner.errors import ClusterError, ResourceError
from runner.kernels.registry import Registry
from runner.optimizers import Lbfgs, Sgd
from runner.strategies import Single
from runner.tracing.window import TraceWindow, recorded_steps
from tests.strategies.networks import NETWORKS, workload_of
from tests.strategies.training import Trainer, opened


@pytest.mark.parametrize(
    ("first", "total", "skip", "count", "steps"),
    [
        (0, 100, 10, 5, range(10, 15)),
        (40, 100, 10, 5, range(50, 55)),
        (0, 12, 10, 5, range(7, 12)),
        (0, 3, 10, 5, range(3)),
        (98, 100, 10, 5, range(98, 100)),
        (0, 100, 0, 1, range(1)),
        (7, 7, 10, 5, range(7, 7)),
    ],
)
def test_window_lies_within_the_steps_of_a_process(first: int, total: int, skip: int, count: int, steps: range) -> None:
    assert recorded_steps(first, total, skip, count) == steps


class Loop:
    """A training loop with a trace window. announced: (file name, number of finished steps) of each written file."""

    def __init__(self, trainer: Trainer, folder: Path, steps: range) -> None:
        files = folder / "trace.json", folder / "trace_summary.json"
        self.announced: list[tuple[str, int]] = []
        clients = [client.name for client in trainer.program.training]
        self.window = TraceWindow(trainer.session, clients, steps, *files, self._announce)
        self._trainer = trainer
        self.done = 0
        trainer.session.run("init")

    def run(self, steps: int) -> None:
        for step in range(steps):
            self.window.before(step)
            self._trainer.train([step])
            self.done = step + 1
            self.window.after(step)

    def _announce(self, path: Path) -> None:
        self.announced.append((path.name, self.done))

    @property
    def recorded(self) -> list[int]:
        """Return the steps that the files contain."""
        steps = [each["step"] for each in json.loads(self.window.summary.read_text())["steps"]]
        events = json.loads(self.window.timeline.read_text())["traceEvents"]
        assert sorted({event["args"]["step"] for event in events if event["ph"] == "X"}) == steps
        assert sorted({event["args"]["step"] for event in events if event.get("cat") == "compute"}) == steps
        return steps


@pytest.fixture
def trainer(registry: Registry) -> Iterator[Trainer]:
    with opened(Single(), workload_of(NETWORKS["dense"], Sgd(), batch_size=4), registry) as trainer:
        yield trainer


@pytest.mark.parametrize(
    ("steps", "trained", "recorded"),
    [
        (range(2), 6, [0, 1]),
        (range(2, 4), 6, [2, 3]),
        (range(3, 6), 6, [3, 4, 5]),
        (range(1, 9), 3, [1, 2]),
        (range(3, 5), 3, [2]),
    ],
    ids=["first", "inner", "last", "ends during the recording", "ends before the recording"],
)
def test_requested_steps_are_recorded_and_written_once(
    trainer: Trainer, tmp_path: Path, steps: range, trained: int, recorded: list[int]
) -> None:
    loop = Loop(trainer, tmp_path, steps)
    loop.run(trained)
    for _ in range(2):
        loop.window.finish()
    assert loop.recorded == recorded
    done = min(steps[-1] + 1, trained)
    assert loop.announced == [("trace.json", done), ("trace_summary.json", done)]


@pytest.mark.parametrize(("steps", "begins"), [(range(2), 0), (range(3, 4), 2)])
def test_recording_begins_a_step_early_if_possible(
    trainer: Trainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: range, begins: int
) -> None:
    loop = Loop(trainer, tmp_path, steps)
    start, begun = trainer.session.start_trace, []
    monkeypatch.setattr(trainer.session, "start_trace", lambda clients: (begun.append(loop.done), start(clients)))
    loop.run(5)
    assert begun == [begins]


def test_a_failed_update_ends_at_its_failure(trainer: Trainer, tmp_path: Path) -> None:
    loop = Loop(trainer, tmp_path, range(1, 9))
    loop.run(2)
    loop.window.before(2)
    trainer.train([2])
    loop.window.finish()
    assert loop.recorded == [1, 2]


def lose(*arguments: object) -> NoReturn:
    raise ClusterError("worker 1 is gone")


def test_after_a_failure_the_missing_timeline_is_logged(
    trainer: Trainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    loop = Loop(trainer, tmp_path, range(1, 9))
    loop.run(2)
    monkeypatch.setattr(trainer.session, "stop_trace", lose)
    loop.window.finish(ClusterError("worker 1 exited"))
    assert "no timeline could be collected from the workers: worker 1 is gone" in caplog.messages
    assert all(record.exc_info is None for record in caplog.records)
    assert loop.announced == []


def test_trace_lost_with_worker_is_an_error(trainer: Trainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = Loop(trainer, tmp_path, range(1))
    monkeypatch.setattr(trainer.session, "stop_trace", lose)
    with pytest.raises(ClusterError, match="worker 1 is gone"):
        loop.run(1)


def test_evaluations_belong_to_their_iteration(registry: Registry, tmp_path: Path) -> None:
    workload = workload_of(NETWORKS["dense"], Lbfgs(), batch_size=4)
    with opened(Single(), workload, registry) as trainer:
        loop = Loop(trainer, tmp_path, range(1, 3))
        loop.run(3)
    assert loop.recorded == [1, 2]
    events = [e for e in json.loads(loop.window.timeline.read_text())["traceEvents"] if e["ph"] == "X"]
    updates = {e["args"]["step"]: e for e in events if e["cat"] == "step"}
    evaluations = [e for e in events if e["cat"] == "run"]
    assert len(evaluations) >= 4
    assert len({e["args"]["number"] for e in evaluations}) == len(evaluations)
    for event in events:
        update = updates[event["args"]["step"]]
        # Microseconds are written with three decimals, so rounding can change an end by a nanosecond.
        assert update["ts"] - 0.002 < event["ts"] <= event["ts"] + event["dur"] < update["ts"] + update["dur"] + 0.002


def test_empty_window_records_nothing(trainer: Trainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(LocalSession, "start_trace")
    loop = Loop(trainer, tmp_path, range(0))
    loop.run(2)
    loop.window.finish()
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_be_written_is_an_error(trainer: Trainer, tmp_path: Path) -> None:
    loop = Loop(trainer, tmp_path / "absent", range(1))
    with pytest.raises(ResourceError, match=r"cannot write .*trace\.json: No such file .* trace=false"):
        loop.run(1)
