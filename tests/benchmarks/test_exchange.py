"""Exchanges of vectors between workers: programs, measured collectives, overlap with computation, and tables."""

import json
import math
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any

import numpy as np
import pytest

from benchmarks import collectives, overlap, tcp
from benchmarks.alternate import Contestant
from benchmarks.environments import ROOT
from benchmarks.exchange import exchange_program
from benchmarks.exchange_protocol import PUSH_PULL, RING, Exchange, _answer, deviation, given
from benchmarks.experiments import configuration
from benchmarks.options import parse
from benchmarks.peers.exchange_peer import commands
from benchmarks.process import SubjectError
from benchmarks.report import Report
from benchmarks.results import SubjectResult
from runner.engine.graph import local_cluster
from runner.engine.run.local_session import LocalSession
from runner.kernels.registry import Registry
from runner.training.build import build
from tests.benchmarks.made import LOSSES, cells, subject

EXCHANGES = [Exchange(RING, 2), Exchange(RING, 3), Exchange(RING, 4), Exchange(PUSH_PULL, 2), Exchange(PUSH_PULL, 3)]


@pytest.mark.parametrize("exchange", EXCHANGES, ids=str)
@pytest.mark.parametrize("nbytes", [4, 4 * 1000, 4 * 4099])
def test_every_worker_receives_the_sum_of_all_vectors(exchange: Exchange, nbytes: int, registry: Registry) -> None:
    program = exchange_program(exchange, nbytes)
    with closing(LocalSession(program, local_cluster(program.workers, program.servers), registry)) as session:
        session.run("give", feeds={f"worker-{k}": given(k, nbytes) for k in range(exchange.workers)})
        before = sum(session.sent_bytes())
        session.run("exchange")
        each_way = exchange.workers if exchange.collective == PUSH_PULL else exchange.workers - 1
        assert sum(session.sent_bytes()) - before == 2 * each_way * nbytes
        sums = session.run("look")
    assert {deviation(sums[f"worker-{k}"], exchange.workers) for k in range(exchange.workers)} == {0.0}


def test_a_wrong_sum_has_a_deviation() -> None:
    right = given(0, 4000) + given(1, 4000)
    assert deviation(right, 2) == 0.0
    assert deviation(given(0, 4000), 2) > 0.0
    assert deviation(np.roll(right, 500), 2) > 0.0
    for value in (np.nan, np.inf):
        right[7] = value
        assert deviation(right, 2) == float("inf")


def test_arguments_of_an_exchange_are_read_back_and_invalid_ones_refused() -> None:
    for exchange in EXCHANGES:
        assert Exchange.of(exchange.arguments) == exchange
    assert (Exchange(RING, 3).processes, Exchange(PUSH_PULL, 3).processes) == (3, 4)
    for collective, workers in (("tree", 2), (RING, 1)):
        with pytest.raises(
            ValueError, match=f"exchange {collective!r} of {workers} workers: expected one of ring, push"
        ):
            Exchange(collective, workers)


@pytest.mark.slow
def test_processes_of_runner_exchange_and_answer() -> None:
    requests = [{"do": "start"}, *({"do": "run", "phase": nbytes, "times": 2} for nbytes in ("4", "4096"))]
    command = [sys.executable, "-m", "benchmarks.exchange", PUSH_PULL, "2"]
    text = "".join(json.dumps(request) + "\n" for request in requests)
    done = subprocess.run(command, cwd=ROOT, input=text, capture_output=True, text=True, timeout=100, check=True)
    started, *answers = map(json.loads, done.stdout.splitlines())
    assert "runner" in started["versions"]
    assert [len(answer["seconds"]) for answer in answers] == [2, 2]


NAME = "collectives/push-pull-2"
SIZES = (4, 1 << 20)


class Played:
    """A fake process. The first exchange of a request takes 1 s, others 1 ms. It ends at a given size."""

    def __init__(self, ends_at: float = float("inf")) -> None:
        self.asked: list[tuple[str, int]] = []
        self._ends_at = ends_at

    def ask(self, do: str, **more: Any) -> dict[str, Any]:
        if do == "start":
            return {"versions": {}, "memory_mib": 1.0}
        if int(more["phase"]) >= self._ends_at:
            raise SubjectError("ended with code 1: ValueError: sums of 1048576 bytes: largest error 1, expected 0")
        self.asked.append((more["phase"], more["times"]))
        return {"seconds": [1.0, *[1e-3] * (more["times"] - 1)]}


