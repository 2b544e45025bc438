"""Backup workers: an update equals bit for bit that of ``single`` over the shares that arrived first."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from runner.engine.run.interleaving import VirtualTime
from runner.errors import ConfigError, RunnerError
from runner.kernels.registry import Registry
from runner.optimizers.base import Optimizer
from runner.optimizers.sgd import Momentum
from runner.strategies.base import Task
from runner.strategies.sync_data import SyncData
from tests.strategies.backup_runs import Line, Run, backed, drawn_time, expected_of, rate_of, running
from tests.strategies.networks import NETWORKS, Examples, task_of
from tests.strategies.training import Weights, expect_same_bits, trained

STEPS = 8
SIZES = [(m, b, b) for m, b in product([1, 2, 3], [1, 2])]
"""Workers, backup workers, and servers: two of them clip together."""


def task_for(network: str, batch_size: int = 13, optimizer: Optimizer | None = None) -> Task:
    """A batch that no number of workers above 1 divides, and an optimizer with all kinds of state."""
    chosen = optimizer or Momentum(weight_decay=1e-3, clip_norm=0.5)
    return task_of(NETWORKS[network], chosen, batch_size=batch_size)


def late(worker: int, steps: Mapping[int, float], client: str = "share") -> VirtualTime:
    """A clock on which every part takes a second, except a client's on one worker in some steps."""
    slow = f"{client}_{worker}"

    def seconds(client: str, device: str, step: int) -> float:
        computes = client == slow and device.startswith("/job:worker")
        return steps.get(step, 1.0) if computes else 1.0

    return VirtualTime(seconds, lambda nbytes: 0.0)


def together() -> VirtualTime:
    """A clock on which all workers have the same speed."""
    return late(0, {})


@pytest.mark.parametrize(("workers", "backups", "servers"), SIZES)
@pytest.mark.parametrize("network", sorted(NETWORKS))
def test_every_step_equals_single_over_the_shares_that_counted(
    network: str, workers: int, backups: int, servers: int, registry: Registry
) -> None:
    task = task_for(network)
    with running(backed(workers, backups, servers), task, registry, drawn_time(1)) as run:
        history, weights, lines = run.train(range(STEPS)), run.weights(), run.lines()
        expected, reference = expected_of(task, lines, backups, registry, run.source)
    assert len({tuple(line["contributors"]) for line in lines}) > 1
    assert any(line["dropped"] for line in lines)
    expect_same_bits(weights, expected)
    assert history == reference


def test_shares_of_a_batch_that_divides_are_summed_as_they_are(registry: Registry) -> None:
    task = task_for("batch_normalised", batch_size=12)
    with running(backed(3, 1), task, registry, drawn_time(2)) as run:
        assert backed(3, 1).examples_per_update(12) == 16
        assert "scale" not in run.program.clients["apply"].feeds
        history, weights = run.train(range(STEPS)), run.weights()
        expected, reference = expected_of(task, run.lines(), 1, registry, run.source)
    expect_same_bits(weights, expected)
    assert history == reference


def test_without_backup_workers_nothing_changes(registry: Registry) -> None:
    task = task_for("dense")
    plain = SyncData(workers=3, combine="parameter_server", servers=2)
    assert set(plain.build(task).clients) == {"init", "train", "eval", "save", "restore"}
    weights, _ = trained(plain, task, registry, STEPS)
    same, _ = trained(backed(3, 0, 2), task, registry, STEPS)
    expect_same_bits(same, weights)


def test_a_late_share_is_dropped_and_its_worker_joins_the_running_step(registry: Registry) -> None:
    with running(backed(2, 1), task_for("dense", 12), registry, late(0, {1: 16.0})) as run:
        run.train(range(6))
        run.step_driver.synchronize()
        lines = run.lines()
    assert [line["contributors"] for line in lines] == [[0, 1], [1, 2], [1, 2], [1, 2], [0, 1], [0, 1]]
    assert [line["step"] for line in lines] == list(range(6))
    dropped = {line["step"]: line["dropped"] for line in lines}
    # In steps 2 and 3 the slow worker starts no share; in steps where it is in time, the last worker is late.
    assert dropped[1] == [{"worker": 0, "examples": 6}]
    assert (dropped[2], dropped[3]) == ([], [])
    assert dropped[0] == dropped[4] == dropped[5] == [{"worker": 2, "examples": 6}]


