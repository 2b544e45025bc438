"""A command line that is refused."""

import pytest

from runner.cli import main

Capture = pytest.CaptureFixture[str]


def refused(arguments: list[str], capsys: Capture, code: int = 2) -> str:
    """Run, expect the exit code and no output, return the message."""
    assert main(arguments) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert "Traceback" not in err
    return err
