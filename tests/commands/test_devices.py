"""The command line if a GPU is requested and none is available."""

from pathlib import Path

import pytest

from runner.cli import main
from tests.refusal import refused

Capture = pytest.CaptureFixture[str]
SMALL = ("model=mlp", "parallelism=single", "tracking=none")


@pytest.mark.parametrize("verb", [(), ("explain",)])
def test_a_missing_gpu_is_a_resource_error(verb: tuple[str, ...], folder: Path, capsys: Capture) -> None:
    message = refused([*verb, *SMALL, "cluster.device=gpu"], capsys, code=4)
    assert "cluster.device=gpu: expected a GPU that can be used, but " in message
    assert "`runner doctor` lists what is available; cluster.device=cpu computes without a GPU" in message
    assert list(folder.glob("outputs/**/run.json")) == [], "nothing was begun"


def test_explain_gives_the_reason_for_the_cpu(folder: Path, capsys: Capture) -> None:
    assert main(["explain", *SMALL]) == 0
    out, _ = capsys.readouterr()
    assert "\ndevices                 1 on CPU; in one process\nchosen because          cluster.device=auto " in out
    assert main(["explain", *SMALL, "cluster.device=cpu"]) == 0
    assert "\nchosen because          cluster.device=cpu\n" in capsys.readouterr().out
