"""Comparisons: the measured phases, the physical limit, the configured strategies, and the peers that are compared."""

import json
import math
import statistics
from pathlib import Path

import pytest

from benchmarks import results
from benchmarks.cases import CASES
from benchmarks.compare import Settings, compare, phase_work
from benchmarks.limit import Rates, multiply_adds
from benchmarks.machine import CONV_MULTIPLY_ADDS, convolution
from benchmarks.process import SubjectError, SubjectProcess
from benchmarks.report import Report
from benchmarks.results import TOLERANCES, CaseResult, quartiles
from benchmarks.scaling import ScalingResult
from benchmarks.strategies import StrategyTable, configured
from benchmarks.subjects import OURS, SubjectSpec
from tests.benchmarks.made import LOSSES, case, subject

FAKE = "tests.benchmarks.fake_subject"


@pytest.fixture(scope="module")
def result() -> CaseResult:
    """Return the result of the smoke case, which is measured once for all tests."""
    peers = (
        SubjectSpec("again", "", "benchmarks.ours"),
        SubjectSpec("missing", "nonesuch", "benchmarks.peers.nonesuch"),
        SubjectSpec("wrong", "", FAKE, ("falls",)),
        SubjectSpec("broken", "", FAKE, ("breaks",)),
    )
    settings = Settings(rounds=2, turn=3, threads=1)
    return compare(CASES["smoke"], "float32", settings, (OURS, *peers), Rates({"gemm": 1e9}, 1e9))


@pytest.mark.slow
def test_every_phase_of_runner_is_timed(result: CaseResult) -> None:
    assert result.ours.failure == ""
    assert {phase: len(times) for phase, times in result.ours.seconds.items()} == dict.fromkeys(
        ("forward", "gradients", "step"), 2 * 3
    )
    assert len(result.ours.losses) == results.LOSSES
    assert result.ours.losses[0] > result.ours.losses[-1]
    assert result.ours.memory_mib[1] >= result.ours.memory_mib[0] > 1.0
    assert "runner" in result.ours.versions


@pytest.mark.slow
def test_only_subjects_with_equal_losses_are_compared(result: CaseResult) -> None:
    again = result.subjects[1]
    assert again.losses == result.ours.losses
    assert result.comparable() == [again]
    assert result.best_peer("step") is again


@pytest.mark.slow
def test_the_reason_of_a_missing_or_broken_subject_is_reported(result: CaseResult) -> None:
    _, _, missing, wrong, broken = result.subjects
    assert missing.failure == "not installed: run make bench-peers ARGS=nonesuch"
    assert broken.failure == "ended with code 1: RuntimeError: out of luck"
    assert (wrong.failure, broken.seconds) == ("", {})


@pytest.mark.slow
def test_the_case_has_the_counts_of_its_network(result: CaseResult) -> None:
    assert result.parameters == 2 * 25 + 2 + 3 * 2 * 25 + 3 + (3 * 8 + 8) + (8 * 4 + 4)
    limit = result.limit_s["step"]
    assert limit == pytest.approx(result.multiply_adds["step"] / 1e9 + 20 * result.parameters / 1e9)


@pytest.mark.slow
def test_the_report_is_written_completely(result: CaseResult, tmp_path: Path) -> None:
    report = Report({"CPU": "a CPU"}, comparisons=[result])
    report.write(tmp_path / "table.md", tmp_path / "raw.json")
    text = (tmp_path / "table.md").read_text()
    assert "- CPU: a CPU" in text
    assert "| missing | not installed: run make bench-peers ARGS=nonesuch |" in text
    raw = json.loads((tmp_path / "raw.json").read_text())
    seconds = raw["comparisons"][0]["subjects"][0]["seconds"]["step"]
    assert statistics.median(seconds) == result.ours.median("step")


@pytest.mark.slow
def test_the_report_fails_if_runner_failed_but_not_if_a_peer_did(result: CaseResult) -> None:
    assert not Report({}, comparisons=[result]).has_failures
    assert Report({}, failed={"alexnet": "ConfigError"}).has_failures
    assert "- alexnet: no such model" in Report({}, failed={"alexnet": "no such model"}).markdown()


def test_the_limit_is_the_time_of_arithmetic_and_optimizer_at_measured_rates() -> None:
    rates = Rates({"NumPy's matrix product": 78.94e9, "conv": 200e9}, bytes_per_s=10e9)
    work = {"multiply_adds": 40_000_000_000, "parameters": 50_000_000}
    assert rates.limit_s("step", **work) == pytest.approx(0.2 + 0.1)
    assert rates.limit_s("gradients", **work) == pytest.approx(0.2)
    assert Rates({}, bytes_per_s=10e9).limit_s("step", **work) is None
    text = Rates({"NumPy's matrix product": 78.94e9}, bytes_per_s=31e9).sentence()
    assert text == "78.9 G multiply-adds/s by NumPy's matrix product, 31.0 GB/s adding arrays"


