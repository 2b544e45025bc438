"""``runner list``: one line for each option."""

from pathlib import Path

import pytest

from runner.cli import main
from runner.commands.list import KINDS, leading_comment, lines
from runner.config.conf_dir import conf_dir
from runner.config.configuration import GROUPS
from tests.refusal import Capture, refused


@pytest.mark.parametrize("kind", KINDS)
def test_every_entry_of_a_table_and_every_yaml_file_has_a_separate_line(kind: str) -> None:
    found = lines(kind, [conf_dir()])
    group = KINDS[kind]
    assert set(found) == {*GROUPS.get(group, ()), *(file.stem for file in (conf_dir() / group).glob("*.yaml"))}
    assert found
    for name, line in found.items():
        assert 20 < len(line) < 200, name
        assert line.endswith((".", "?", "w + v.")), name
        assert "Settings of" not in line, name
        assert not set(line) & set("`\n"), name
    assert len(set(found.values())) == len(found)


@pytest.mark.parametrize("kind", KINDS)
def test_the_command_prints_a_line_each(kind: str, capsys: Capture) -> None:
    assert main(["list", kind]) == 0
    _, *printed = capsys.readouterr().out.splitlines()
    assert [tuple(line.split(maxsplit=1)) for line in printed] == list(lines(kind, [conf_dir()]).items())


def test_without_a_kind_the_kinds_are_listed(capsys: Capture) -> None:
    assert main(["list"]) == 0
    output = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in output[1:]] == list(KINDS)
    assert "parallelism=NAME" in output[5]
    assert "+debug=NAME" in output[7]


def test_yaml_files_of_the_user_are_listed_too(folder: Path, capsys: Capture) -> None:
    (folder / "own" / "experiment").mkdir(parents=True)
    (folder / "own" / "experiment" / "mine.yaml").write_text(
        "# @package _global_\n# Mine (after X et al. 2012). More.\n"
    )
    assert main(["list", "experiments", "--config-dir", "own"]) == 0
    output = capsys.readouterr().out
    assert "\nmine " in output
    assert "  Mine (after X et al. 2012).\n" in output
    assert "\nmnist_lenet " in output


def test_an_unknown_kind_is_refused_with_the_known_ones(capsys: Capture) -> None:
    assert "invalid choice: 'model'" in refused(["list", "model"], capsys)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("# @package _global_\n# One.\n#   runner x\n# Two.\n", "One."),
        ("# Does it run? Then go on.\nx: 1\n# Later.\n", "Does it run?"),
        ("# On two\n# lines: 98.5 % here.\n", "On two lines: 98.5 % here."),
        ("x: 1\n", ""),
    ],
)
def test_a_leading_comments_first_sentence_is_taken(text: str, sentence: str, tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(text)
    assert leading_comment(file) == sentence
