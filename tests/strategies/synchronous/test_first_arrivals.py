"""Records of the shares that counted: they are read by step, and refused if they are of another run."""

from pathlib import Path

import pytest

from runner.errors import ConfigError
from runner.strategies.synchronous.first_arrivals import contributors_of

FIRST = '{"step": 4, "contributors": [0, 2], "dropped": []}\n'
WRONG = r"found .*; expected a step and 2 different workers of 0 to 2 in rising order"
UNREADABLE = r"cannot be read \(.*\); expected contributors\.jsonl of an earlier run$"


def read(content: str | None, folder: Path) -> dict[int, tuple[int, ...]]:
    """Return the contributors in a file of this content; None for no file."""
    path = folder / "contributors.jsonl"
    if content is not None:
        path.write_text(content)
    return contributors_of(path, workers=2, backups=1)


def test_contributors_are_read_by_step(tmp_path: Path) -> None:
    assert read(FIRST + '{"step": 5, "contributors": [1, 2]}\n', tmp_path) == {4: (0, 2), 5: (1, 2)}


CHOSEN = ("[0]", "[0, 1, 2]", "[0, 3]", "[-1, 0]", "[1, 0]", "[1, 1]", "[0, true]", '[0, "1"]', "3", "null")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        *((f'{FIRST}{{"step": 5, "contributors": {chosen}}}\n', WRONG) for chosen in CHOSEN),
        ("", r"the file is empty; expected a line for every update$"),
        *((content, UNREADABLE) for content in (None, "no JSON", "[" * 100_000)),
    ],
)
def test_a_file_without_the_contributors_of_such_a_run_is_refused(
    content: str | None, message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=rf"^parallelism\.replay=.*contributors\.jsonl: {message}"):
        read(content, tmp_path)