def measured(monkeypatch: pytest.MonkeyPatch, processes: Mapping[str, Played | None]) -> collectives.ExchangeResult:
    """Return the measurement of a collective by fake processes. None stands for a subject that is not installed."""

    def started(spec: Any, *_: object, **__: object) -> Contestant:
        process = processes[spec.name]
        failure = "" if process else "not installed: run make bench-peers ARGS=mpi"
        return Contestant(SubjectResult(spec.name, failure=failure), process)

    monkeypatch.setattr(collectives, "started", started)
    return collectives.measure_collective(NAME, rounds=2, turn=3, with_peers=True, sizes=SIZES)


def test_subjects_have_equal_turns_whose_first_exchange_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    processes = {name: Played() for name in ("runner", "mpi", "gloo")}
    result = measured(monkeypatch, processes)
    for process in processes.values():
        assert process.asked == [(str(nbytes), times) for nbytes in SIZES for times in (1, 4, 4)]
    for each in result.subjects:
        assert each.seconds == {str(nbytes): [1e-3] * 6 for nbytes in SIZES}


def test_a_subject_that_ends_is_dropped_with_all_its_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    result = measured(monkeypatch, {"runner": Played(), "mpi": Played(ends_at=1 << 20), "gloo": None})
    ours, mpi, _ = result.subjects
    assert (ours.failure, dict(mpi.seconds)) == ("", {})
    text = collectives.collectives_section([result])
    assert "- mpi: ended with code 1: ValueError: sums of 1048576 bytes: largest error 1, expected 0" in text
    assert "- gloo: not installed: run make bench-peers ARGS=mpi" in text
    assert cells(text, "1 MiB") == ["1 MiB", "1 (1-1)", "1.05"]
    assert not Report({}, collectives=[result]).has_failures
    assert Report({}, collectives=[measured(monkeypatch, {"runner": None, "mpi": None, "gloo": None})]).has_failures


def test_wrong_sums_end_the_process() -> None:
    class Wrong:
        versions: Mapping[str, str] = {}

        def exchange(self, nbytes: int, times: int) -> tuple[list[float], float]:
            return [1.0] * times, float(nbytes > 4)

    assert _answer(Wrong(), {"do": "run", "phase": "4", "times": 2}) == {"seconds": [1.0, 1.0]}
    with pytest.raises(ValueError, match="sums of 8 bytes: largest error 1, expected 0"):
        _answer(Wrong(), {"do": "run", "phase": "8", "times": 2})


def test_the_table_compares_runners_bandwidth_with_the_peers() -> None:
    ours = SubjectResult("runner", seconds={"4": [4e-6], str(64 << 20): [0.03, 0.04, 0.05]})
    slow = SubjectResult("gloo", versions={"torch": "2"}, seconds={str(64 << 20): [0.08]})
    result = collectives.ExchangeResult("name", Exchange("ring", 3), (4, 64 << 20), (ours, slow))
    text = Report({"date": "today"}, collectives=[result]).markdown()
    assert "### ring all-reduce, 3 workers" in text
    assert "- versions: torch 2" in text
    assert "Phases: forward" not in text
    assert cells(text, "64 MiB") == ["64 MiB", "40 (35-45)", "1.68", "80 (80-80)", "0.839", "2.00"]
    assert cells(text, "4 B") == ["4 B", "0.004 (0.004-0.004)", "0.001", "-", "-", "-"]


def test_sizes_are_in_the_largest_unit_with_a_whole_number() -> None:
    sizes = {4: "4 B", 1024: "1 KiB", 1 << 20: "1 MiB", 64 << 20: "64 MiB", 1025: "1025 B"}
    assert {size: collectives.size_text(size) for size in sizes} == sizes
    # A turn has fewer exchanges if the vectors are large.
    assert [collectives.steps_in_a_turn(each) for each in (4, 4 << 20, 16 << 20, 64 << 20)] == [50, 50, 16, 5]


def test_collectives_are_measured_only_when_they_are_named() -> None:
    assert parse(["collectives"]).cases == tuple(collectives.COLLECTIVE_CASES)
    assert not set(parse([]).cases) & set(collectives.COLLECTIVE_CASES)