def test_a_worker_that_has_only_read_when_its_step_ends_computes_no_share(registry: Registry) -> None:
    with running(backed(2, 1), task_for("dense", 12), registry, late(0, {1: 18.0}, "read")) as run:
        run.train(range(7))
        run.step_driver.synchronize()
        lines, (slow, other, *_) = run.lines(), run.session.sent_bytes()
    assert [line["step"] for line in lines if 0 in line["contributors"]] == [0, 4, 5, 6]
    assert lines[1]["dropped"] == [{"worker": 0, "examples": 6}]
    assert (lines[2]["dropped"], lines[3]["dropped"]) == ([], [])
    assert slow / 4 == other / 7


def test_a_dropped_share_is_counted_once(registry: Registry) -> None:
    with running(backed(2, 1), task_for("dense", 12), registry, late(0, {1: 16.0})) as run:
        run.train(range(6))
        run.step_driver.synchronize()
        first, second = run.step_driver.metrics(), run.step_driver.metrics()
    assert first == {"comm/dropped_shares": 4, "comm/dropped_examples": 24, "comm/unseen_examples": 36}
    assert set(second.values()) == {0}


@dataclass(frozen=True)
class Spoilt(Examples):
    """Examples of which ``lo`` to ``hi`` are not finite."""

    lo: int = 0
    hi: int = 0

    def read(self, split: str, step: int, lo: int, hi: int) -> dict[str, NDArray[Any]]:
        """The usual examples, with another x."""
        batch = super().read(split, step, lo, hi)
        spoilt = (np.arange(lo, hi) >= self.lo) & (np.arange(lo, hi) < self.hi) & (split == "train")
        batch["x"] = np.where(spoilt[:, None, None, None], np.nan, batch["x"])
        return batch


@pytest.mark.parametrize("worker", [0, 1, 2])
def test_a_dropped_share_may_have_any_value(worker: int, registry: Registry) -> None:
    task = task_for("batch_normalised", 12)
    slow = dict.fromkeys(range(20), 4.0)
    with running(backed(2, 1), task, registry, late(worker, slow)) as run:
        clean, weights = run.train(range(4)), run.weights()
    spoilt = Spoilt(18, task.example_shape, task.state_dtype, 6 * worker, 6 * worker + 6)
    with running(backed(2, 1), task, registry, late(worker, slow), spoilt) as run:
        assert run.train(range(4)) == clean
        expect_same_bits(run.weights(), weights)
        assert all(worker not in line["contributors"] for line in run.lines())
        assert any(line["dropped"] for line in run.lines())


def written(lines: list[Line], folder: Path) -> str:
    path = folder / "contributors.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


def test_a_replay_waits_for_the_recorded_shares_and_ends_with_the_same_bits(registry: Registry, tmp_path: Path) -> None:
    task = task_for("dropped_out")
    with running(backed(3, 2, 2), task, registry, drawn_time(1)) as run:
        history, weights, lines = run.train(range(STEPS)), run.weights(), list(run.lines())
    strategy = backed(3, 2, 2, replay=written(lines, tmp_path))
    with running(strategy, task, registry, drawn_time(7)) as again:
        assert again.train(range(STEPS)) == history
        expect_same_bits(again.weights(), weights)
        assert [line["contributors"] for line in again.lines()] == [line["contributors"] for line in lines]
        assert not any(line["dropped"] for line in again.lines())
        with pytest.raises(
            ConfigError, match=r"^parallelism.replay: the file has steps 0 to 7, and the run has reached step 8"
        ):
            again.train([STEPS])


def continued(run: Run, weights: Weights) -> Weights:
    """Weights after three more steps from a checkpoint of three."""
    run.session.run("restore", feeds=dict(weights))
    run.train(range(3, 6))
    return run.weights()


def test_a_checkpoint_continues_in_another_session(registry: Registry, tmp_path: Path) -> None:
    task = task_for("batch_normalised")
    with running(backed(2, 1), task, registry, drawn_time(3)) as run:
        run.train(range(3))
        saved = run.weights()
        run.train(range(3, 6))
        undisturbed, replay = run.weights(), written(list(run.lines()), tmp_path)
    with running(backed(2, 1, replay=replay), task, registry, together(), initialised=False) as run:
        expect_same_bits(continued(run, saved), undisturbed)


