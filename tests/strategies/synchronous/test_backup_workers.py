"""Backup workers: an update equals, bit for bit, ``single`` over the shares (parts of a batch) that arrived first."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from runner.data.source import source_from_config
from runner.engine.cluster.emulation import Emulation, Stragglers
from runner.engine.compile.program import InputSource, Program
from runner.engine.graph import Graph, local_cluster, ops, worker_device
from runner.engine.run.interleaving import VirtualTime
from runner.engine.run.kernel_table import load_kernels
from runner.engine.run.local_session import LocalSession
from runner.engine.run.session import scalar
from runner.errors import ConfigError, RunnerError
from runner.optimizers import Momentum
from runner.strategies import SyncData, Workload
from runner.strategies.clients import program
from runner.strategies.replica import Replica, ordered_sum, shares, summed
from tests.all_pairs import all_pairs
from tests.engine.cluster.conftest import SOURCE, Sessions
from tests.strategies.networks import Examples, workload_of
from tests.strategies.synchronous.test_parameter_server import bytes_of_a_step
from tests.strategies.training import Run, Trainer, Weights, begun, expect_same_bits, expect_same_run, rate_of

Line = Mapping[str, Any]
STEPS = 5


def backed(workers: int, backups: int, servers: int = 1, replay: str | None = None) -> SyncData:
    return SyncData(workers=workers, combine="parameter_server", servers=servers, backup_workers=backups, replay=replay)


def drawn_time(seed: int) -> VirtualTime:
    """Return a clock that draws the durations of each client's parts at random; a few are very long."""

    def seconds(client: str, device: str, step: int) -> float:
        rng = np.random.default_rng([seed, step, *f"{client} {device}".encode()])
        return float(rng.lognormal(0.0, 2.0 if client.startswith("share") else 0.1))

    return VirtualTime(seconds, lambda nbytes: 1e-3 * nbytes)


@contextmanager
def running(
    strategy: SyncData,
    workload: Workload,
    clock: VirtualTime,
    source: Examples | None = None,
    saved: Weights | None = None,
) -> Iterator[Trainer]:
    """Yield an initialized trainer. source: None for :class:`Examples`. saved: values to restore."""
    count = strategy.examples_per_update(workload.batch_size)
    source = source or Examples(count)
    with begun(strategy, workload, saved, source=source, interleaving=clock) as trainer:
        yield trainer


def lines_of(run: Trainer) -> Sequence[Line]:
    """Return the lines recorded so far, each with the contributors: the workers whose shares the update uses."""
    return list(run.step_driver.decisions()["contributors"])


