"""Benchmark subjects in separate processes: environments, requests, answers, faults, and turns."""

import os
import re
from pathlib import Path
from typing import Any

import psutil
import pytest

from benchmarks.alternate import SETTLING, Contestant, alternate
from benchmarks.environments import REQUIREMENTS, MissingEnvironmentError, python_of
from benchmarks.experiments import prepare
from benchmarks.process import SubjectError, SubjectProcess
from benchmarks.protocol import peak_memory_mib
from benchmarks.results import SubjectResult
from benchmarks.subjects import DDP, EXCHANGE_PEERS, PEERS, SubjectSpec
from runner.system.machine import usable_cores

CORES = usable_cores()


def start(tmp_path: Path, behaviour: str, timeout_s: float = 30.0, pinned: bool = True) -> SubjectProcess:
    spec = SubjectSpec("fake", "", "tests.benchmarks.fake_subject", (behaviour,))
    return SubjectProcess(spec, threads=1, log=tmp_path / "fake.log", pinned=pinned, timeout_s=timeout_s)


def test_a_run_is_answered_with_times_and_losses(tmp_path: Path) -> None:
    with start(tmp_path, "falls") as process:
        started = process.ask("start")
        assert started["versions"]["fake"] == "1.0"
        assert process.ask("load") == {}
        first = process.ask("run", phase="step", times=2)
        then = process.ask("run", phase="step", times=1)
        assert (first["losses"], then["losses"]) == ([3.0, 2.0], [1.0])
        assert len(first["seconds"]) == 2
        assert min(first["seconds"]) >= 0.0
        assert process.ask("memory")["memory_mib"] >= started["memory_mib"] > 1.0


def test_output_of_a_library_is_not_an_answer(tmp_path: Path) -> None:
    with start(tmp_path, "chatty") as process:
        assert process.ask("load") == {}
        assert process.ask("run", phase="step", times=1)["losses"] == [3.0]
    assert "a library that talks" in (tmp_path / "fake.log").read_text()


def test_a_fault_is_reported_with_the_last_output(tmp_path: Path) -> None:
    with start(tmp_path, "breaks") as process:
        process.ask("run", phase="step", times=1)
        with pytest.raises(SubjectError, match="ended with code 1: RuntimeError: out of luck"):
            process.ask("run", phase="step", times=1)
        with pytest.raises(SubjectError, match="ended with code 1"):
            process.ask("memory")


def test_an_unknown_request_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    with (
        start(tmp_path, "falls") as process,
        pytest.raises(SubjectError, match="request 'dance': expected start, load, run or memory"),
    ):
        process.ask("dance")


def test_a_subject_that_does_not_answer_in_time_is_ended(tmp_path: Path) -> None:
    with start(tmp_path, "sleeps", timeout_s=0.5) as process:
        with pytest.raises(SubjectError, match=re.escape("no answer within 0.5 s")):
            process.ask("run", phase="step", times=1)
        with pytest.raises(SubjectError, match="ended with code -9"):
            process.ask("memory")


def test_a_missing_environment_starts_no_process(tmp_path: Path) -> None:
    spec = SubjectSpec("peer", "nonesuch", "benchmarks.peers.nonesuch")
    with pytest.raises(MissingEnvironmentError, match="not installed: run make bench-peers ARGS=nonesuch"):
        SubjectProcess(spec, threads=1, log=tmp_path / "log")


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system cannot limit a process to some cores")
@pytest.mark.parametrize("pinned", [True, False])
def test_a_subject_has_as_many_cores_as_threads_and_the_parent_keeps_its_own(pinned: bool, tmp_path: Path) -> None:
    with start(tmp_path, "falls", pinned=pinned) as process:
        assert usable_cores() == CORES
        assert process.ask("start")["versions"]["cores"] == ("1" if pinned else str(CORES))


def test_the_memory_peak_is_in_mebibytes() -> None:
    assert 5.0 < peak_memory_mib() < 100_000.0


