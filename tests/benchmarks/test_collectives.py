"""The comparison of collectives: whose numbers count, and what the tables say."""

from collections.abc import Mapping
from typing import Any

import pytest

from benchmarks import collectives
from benchmarks.alternate import Contestant
from benchmarks.collectives import COLLECTIVE_CASES, ExchangeResult, measure_collective, steps_in_a_turn
from benchmarks.collectives_table import collectives_section, size_text
from benchmarks.exchange_protocol import PUSH_PULL, Exchange
from benchmarks.options import parse
from benchmarks.peers.exchange_peer import commands
from benchmarks.process import SubjectError
from benchmarks.report import Report
from benchmarks.results import SubjectResult
from tests.benchmarks.test_table import cells

NAME = "collectives/push-pull-2"
SIZES = (4, 1 << 20)


class Played:
    """A process whose exchanges take a millisecond each, and whose sums are off from a size on."""

    def __init__(self, wrong_from: float = float("inf")) -> None:
        self.asked: list[tuple[int, int]] = []
        self._wrong_from = wrong_from

    def ask(self, do: str, **more: Any) -> dict[str, Any]:
        if do != "exchange":
            raise SubjectError(f"{do} is not played")
        self.asked.append((more["nbytes"], more["times"]))
        return {"seconds": [1.0, *[1e-3] * (more["times"] - 1)], "deviation": float(more["nbytes"] >= self._wrong_from)}


def measured(monkeypatch: pytest.MonkeyPatch, processes: Mapping[str, Played | None]) -> ExchangeResult:
    """Measure with played processes; one that is None is not installed."""

    def started(spec: Any, *_: object) -> Contestant:
        process = processes[spec.name]
        return Contestant(spec.name, process, failure="" if process else "not installed: make bench-peers ARGS=mpi")

    monkeypatch.setattr(collectives, "_started", started)
    return measure_collective(NAME, rounds=2, turn=3, with_peers=True, sizes=SIZES)


def test_all_have_the_same_turns_and_the_first_of_a_turn_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    processes = {name: Played() for name in ("runner", "mpi", "gloo")}
    result = measured(monkeypatch, processes)
    for process in processes.values():
        assert process.asked == [(nbytes, times) for nbytes in SIZES for times in (1, 4, 4)]
    for subject in result.subjects:
        assert subject.seconds == {str(nbytes): (1e-3,) * 6 for nbytes in SIZES}


def test_whose_sums_are_wrong_is_out_with_all_its_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    result = measured(monkeypatch, {"runner": Played(), "mpi": Played(wrong_from=1 << 20), "gloo": None})
    ours, mpi, _ = result.subjects
    assert (ours.failure, dict(mpi.seconds)) == ("", {})
    assert mpi.failure == "sums of 1048576 bytes are off by 1"
    text = collectives_section([result])
    assert "- mpi: sums of 1048576 bytes are off by 1" in text
    assert "- gloo: not installed: make bench-peers ARGS=mpi" in text
    assert cells(text, "1 MiB") == ["1 MiB", "1 (1-1)", "1.05"]
    assert not Report({}, collectives=[result]).has_failures
    assert Report({}, collectives=[measured(monkeypatch, {"runner": None, "mpi": None, "gloo": None})]).has_failures


def test_the_table_sets_our_bandwidth_against_theirs() -> None:
    ours = SubjectResult("runner", seconds={"4": (4e-6,), str(64 << 20): (0.03, 0.04, 0.05)})
    slow = SubjectResult("gloo", versions={"torch": "2"}, seconds={str(64 << 20): (0.08,)})
    result = ExchangeResult("name", Exchange("ring", 3), (4, 64 << 20), (ours, slow))
    text = Report({"date": "today"}, collectives=[result]).markdown()
    assert "### ring all-reduce, 3 workers" in text
    assert "- versions: torch 2" in text
    assert "training step, with the update" not in text
    assert cells(text, "64 MiB") == ["64 MiB", "40 (35-45)", "1.68", "80 (80-80)", "0.839", "2.00"]
    assert cells(text, "4 B") == ["4 B", "0.004 (0.004-0.004)", "0.001", "-", "-", "-"]


def test_sizes_are_in_the_largest_unit_with_a_whole_number() -> None:
    assert [size_text(each) for each in (4, 1024, 1 << 20, 64 << 20, 1025)] == [
        "4 B",
        "1 KiB",
        "1 MiB",
        "64 MiB",
        "1025 B",
    ]


def test_a_turn_moves_about_the_same_bytes() -> None:
    assert [steps_in_a_turn(each) for each in (4, 4 << 20, 16 << 20, 64 << 20)] == [50, 50, 16, 5]


def test_collectives_are_measured_only_when_they_are_named() -> None:
    assert parse(["collectives"]).cases == tuple(COLLECTIVE_CASES)
    assert not set(parse([]).cases) & set(COLLECTIVE_CASES)


def test_mpi_starts_its_ranks_itself_and_gloo_does_not(tmp_path: Any) -> None:
    (mpi,) = commands("mpi", Exchange(PUSH_PULL, 2), tmp_path)
    assert mpi[1:3] == ["-n", "3"]
    assert mpi[-4:] == ["benchmarks.peers.mpi_rank", PUSH_PULL, "2", str(tmp_path)]
    assert [command[-1] for command in commands("gloo", Exchange(PUSH_PULL, 2), tmp_path)] == ["0", "1", "2"]
