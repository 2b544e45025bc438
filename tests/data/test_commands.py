"""The command ``runner data``."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner.data import fetch as commands
from runner.data.fetch import main
from runner.data.origins import ORIGINS


def test_list_tells_what_is_there_and_how_to_get_the_rest(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    main(["list", "--cache-dir", str(tmp_path)])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [
        "name",
        "digits",
        "synthetic",
        "mnist",
        "fashion_mnist",
        "cifar10",
        "arrays",
        "image_folder",
    ]
    assert lines[1].split(maxsplit=5)[1:] == ["1x8x8", "10", "1438", "359", "nothing to fetch"]
    assert lines[3].endswith("to get it: runner data fetch mnist")
    assert lines[6].endswith("your files: name an .npz file, as in data=arrays data.path=my.npz")


def test_fetch_fills_the_cache_that_list_then_shows(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tiny,
    tiny_members,
    make_tar,
    serve,
):
    monkeypatch.setitem(ORIGINS, "tiny", (tiny.published, (serve(make_tar(tiny_members)),)))
    root = tmp_path / "cache"
    main(["fetch", "tiny", "--cache-dir", str(root)])
    assert f"tiny: stored in {root / 'tiny'}" in capsys.readouterr().out
    monkeypatch.setitem(commands.DATASETS, "tiny", lambda: _Settings(tiny.published.facts))
    main(["list", "--cache-dir", str(root)])
    assert capsys.readouterr().out.splitlines()[-1].endswith(str(root / "tiny"))


class _Settings:
    """Just enough of a dataset's settings for the table."""

    def __init__(self, facts: object) -> None:
        self.facts = lambda: facts


@pytest.mark.parametrize("arguments", [[], ["fetch"], ["fetch", "digits"], ["take", "mnist"]])
def test_wrong_arguments_exit_as_a_configuration_error(arguments: list[str], capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert "usage: runner data" in capsys.readouterr().err