def test_the_first_layer_has_no_gradient_of_its_input() -> None:
    # 4 examples. conv1: 12x12 outputs, 2 filters of 5x5. conv2: 2x2 outputs, 3 filters of 2x5x5. Dense: 3 -> 8 -> 4.
    conv1, conv2, dense1, dense2 = 144 * 2 * 25, 4 * 3 * 2 * 25, 3 * 8, 8 * 4
    forward = 4 * (conv1 + conv2 + dense1 + dense2)
    whole = 3 * forward - 4 * conv1
    assert phase_work(CASES["smoke"]) == {"forward": forward, "gradients": whole, "step": whole}


def test_the_convolution_of_the_machine_benchmark_has_the_stated_size() -> None:
    program = convolution("float32")
    assert multiply_adds(program.graph, program.clients["train"]) == CONV_MULTIPLY_ADDS


def test_a_configuration_trains_on_its_data(tmp_path: Path) -> None:
    smoke = CASES["smoke"]
    spec = configured("single", smoke, ["parallelism=single"], threads=1, batch=smoke.batch)
    with SubjectProcess(spec, threads=1, log=tmp_path / "log", pinned=False) as process:
        process.ask("load")
        answer = process.ask("run", phase="step", times=2)
        assert len(answer["losses"]) == 2
        with pytest.raises(
            SubjectError, match="phase 'forward': expected 'step', 'evaluations' or 'series', the phases"
        ):
            process.ask("run", phase="forward", times=1)


def test_strategy_and_batch_are_the_requested_ones(tmp_path: Path) -> None:
    parallelism = ("parallelism=sync_data", "parallelism.workers=2")
    spec = configured("sync", CASES["smoke"], parallelism, threads=1, batch=1)
    with (
        SubjectProcess(spec, threads=1, log=tmp_path / "log", pinned=False) as process,
        pytest.raises(SubjectError, match=r"train\.batch_size"),
    ):
        process.ask("load")


def test_rates_are_examples_over_median_seconds_and_are_summed_over_unconnected_runs() -> None:
    result = ScalingResult("c", "t", 10, connected=(0.25,), unconnected=((0.1, 0.1, 9.0), (0.2,)), alone=(0.05,))
    assert (result.connected_rate, result.unconnected_rate, result.alone_rate) == (80.0, 150.0, 200.0)
    table = StrategyTable("c", "t", 32, (subject("single", [8, 16, 400]),))
    assert table.rate(table.strategies[0]) == 2000.0


def test_the_best_peer_is_the_one_with_the_shortest_median() -> None:
    result = case(subject("runner", [5]), subject("slow", [9, 9, 9]), subject("fast", [6, 7, 100]))
    best = result.best_peer("step")
    assert (best.name, best.median("step")) == ("fast", 0.007)
    assert result.best_peer("forward") is None


def test_a_peer_with_other_losses_is_not_compared() -> None:
    other = subject("other", [1], losses=(3.0, 2.9, 2.8), memory_mib=(1.0, 2.0))
    failed = subject("failed", failure="ended with code 1", losses=LOSSES, memory_mib=(0.0, 0.0))
    result = case(subject("runner", [5]), other, failed, subject("same", [9]))
    assert [peer.name for peer in result.comparable()] == ["same"]
    best, lean = result.best_peer("step"), result.leanest_peer()
    assert (best and best.name, lean and lean.name) == ("same", "same")


@pytest.mark.parametrize(
    ("theirs", "holds"),
    [
        ((3.0, 2.5, 2.0), True),
        ((3.002, 2.501, 2.001), True),
        ((3.004, 2.5, 2.0), False),  # more than a thousandth of the loss
        ((3.0, 2.5, math.nan), False),
    ],
)
def test_float32_losses_may_differ_by_a_thousandth(theirs: tuple[float, ...], holds: bool) -> None:
    assert TOLERANCES["float32"].holds(LOSSES, theirs) is holds


def test_a_missing_update_is_found_even_if_the_loss_hardly_changes() -> None:
    ours = (6.9000, 6.8990, 6.8980)
    assert TOLERANCES["float32"].holds(ours, (6.9, 6.8991, 6.8981))
    assert not TOLERANCES["float32"].holds(ours, (6.9, 6.9, 6.9))


def test_both_quartiles_of_a_single_run_are_its_time() -> None:
    assert quartiles([4.0]) == (4.0, 4.0)
    assert quartiles([1, 2, 3, 4, 5]) == (2.0, 4.0)