@pytest.mark.parametrize(
    ("stamp", "found"), [("\n".join(REQUIREMENTS["jax"]) + "\n", True), ("jax==0.1\n", False), (None, False)]
)
def test_an_environment_is_found_if_it_was_completed_with_these_versions(
    stamp: str | None, found: bool, tmp_path: Path
) -> None:
    (tmp_path / "jax").mkdir()
    if stamp is not None:
        (tmp_path / "jax" / "installed.txt").write_text(stamp)
    if found:
        assert python_of("jax", tmp_path) == tmp_path / "jax" / "bin" / "python"
    else:
        with pytest.raises(MissingEnvironmentError, match="not installed: run make bench-peers ARGS=jax"):
            python_of("jax", tmp_path)


@pytest.mark.slow
def test_data_parallel_steps_of_pytorch_are_those_of_one_process(tmp_path: Path) -> None:
    """Both ranks have the same batch, so the mean of their gradients is the gradient of one process."""
    try:
        python_of(DDP.environment)
    except MissingEnvironmentError as error:
        pytest.skip(str(error))
    prepare(["model=mlp", "optimizer=momentum", "train.batch_size=32", "cluster.threads_per_worker=1"], tmp_path)
    folder, losses = str(tmp_path), []
    for spec in (PEERS[0].on(folder), DDP.on(folder)):
        with SubjectProcess(spec, threads=1, log=tmp_path / f"{spec.name}.log", pinned=False, timeout_s=100) as process:
            process.ask("load")
            losses.append(process.ask("run", phase="step", times=5)["losses"])
        assert not [each for each in psutil.process_iter(["cmdline"]) if folder in (each.info["cmdline"] or ())]
    alone, parallel = losses
    assert parallel == pytest.approx(alone, rel=1e-5)
    assert alone[-1] < alone[0]


def test_every_peer_has_an_environment_of_fixed_versions() -> None:
    assert {peer.environment for peer in (*PEERS, *EXCHANGE_PEERS)} | {"images"} == set(REQUIREMENTS)
    assert all("==" in requirement for each in REQUIREMENTS.values() for requirement in each)


class Recorder:
    """A subject that reports 100 s for the first runs of a turn, then 1 s. fails_at: the call, from 1, that fails."""

    def __init__(self, name: str, calls: list[str], fails_at: int = 0) -> None:
        self._name, self._calls, self._fails_at, self._count = name, calls, fails_at, 0

    def ask(self, do: str, **more: Any) -> dict[str, Any]:
        self._count += 1
        self._calls.append(self._name)
        if self._count == self._fails_at:
            raise SubjectError("ended with code 137: Killed")
        return {"seconds": [100.0] * SETTLING + [1.0] * (more["times"] - SETTLING)}


def test_every_subject_has_a_turn_per_round_and_the_first_subject_changes() -> None:
    calls: list[str] = []
    contestants = [Contestant(SubjectResult(name), Recorder(name, calls)) for name in "abc"]
    alternate(contestants, "step", rounds=3, turn=4)
    assert "".join(calls) == "abcbcacab"
    alternate(contestants, "forward", rounds=1, turn=3)
    assert [each.result.seconds for each in contestants] == [{"step": [1.0] * 12, "forward": [1.0] * 3}] * 3


def test_a_failing_subject_is_dropped_and_the_others_continue() -> None:
    calls: list[str] = []
    first = Contestant(SubjectResult("a"), Recorder("a", calls, fails_at=2))
    second = Contestant(SubjectResult("b"), Recorder("b", calls))
    alternate([first, second], "step", rounds=3, turn=1)
    assert (first.result.failure, first.result.seconds) == ("ended with code 137: Killed", {})
    assert second.result.seconds == {"step": [1.0] * 3}
    assert "".join(calls) == "abbab"


def test_a_subject_that_could_not_be_started_receives_no_request() -> None:
    missing = Contestant(SubjectResult("peer", failure="not installed"), None)
    alternate([missing], "step", rounds=2, turn=1)
    assert (missing.ask("memory"), missing.result.seconds) == (None, {})
