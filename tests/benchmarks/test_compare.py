"""A whole comparison of the smallest case: runner, and peers that are missing, wrong or broken."""

import json
import statistics
from pathlib import Path

import pytest

from benchmarks.cases import CASES
from benchmarks.compare import Settings, compare
from benchmarks.limit import Rates
from benchmarks.report import Report
from benchmarks.results import LOSSES, CaseResult
from benchmarks.subjects import OURS, SubjectSpec

FAKE = "tests.benchmarks.fake_subject"


@pytest.fixture(scope="module")
def result() -> CaseResult:
    """The smoke case, measured once."""
    peers = (
        SubjectSpec("again", "", "benchmarks.ours"),
        SubjectSpec("missing", "nonesuch", "benchmarks.peers.nonesuch"),
        SubjectSpec("wrong", "", FAKE, ("falls",)),
        SubjectSpec("broken", "", FAKE, ("breaks",)),
    )
    settings = Settings(rounds=2, turn=3, threads=1)
    return compare(CASES["smoke"], "float32", settings, (OURS, *peers), Rates({"gemm": 1e9}, 1e9))


def test_every_phase_of_ours_is_timed(result: CaseResult) -> None:
    assert result.ours.failure == ""
    assert {phase: len(times) for phase, times in result.ours.seconds.items()} == dict.fromkeys(
        ("forward", "gradients", "step"), 2 * 3
    )
    assert len(result.ours.losses) == LOSSES
    assert result.ours.losses[0] > result.ours.losses[-1]
    assert result.ours.memory_mib[1] >= result.ours.memory_mib[0] > 1.0
    assert "runner" in result.ours.versions


def test_only_who_computes_the_same_is_compared(result: CaseResult) -> None:
    again = result.subjects[1]
    assert again.losses == result.ours.losses
    assert result.comparable() == [again]
    assert result.best_peer("step") is again


def test_a_missing_or_broken_subject_has_a_reason(result: CaseResult) -> None:
    _, _, missing, wrong, broken = result.subjects
    assert missing.failure == "not installed: make bench-peers ARGS=nonesuch"
    assert broken.failure == "ended with code 1: RuntimeError: out of luck"
    assert (wrong.failure, broken.seconds) == ("", {})


def test_the_case_is_counted(result: CaseResult) -> None:
    assert result.parameters == 2 * 25 + 2 + 3 * 2 * 25 + 3 + (3 * 8 + 8) + (8 * 4 + 4)
    limit = result.limit_s["step"]
    assert limit == pytest.approx(result.multiply_adds["step"] / 1e9 + 20 * result.parameters / 1e9)


def test_the_report_is_written_whole(result: CaseResult, tmp_path: Path) -> None:
    report = Report({"CPU": "a CPU"}, comparisons=[result])
    report.write(tmp_path / "table.md", tmp_path / "raw.json")
    text = (tmp_path / "table.md").read_text()
    assert "- CPU: a CPU" in text
    assert "| missing | not installed: make bench-peers ARGS=nonesuch |" in text
    raw = json.loads((tmp_path / "raw.json").read_text())
    seconds = raw["comparisons"][0]["subjects"][0]["seconds"]["step"]
    assert statistics.median(seconds) == result.ours.median("step")


def test_a_peer_s_failure_is_no_failure_of_the_report_but_ours_is(result: CaseResult) -> None:
    assert not Report({}, comparisons=[result]).has_failures
    assert Report({}, failed={"alexnet": "ConfigError"}).has_failures
    assert "- alexnet: no such model" in Report({}, failed={"alexnet": "no such model"}).markdown()
