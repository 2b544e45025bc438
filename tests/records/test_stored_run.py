"""Runs are found by their directory or by how their id begins."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner.errors import ConfigError
from runner.records.run_directory import RunDirectory
from runner.records.stored_run import StoredRun, find_run, read_run
from runner.records.summary import Summary


def make_run(path: Path, *, starts: int = 1) -> str:
    """A directory of a run that was killed; returns its id."""
    for start in range(starts):
        with RunDirectory.open(path, resume=start > 0) as directory:
            directory.config_yaml.touch()
    return directory.run_id


def nowhere(run_id: str) -> list[Path]:
    """A store that knows no runs."""
    return []


def test_a_directory_is_read(tmp_path: Path) -> None:
    run_id = make_run(tmp_path / "run", starts=3)
    assert find_run("run", tmp_path, nowhere) == StoredRun(tmp_path / "run", run_id, 3, None)


def test_a_summary_is_read_where_there_is_one(tmp_path: Path) -> None:
    run_id = make_run(tmp_path)
    summary = Summary(run_id, "failed", "", "", "single", 1, {}, "", "")
    summary.write(tmp_path / "summary.json")
    assert read_run(tmp_path).summary == summary


@pytest.mark.parametrize("place", ["outputs/2026-01-31/12-00-00", "outputs/mine", "multirun/2026-01-31/12-00-00/3"])
def test_an_id_is_found_among_the_outputs(place: str, tmp_path: Path) -> None:
    run_id = make_run(tmp_path / place)
    make_run(tmp_path / "outputs/2026-01-31/other")
    assert find_run(run_id, tmp_path, nowhere).path == tmp_path / place
    assert find_run(run_id[:8], tmp_path, nowhere).path == tmp_path / place


def test_an_id_that_is_not_there_is_asked_of_the_store(tmp_path: Path) -> None:
    run_id = make_run(tmp_path / "elsewhere")
    asked = []

    def store(text: str) -> list[Path]:
        asked.append(text)
        return [tmp_path / "elsewhere"]

    assert find_run(run_id, tmp_path, store).run_id == run_id
    assert asked == [run_id]


@pytest.mark.parametrize(
    ("text", "directories", "message"),
    [
        ("absent", [], r"absent: no such directory; expected the directory of a run, or a run id"),
        ("abcd", [], r"abcd: no run with this id below .*, in outputs or multirun, or in the tracking store"),
        ("abcd", ["gone"], r"abcd: the directory of this run is gone: gone"),
        ("abcd", ["a", "b"], r"abcd: several runs have such an id: a, b; give more digits"),
        ("empty", [], r"empty holds no config\.yaml: not the directory of a run"),
    ],
)
def test_what_names_no_run_is_refused(text: str, directories: list[str], message: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match=message):
        find_run(text, tmp_path, lambda run_id: [Path(each) for each in directories])


def test_a_damaged_neighbour_is_passed_over(tmp_path: Path) -> None:
    run_id = make_run(tmp_path / "outputs/day/sound")
    make_run(tmp_path / "outputs/day/damaged")
    (tmp_path / "outputs/day/damaged/run.json").write_text("{")
    assert find_run(run_id, tmp_path, nowhere).run_id == run_id
