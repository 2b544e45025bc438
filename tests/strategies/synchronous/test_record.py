"""Records of contributors are read strictly, and refused if the number of workers differs."""

from pathlib import Path

import pytest

from runner.errors import ConfigError
from runner.strategies.synchronous.first_arrivals import contributors_of


def file_of(folder: Path, content: str) -> Path:
    path = folder / "contributors.jsonl"
    path.write_text(content)
    return path


def test_steps_and_workers_are_read_from_the_lines(tmp_path: Path) -> None:
    path = file_of(
        tmp_path, '{"step": 4, "contributors": [0, 2], "dropped": []}\n{"step": 5, "contributors": [1, 2]}\n'
    )
    assert contributors_of(path, workers=2, backups=1) == {4: (0, 2), 5: (1, 2)}


@pytest.mark.parametrize(
    "chosen", ["[0]", "[0, 1, 2]", "[0, 3]", "[-1, 0]", "[1, 0]", "[1, 1]", "[0, true]", '[0, "1"]', "3", "null"]
)
def test_workers_that_do_not_exist_are_refused(chosen: str, tmp_path: Path) -> None:
    path = file_of(tmp_path, f'{{"step": 0, "contributors": [0, 1]}}\n{{"step": 1, "contributors": {chosen}}}\n')
    expected = (
        r"^parallelism\.replay=.*contributors\.jsonl: found .*; expected a step and 2 different workers of 0 to 2"
    )
    with pytest.raises(ConfigError, match=expected):
        contributors_of(path, workers=2, backups=1)


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"the file is empty; expected a line for every update$"):
        contributors_of(file_of(tmp_path, ""), workers=2, backups=1)


@pytest.mark.parametrize("content", [None, "no JSON", "[" * 100_000])
def test_unreadable_files_are_refused(content: str | None, tmp_path: Path) -> None:
    path = tmp_path / "contributors.jsonl" if content is None else file_of(tmp_path, content)
    with pytest.raises(ConfigError, match=r"cannot be read \(.*\); expected contributors\.jsonl of an earlier run$"):
        contributors_of(path, workers=2, backups=1)
