"""Subjects in processes of their own: asked, timed, and found out when they fail."""

import os
import re
from pathlib import Path

import pytest

from benchmarks.environments import MissingEnvironmentError
from benchmarks.process import SubjectError, SubjectProcess
from benchmarks.protocol import peak_memory_mib
from benchmarks.subjects import SubjectSpec
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


def test_a_fault_is_reported_with_its_last_output(tmp_path: Path) -> None:
    with start(tmp_path, "breaks") as process:
        process.ask("run", phase="step", times=1)
        with pytest.raises(SubjectError, match="ended with code 1: RuntimeError: out of luck"):
            process.ask("run", phase="step", times=1)
        with pytest.raises(SubjectError, match="ended with code 1"):
            process.ask("memory")


def test_an_unknown_request_names_the_known(tmp_path: Path) -> None:
    with (
        start(tmp_path, "falls") as process,
        pytest.raises(SubjectError, match="request 'dance': expected start, load, run or memory"),
    ):
        process.ask("dance")


def test_who_does_not_answer_in_time_is_given_up(tmp_path: Path) -> None:
    with start(tmp_path, "sleeps", timeout_s=0.5) as process:
        with pytest.raises(SubjectError, match=re.escape("no answer within 0.5 s")):
            process.ask("run", phase="step", times=1)
        with pytest.raises(SubjectError, match="ended with code -9"):
            process.ask("memory")


def test_a_missing_environment_is_no_process(tmp_path: Path) -> None:
    spec = SubjectSpec("peer", "nonesuch", "benchmarks.peers.nonesuch")
    with pytest.raises(MissingEnvironmentError, match="not installed: make bench-peers ARGS=nonesuch"):
        SubjectProcess(spec, threads=1, log=tmp_path / "log")


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system does not hold processes to cores")
@pytest.mark.parametrize("pinned", [True, False])
def test_a_subject_has_as_many_cores_as_threads_and_we_keep_ours(pinned: bool, tmp_path: Path) -> None:
    with start(tmp_path, "falls", pinned=pinned) as process:
        assert usable_cores() == CORES
        assert process.ask("start")["versions"]["cores"] == ("1" if pinned else str(CORES))


def test_the_peak_of_memory_is_this_program_s_own() -> None:
    assert 5.0 < peak_memory_mib() < 100_000.0