def test_evaluation_sees_the_variables_after_the_last_update(registry: Registry) -> None:
    task = task_for("batch_normalised", 12)
    with running(backed(2, 1, 2), task, registry, drawn_time(3)) as run:
        run.train(range(4))
        weights = run.weights()
        scores = run.session.run("eval", feeds={"step": np.int64(0)})
    with running(SyncData(workers=3, combine="parameter_server"), task, registry, together()) as plain:
        plain.session.run("restore", feeds=dict(weights))
        expected = plain.session.run("eval", feeds={"step": np.int64(0)})
    expect_same_bits(scores, expected)


@pytest.mark.parametrize("clip_norm", [None, 0.5])
@pytest.mark.parametrize(("workers", "backups", "servers"), [(1, 1, 1), (2, 1, 2), (3, 2, 3)])
@pytest.mark.parametrize("network", ["dense", "batch_normalised"])
def test_bytes_of_an_update_are_those_of_the_formula(
    network: str, workers: int, backups: int, servers: int, clip_norm: float | None, registry: Registry
) -> None:
    task = task_for(network, 12, Momentum(clip_norm=clip_norm))
    with running(backed(workers, backups, servers), task, registry, together()) as run:
        for step in range(3):
            run.train([step])
            run.step_driver.synchronize()
        counted = run.session.sent_bytes()
        variables = {name: spec.nbytes for name, spec in run.program.variables.items() if "velocity" not in name}
        kept = {node.name: node.device for node in run.program.graph if node.op == "variable"}
    values = sum(variables.values()) // 8
    own = [
        [name for name in variables if "moving" not in name and kept[name].startswith(f"/job:ps/task:{j}")]
        for j in range(servers)
    ]
    expected = [(values + 2) * 8] * (workers + backups)
    for j, names in enumerate(own):
        norms = 0 if clip_norm is None else (servers - 1 if j == 0 else len(names))
        expected.append(((workers + backups) * sum(variables[name] // 8 for name in names) + norms) * 8)
    assert counted == [3 * nbytes for nbytes in expected]


def test_estimates_count_the_shares_that_are_begun(tmp_path: Path) -> None:
    task = task_of(NETWORKS["dense"], Momentum(), batch_size=12)
    record = tmp_path / "contributors.jsonl"
    record.write_text("\n".join(json.dumps({"step": k, "contributors": [0, 2 if k else 1]}) for k in range(4)))
    for replay, begun in ((None, [1.0, 1.0, 1.0]), (str(record), [1.0, 0.25, 0.75])):
        clients = backed(2, 1, replay=replay).build(task).clients
        assert [clients[f"share_{k}"].per_update for k in range(3)] == begun
        assert [clients[f"read_{k}"].per_update for k in range(3)] == begun


def test_every_node_of_every_client_is_on_its_device() -> None:
    strategy = backed(2, 1, 2)
    program = strategy.build(task_for("batch_normalised"))
    assert (program.workers, program.servers, strategy.examples_per_update(13)) == (3, 2, 20)
    assert (strategy.processes.workers, strategy.processes.servers) == (3, 2)
    slowed = {client.name for client in program.clients.values() if client.slowed}
    assert slowed == {"read_0", "read_1", "read_2"}
    assert [client.name for client in program.training][-2:] == ["norm", "apply"]
    assert all("inbox" not in name and "copy" not in name for name in program.variables)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"backup_workers": 1, "combine": "ring_all_reduce"},
            r"parallelism\.backup_workers=1 with parallelism\.combine=ring_all_reduce: a collective needs the "
            r"gradients of all workers; choose combine=parameter_server, or backup_workers=0",
        ),
        (
            {"backup_workers": 1, "combine": "parameter_server", "statistics": "pooled"},
            r"parallelism\.backup_workers=1 with parallelism\.statistics=pooled: these statistics need all or certain "
            r"workers in every step, and any share may be dropped; choose statistics=shares, or backup_workers=0",
        ),
        (
            {"replay": "x"},
            r"parallelism\.replay=x with parallelism\.backup_workers=0: without backup workers all shares count "
            r"and the weights follow from the configuration; set replay to null, or backup_workers to "
            r"the number of that run",
        ),
    ],
)
def test_contradictory_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=f"^{message}$"):
        SyncData(**settings)


def test_run_refuses_a_client_while_shares_are_running(registry: Registry) -> None:
    with running(backed(2, 1), task_for("dense"), registry, late(0, {0: 50.0})) as run:
        run.step_driver.update(0, rate_of(0, run.dtype))
        with pytest.raises(RunnerError, match="client 'save' was run while share_0"):
            run.session.run("save")
        run.step_driver.synchronize()
        run.session.run("save")