def single_over(workload: Workload, contributors: Sequence[int], backups: int) -> Program:
    """Return a program on one device that trains on the contributors' shares of a step's examples, as microbatches."""
    workers = len(contributors)
    given_out = -(-workload.batch_size * (workers + backups) // workers)
    cut = shares(given_out, workers + backups)
    held = sum(cut[k][1] - cut[k][0] for k in contributors)
    graph = Graph()
    replica = Replica(graph, workload, device=worker_device(0))
    computed = [replica.compute_gradients(cut[k], f"train/share_{k}") for k in contributors]

    def total(parts: Sequence[Any]) -> Any:
        scale = ops.fill(graph, workload.batch_size / held, (), workload.state_dtype)
        summed = ordered_sum(graph, parts)
        return summed if held == workload.batch_size else ops.mul(graph, summed, scale)

    with graph.device(replica.device), graph.absolute_scope("train/total"):
        totals = summed(computed, lambda _, parts: total(parts))
        metrics = {name: total([each.metrics[name] for each in computed]) for name in computed[0].metrics}
    targets = replica.apply(totals.gradients, totals.state_updates)
    return program(graph, [replica], metrics=metrics, targets=targets)


def expected_of(work: Workload, lines: Sequence[Line], backups: int, source: InputSource) -> Run:
    """Return weights and history of ``single`` over the recorded shares, with one program per set of contributors."""
    sessions: dict[tuple[int, ...], LocalSession] = {}
    weights: Weights | None = None
    history = []
    for line in lines:
        contributors = tuple(line["contributors"])
        if contributors not in sessions:
            made = single_over(work, contributors, backups)
            sessions[contributors] = LocalSession(made, local_cluster(1), load_kernels(), source)
        session = sessions[contributors]
        session.run("init") if weights is None else session.run("restore", feeds=dict(weights))
        feeds = {"step": scalar(line["step"], "int64"), "learning_rate": rate_of(line["step"], work.state_dtype)}
        fetched = session.run("train", step=line["step"], feeds=feeds)
        history.append((float(fetched["loss"]), float(fetched["accuracy"])))
        weights = session.run("save")
    return weights, history


def late(worker: int, steps: Mapping[int, float], client: str = "share") -> VirtualTime:
    """Return a clock: a part takes a second, or ``steps[step]`` seconds if it belongs to ``client`` of ``worker``."""
    slow = f"{client}_{worker}"

    def seconds(client: str, device: str, step: int) -> float:
        computes = client == slow and device.startswith("/job:worker")
        return steps.get(step, 1.0) if computes else 1.0

    return VirtualTime(seconds, lambda nbytes: 0.0)


def together() -> VirtualTime:
    """Return a clock on which all workers have the same speed."""
    return late(0, {})


@pytest.mark.parametrize(
    ("network", "workers", "backups", "servers"),
    [
        ("dense", 1, 1, 1),
        ("convolutional", 2, 1, 1),
        ("dropped_out", 1, 2, 2),
        # Two servers together compute the norm for clipping.
        ("batch_normalised", 3, 2, 2),
    ],
)
def test_every_step_equals_single_over_the_shares_that_counted(
    network: str, workers: int, backups: int, servers: int
) -> None:
    workload = workload_of(network)
    with running(backed(workers, backups, servers), workload, drawn_time(1)) as run:
        history, weights, lines = run.train(range(STEPS)), run.weights(), lines_of(run)
        expected = expected_of(workload, lines, backups, run.source)
    assert len({tuple(line["contributors"]) for line in lines}) > 1
    assert any(line["dropped"] for line in lines)
    expect_same_run((weights, history), expected)


def test_shares_of_a_divisible_batch_are_summed_without_a_scale() -> None:
    workload = workload_of("batch_normalised", batch_size=12)
    with running(backed(3, 1), workload, drawn_time(2)) as run:
        assert backed(3, 1).examples_per_update(12) == 16
        assert "scale" not in run.program.clients["apply"].feeds
        history, weights = run.train(range(STEPS)), run.weights()
        expected = expected_of(workload, lines_of(run), 1, run.source)
    expect_same_run((weights, history), expected)


SLOW = Emulation(stragglers=Stragglers("lognormal", median_s=0.005, sigma=1.5, seed=3))


@pytest.mark.parametrize(
    ("network", "workers", "backups", "servers"),
    [
        pytest.param("dense", 3, 2, 1, marks=pytest.mark.slow),
        ("convolutional", 2, 1, 1),
        pytest.param("batch_normalised", 2, 1, 2, marks=pytest.mark.slow),
    ],
)
def test_processes_with_emulated_delays_equal_single_over_the_shares_that_counted(
    network: str, workers: int, backups: int, servers: int, tmp_path: Path
) -> None:
    workload = workload_of(network, Momentum(clip_norm=0.5), batch_size=7)
    strategy = backed(workers, backups, servers)
    made = strategy.build(workload)
    described = {**SOURCE, "batch_size": strategy.examples_per_update(workload.batch_size)}
    with (
        source_from_config(**described) as source,
        Sessions(load_kernels(), tmp_path).new(described, program=made, emulation=SLOW) as session,
    ):
        session.run("init")
        run = Trainer(made, session, "float64")
        history, weights = run.train(range(10)), run.weights()
        expected = expected_of(workload, lines_of(run), backups, source)
    expect_same_run((weights, history), expected)


def test_a_late_share_is_dropped_and_its_worker_joins_the_running_step() -> None:
    with running(backed(2, 1), workload_of("dense", batch_size=12), late(0, {1: 16.0})) as run:
        run.train(range(6))
        run.step_driver.synchronize()
        lines, first, second = lines_of(run), run.step_driver.metrics(), run.step_driver.metrics()
    assert first == {"comm/dropped_shares": 4, "comm/dropped_examples": 24, "comm/unseen_examples": 36}
    assert set(second.values()) == {0}
    assert [line["contributors"] for line in lines] == [[0, 1], [1, 2], [1, 2], [1, 2], [0, 1], [0, 1]]
    assert [line["step"] for line in lines] == list(range(6))
    dropped = {line["step"]: line["dropped"] for line in lines}
    # Worker 0, which is slow in step 1, starts no share in steps 2 and 3. When worker 0 contributes, worker 2 is late.
    assert dropped[1] == [{"worker": 0, "examples": 6}]
    assert (dropped[2], dropped[3]) == ([], [])
    assert dropped[0] == dropped[4] == dropped[5] == [{"worker": 2, "examples": 6}]


def test_a_worker_that_is_still_reading_when_its_step_ends_computes_no_share() -> None:
    with running(backed(2, 1), workload_of("dense", batch_size=12), late(0, {1: 18.0}, "read")) as run:
        run.train(range(7))
        run.step_driver.synchronize()
        lines, (slow, other, *_) = lines_of(run), run.session.sent_bytes()
    assert [line["step"] for line in lines if 0 in line["contributors"]] == [0, 4, 5, 6]
    assert lines[1]["dropped"] == [{"worker": 0, "examples": 6}]
    assert (lines[2]["dropped"], lines[3]["dropped"]) == ([], [])
    assert slow / 4 == other / 7


@dataclass(frozen=True)
class Spoilt(Examples):
    """A source whose training examples ``lo`` to ``hi - 1`` are NaN."""

    lo: int = 0
    hi: int = 0

    def read(self, split: str, step: int, lo: int, hi: int) -> dict[str, NDArray[Any]]:
        """Return the examples; x of the spoilt examples is NaN."""
        batch = super().read(split, step, lo, hi)
        spoilt = (np.arange(lo, hi) >= self.lo) & (np.arange(lo, hi) < self.hi) & (split == "train")
        batch["x"] = np.where(spoilt[:, None, None, None], np.nan, batch["x"])
        return batch


@pytest.mark.parametrize("worker", [0, 2])
def test_a_dropped_share_may_have_any_value(worker: int) -> None:
    workload = workload_of("batch_normalised", batch_size=12)
    slow = dict.fromkeys(range(20), 4.0)
    with running(backed(2, 1), workload, late(worker, slow)) as run:
        clean, weights = run.train(range(4)), run.weights()
    spoilt = Spoilt(18, lo=6 * worker, hi=6 * worker + 6)
    with running(backed(2, 1), workload, late(worker, slow), spoilt) as run:
        assert run.train(range(4)) == clean
        expect_same_bits(run.weights(), weights)
        assert all(worker not in line["contributors"] for line in lines_of(run))
        assert any(line["dropped"] for line in lines_of(run))


def written(lines: list[Line], folder: Path) -> str:
    path = folder / "contributors.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


def test_a_replay_waits_for_the_recorded_shares_and_ends_with_the_same_bits(tmp_path: Path) -> None:
    workload = workload_of("dropped_out")
    with running(backed(3, 2, 2), workload, drawn_time(1)) as run:
        history, weights, lines = run.train(range(STEPS)), run.weights(), list(lines_of(run))
    strategy = backed(3, 2, 2, replay=written(lines, tmp_path))
    with running(strategy, workload, drawn_time(7)) as again:
        assert again.train(range(STEPS)) == history
        expect_same_bits(again.weights(), weights)
        assert [line["contributors"] for line in lines_of(again)] == [line["contributors"] for line in lines]
        assert not any(line["dropped"] for line in lines_of(again))
        with pytest.raises(
            ConfigError, match=r"^parallelism.replay: the file has steps 0 to 4, and the run has reached step 5"
        ):
            again.train([STEPS])


def test_a_checkpoint_continues_in_another_session(tmp_path: Path) -> None:
    workload = workload_of("batch_normalised")
    with running(backed(2, 1), workload, drawn_time(3)) as run:
        run.train(range(3))
        saved = run.weights()
        run.train(range(3, 6))
        undisturbed, replay = run.weights(), written(list(lines_of(run)), tmp_path)
    with running(backed(2, 1, replay=replay), workload, together(), saved=saved) as run:
        run.train(range(3, 6))
        expect_same_bits(run.weights(), undisturbed)


def test_evaluation_uses_the_variables_after_the_last_update() -> None:
    workload = workload_of("batch_normalised", batch_size=12)
    with running(backed(2, 1, 2), workload, drawn_time(3)) as run:
        run.train(range(4))
        weights, scores = run.weights(), run.evaluate()
    without = SyncData(workers=3, combine="parameter_server")
    with running(without, workload, together(), saved=weights) as plain:
        expect_same_bits(scores, plain.evaluate())


@all_pairs(network=["dense", "batch_normalised"], processes=[(1, 1, 1), (3, 2, 3)], clip_norm=[None, 0.5])
def test_bytes_of_an_update_are_those_of_the_formula(
    network: str, processes: tuple[int, int, int], clip_norm: float | None
) -> None:
    workers, backups, servers = processes
    workload = workload_of(network, Momentum(clip_norm=clip_norm), batch_size=12)
    with running(backed(workers, backups, servers), workload, together()) as run:
        counted = np.sum([run.sent([step]) for step in range(3)], axis=0).tolist()
        expected = bytes_of_a_step(run.program, workers + backups, servers, clip_norm is not None)
    # A server sums loss and accuracy, so the first worker also sends its two scores.
    expected[0] += 2 * 8
    assert counted == [3 * nbytes for nbytes in expected]


def test_estimates_count_the_shares_that_are_started(tmp_path: Path) -> None:
    workload = workload_of("dense", Momentum(), batch_size=12)
    record = written([{"step": k, "contributors": [0, 2 if k else 1]} for k in range(4)], tmp_path)
    for replay, fractions in ((None, [1.0, 1.0, 1.0]), (record, [1.0, 0.25, 0.75])):
        clients = backed(2, 1, replay=replay).build(workload).clients
        assert [clients[f"share_{k}"].per_update for k in range(3)] == fractions
        assert [clients[f"read_{k}"].per_update for k in range(3)] == fractions


def test_programs_have_backup_workers_and_name_the_clients_that_may_be_slowed() -> None:
    strategy = backed(2, 1, 2)
    made = strategy.build(workload_of("batch_normalised"))
    assert (made.workers, made.servers, strategy.examples_per_update(13)) == (3, 2, 20)
    assert (strategy.processes.workers, strategy.processes.servers) == (3, 2)
    slowed = {client.name for client in made.clients.values() if client.slowed}
    assert slowed == {"read_0", "read_1", "read_2"}
    assert [client.name for client in made.training][-2:] == ["norm", "apply"]
    assert all("inbox" not in name and "copy" not in name for name in made.variables)


def test_variables_are_saved_while_a_share_is_late_but_no_other_client_runs() -> None:
    with running(backed(2, 1), workload_of("dense"), late(0, {0: 50.0})) as run:
        run.step_driver.update(0, rate_of(0, run.dtype))
        assert run.step_driver.is_synchronized
        saved = {name: value.copy() for name, value in run.session.run("save").items()}
        with pytest.raises(RunnerError, match="client 'init' was run before share_0"):
            run.session.run("init")
        expect_same_bits(run.weights(), saved)
        run.session.run("init")
