"""Earlier runs: found by directory or id, with their plugins."""

from pathlib import Path

import pytest

from runner.errors import ConfigError, DataError
from runner.records.run_directory import SUMMARY_FILE, RunDirectory
from runner.records.stored_run import PLUGINS_FILE, StoredRun, find_run, read_plugins, read_run, write_plugins
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


def test_a_summary_is_read_if_it_exists(tmp_path: Path) -> None:
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


def test_an_unknown_id_is_searched_in_the_store(tmp_path: Path) -> None:
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
def test_names_of_no_run_are_refused(text: str, directories: list[str], message: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match=message):
        find_run(text, tmp_path, lambda run_id: [Path(each) for each in directories])


def test_a_damaged_neighbour_is_passed_over(tmp_path: Path) -> None:
    run_id = make_run(tmp_path / "outputs/day/sound")
    make_run(tmp_path / "outputs/day/damaged")
    (tmp_path / "outputs/day/damaged/run.json").write_text("{")
    assert find_run(run_id, tmp_path, nowhere).run_id == run_id


def test_stored_plugins_are_read_back_and_none_differs_from_not_stored(tmp_path: Path) -> None:
    assert read_plugins(tmp_path) is None
    write_plugins(tmp_path, {"/x/m.py": "a" * 64})
    assert read_plugins(tmp_path) == {"/x/m.py": "a" * 64}
    write_plugins(tmp_path, {})
    assert read_plugins(tmp_path) == {}
    (tmp_path / PLUGINS_FILE).unlink()
    Summary("0123", "failed", "", "", "", 1, {}, "", "", plugins={"pack.m": "b" * 64}).write(tmp_path / SUMMARY_FILE)
    assert read_plugins(tmp_path) == {"pack.m": "b" * 64}, "as an earlier version kept them"


@pytest.mark.parametrize("text", ["", '{"m": 3}'])
def test_a_damaged_file_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / PLUGINS_FILE).write_text(text)
    with pytest.raises(DataError, match=r"plugins\.json is damaged: .*; expected references and the SHA-256"):
        read_plugins(tmp_path)
