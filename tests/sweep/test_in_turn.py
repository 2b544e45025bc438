import os
from pathlib import Path

import pytest

from runner.config.launcher import Launcher
from runner.sweep.in_turn import run_in_turn


def test_every_job_runs_and_the_first_failure_is_returned() -> None:
    ran: list[int] = []

    def run(number: int) -> None:
        ran.append(number)
        if number > 4:
            raise ValueError(number)

    failure = run_in_turn(run, {3: Path(), 5: Path(), 4: Path(), 6: Path()}, Launcher())
    assert ran == [3, 5, 4, 6]
    assert repr(failure) == "ValueError(5)"
    assert run_in_turn(run, {1: Path()}, Launcher()) is None


def test_a_directory_that_is_gone_ends_its_job_and_no_other(tmp_path: Path) -> None:
    ran: list[int] = []
    failure = run_in_turn(ran.append, {0: tmp_path / "absent", 1: tmp_path}, Launcher(in_job_directory=True))
    assert isinstance(failure, FileNotFoundError)
    assert ran == [1]


def test_an_interruption_ends_all() -> None:
    ran: list[int] = []

    def run(number: int) -> None:
        ran.append(number)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_in_turn(run, {1: Path(), 2: Path()}, Launcher())
    assert ran == [1]


@pytest.mark.parametrize("inside", [False, True])
def test_a_job_has_its_variables_and_its_directory_and_leaves_neither(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inside: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OLD", "before")
    monkeypatch.delenv("NEW", raising=False)
    (tmp_path / "job").mkdir()
    seen: list[tuple[str, str, Path]] = []

    def run(number: int) -> None:
        seen.append((os.environ["OLD"], os.environ["NEW"], Path.cwd()))
        raise ValueError(number)

    launcher = Launcher(environment={"OLD": "1", "NEW": "2"}, in_job_directory=inside)
    run_in_turn(run, {0: tmp_path / "job"}, launcher)
    assert seen == [("1", "2", tmp_path / "job" if inside else tmp_path)]
    assert (os.environ["OLD"], "NEW" in os.environ, Path.cwd()) == ("before", False, tmp_path)