def test_mpi_starts_its_ranks_itself_and_gloo_does_not(tmp_path: Any) -> None:
    (mpi,) = commands("mpi", Exchange(PUSH_PULL, 2), tmp_path)
    assert mpi[1:3] == ["-n", "3"]
    assert mpi[-4:] == ["benchmarks.peers.mpi_rank", PUSH_PULL, "2", str(tmp_path)]
    assert [command[-1] for command in commands("gloo", Exchange(PUSH_PULL, 2), tmp_path)] == ["0", "1", "2"]


def overlap_result(
    free: Sequence[float], blocking: Sequence[float], overlapped: Sequence[float], turn: int
) -> overlap.OverlapResult:
    times = {overlap.NO_NETWORK: free, overlap.BLOCKING: blocking, overlap.OVERLAPPED: overlapped}
    ways = tuple(subject(name, times[name], versions={"numpy": "2"}) for name in overlap.WAYS)
    return overlap.OverlapResult("sharded_reduce", "net, batch 4", "100 Mbit/s, 0.5 ms", turn, ways)


@pytest.mark.parametrize(
    ("free", "blocking", "overlapped", "turn", "hidden", "quartiles"),
    [
        ([100, 100, 900], [140, 140, 140], [110, 110, 50], 3, 0.75, (0.75, 0.75)),
        ([100] * 6, [140] * 6, [100, 100, 120, 120, 140, 140], 2, 0.5, (0.25, 0.75)),
        # Without network time, the hidden fraction is undefined.
        ([100], [100], [90], 1, math.nan, None),
    ],
)
def test_hidden_fraction_is_relative_to_blocking_network_time_and_has_quartiles(
    free: list[float],
    blocking: list[float],
    overlapped: list[float],
    turn: int,
    hidden: float,
    quartiles: tuple[float, float] | None,
) -> None:
    found = overlap_result(free, blocking, overlapped, turn)
    assert found.hidden == pytest.approx(hidden, nan_ok=True)
    assert quartiles is None or found.hidden_quartiles == pytest.approx(quartiles)


def test_the_section_has_medians_quartiles_and_hidden_time() -> None:
    found = overlap_result([100, 102, 104], [140, 142, 144], [106, 108, 110], turn=3)
    row = "| sharded_reduce | 102 (101-103) | 142 (141-143) | 108 (107-109) | 0.85 | 0.85-0.85 |"
    assert row in overlap.overlap_section([found])
    assert "net, batch 4, 4 workers of one thread each" in overlap.overlap_section([found])
    report = Report({"CPU": "one"}, overlaps=[found])
    assert "versions: numpy 2" in report.markdown()
    assert "Phases:" not in report.markdown()


def test_variants_that_fail_or_have_other_losses_are_refused() -> None:
    same = [subject(name) for name in overlap.WAYS]
    overlap.require_same_losses(same)
    with pytest.raises(SubjectError, match=r"^overlapped: ended with code 1$"):
        overlap.require_same_losses([*same[:2], subject(overlap.OVERLAPPED, failure="ended with code 1")])
    other = [*LOSSES[:2], LOSSES[2] + 1e-7]
    with pytest.raises(SubjectError, match=r"^overlapped: losses .* expected those of no network"):
        overlap.require_same_losses([*same[:2], subject(overlap.OVERLAPPED, losses=other)])


@pytest.mark.parametrize("combine", overlap.OVERLAP_CASES.values())
def test_variants_differ_only_in_waits_and_delayed_transfers(combine: str) -> None:
    workers = ("parallelism=sync_data", f"parallelism.workers={overlap.WORKERS}", f"parallelism.combine={combine}")
    free, blocking, overlapped = (
        build(configuration([*overlap.CASE.overrides(threads=1, parallelism=(*workers, *overrides)), "model.depth=8"]))
        for overrides in overlap.WAYS.values()
    )
    assert free.program == overlapped.program
    assert free.cluster == overlapped.cluster == blocking.cluster
    assert free.emulation is None
    assert blocking.emulation == overlapped.emulation is not None
    assert len(blocking.program.graph) > len(overlapped.program.graph)


@pytest.mark.slow
def test_tensors_over_tcp_arrive_whole_from_every_subject(capsys: pytest.CaptureFixture[str]) -> None:
    assert tcp.main(["--rounds=1", "--tensors=2"]) == 0
    table = capsys.readouterr().out
    assert all(int(cells(table, subject)[1]) > 0 for subject in tcp.SUBJECTS)
