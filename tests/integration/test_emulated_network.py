"""Runs on an emulated slow network: reported, slower by the emulated times, and equal bit for bit."""

from pathlib import Path

from runner.commands.results import results_table
from runner.records.summary import Summary
from tests.integration.command import succeed, summary_of

LATENCY_S, DELAY_S, STEPS = 0.02, 0.03, 5
SLOW = (
    "cluster=slow_network",
    "cluster.bandwidth_mbit=1",
    f"cluster.latency_ms={LATENCY_S * 1e3}",
    "cluster.stragglers.distribution=constant",
    f"cluster.stragglers.median_ms={DELAY_S * 1e3}",
    "cluster.stragglers.workers=[1]",
)
EMULATED = "1 Mbit/s, 20 ms, constant delay of worker 1 with median 30 ms"


def run_of(folder: Path, *overrides: str) -> Summary:
    """A short run of two workers, with everything that is told the user beside the summary."""
    small = (
        "model=mlp",
        "model.hidden=[8]",
        "data=digits",
        "tracking=none",
        "tracking.pictures=false",
        f"train.steps={STEPS}",
    )
    command = succeed(folder, *small, *overrides, "hydra.run.dir=run")
    summary = summary_of(folder / "run")
    assert results_table(summary) in command.output
    return summary


def test_waiting_changes_the_time_of_a_step_and_no_bit(tmp_path: Path) -> None:
    plain_folder, slow_folder = tmp_path / "plain", tmp_path / "slow"
    for folder in (plain_folder, slow_folder):
        folder.mkdir()
    plain, slow = run_of(plain_folder), run_of(slow_folder, *SLOW)
    assert plain.weights_sha256 is not None
    assert slow.weights_sha256 == plain.weights_sha256
    assert slow.bytes_sent_per_worker == plain.bytes_sent_per_worker
    assert (plain.emulated, slow.emulated) == ("", EMULATED)
    assert f"emulated: {EMULATED}" in (slow_folder / "run" / "run.log").read_text()
    assert "emulated" not in (plain_folder / "run" / "run.log").read_text()
    # The slow worker begins late; then halves of the gradient go one way, and halves of the sum the other.
    half_bytes = slow.bytes_sent_per_worker[0] / STEPS / 2
    wires_s = 2 * (LATENCY_S + half_bytes * 8 / 1e6)
    assert slow.step_time_s["p10"] >= DELAY_S + wires_s
