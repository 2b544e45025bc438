"""Backup workers as processes: contributions are recorded and replayed bit for bit, and a death is reported."""

from pathlib import Path

from runner.records.decisions import read_decisions
from runner.records.summary import Summary
from tests.integration.command import QUIET, Command, run_command, succeed, summary_of, wait_until

STEPS = 12
BACKED = (
    *QUIET,
    *(
        "model=mlp",
        "model.hidden=[8]",
        "data=digits",
        "train.batch_size=8",
        "schedule=constant",
    ),
    *("parallelism.workers=2", "parallelism.combine=parameter_server", "parallelism.backup_workers=1"),
    *("parallelism.servers=2", "train.eval_every=6", "hydra.run.dir=run"),
)
STRAGGLERS = (
    *("cluster.emulate=true", "cluster.stragglers.distribution=lognormal"),
    *("cluster.stragglers.median_ms=10", "cluster.stragglers.sigma=1.5"),
)


def finished(folder: Path, *overrides: str) -> Summary:
    folder.mkdir(exist_ok=True)
    succeed(folder, *overrides)
    return summary_of(folder / "run")


def test_a_resumed_run_with_slow_workers_is_replayed_to_the_bit(tmp_path: Path) -> None:
    slow, replayed = tmp_path / "slow", tmp_path / "replayed"
    finished(slow, *BACKED, *STRAGGLERS, f"train.steps={STEPS // 2}")
    first = read_decisions(slow / "run" / "contributors.jsonl")
    summary = finished(slow, "resume=run", f"train.steps={STEPS}")
    lines = read_decisions(slow / "run" / "contributors.jsonl")
    assert lines[: STEPS // 2] == first
    assert [line["step"] for line in lines] == list(range(STEPS))
    dropped = [each for line in lines for each in line["dropped"]]
    for line in lines:
        of_step = [*line["contributors"], *(each["worker"] for each in line["dropped"])]
        assert len(set(of_step)) == len(of_step)
        assert set(of_step) <= {0, 1, 2}
    assert summary.workers == 3
    assert sum(summary.dropped_shares.values()) == len(dropped)
    assert sum(summary.dropped_examples.values()) == 4 * len(dropped)

    record = slow / "run" / "contributors.jsonl"
    again = finished(replayed, *BACKED, f"train.steps={STEPS}", f"parallelism.replay={record}")
    assert again.weights_sha256 == summary.weights_sha256
    assert again.final["train/loss"] == summary.final["train/loss"]
    assert again.dropped_shares == {}
    contributors = [line["contributors"] for line in read_decisions(replayed / "run" / "contributors.jsonl")]
    assert contributors == [line["contributors"] for line in lines]
    assert not list((slow / "run").glob("endings-*")), "nothing repeats a run from the endings of its shares"


def test_a_loss_that_is_not_finite_is_traced_to_its_node_over_the_same_shares(tmp_path: Path) -> None:
    command = run_command(tmp_path, *BACKED, *STRAGGLERS, f"train.steps={STEPS}", "optimizer.lr=1e30")
    assert command.code == 5
    assert "repeating steps 0 to" in (tmp_path / "run" / "run.log").read_text()
    assert "it is the first node that produced any" in command.errors


def test_the_death_of_a_backup_worker_ends_the_run_with_its_name(tmp_path: Path) -> None:
    command = Command(tmp_path, *BACKED, "train.steps=100000", "checkpoint.every_steps=5")
    try:
        wait_until(lambda: (tmp_path / "run" / "contributors.jsonl").exists(), "an update")
        command.workers()[2].kill()
        assert command.finish() == 7
    finally:
        command.kill()
    assert "worker-2" in command.errors
    assert summary_of(tmp_path / "run").status == "failed"
    assert read_decisions(tmp_path / "run" / "contributors.jsonl")
