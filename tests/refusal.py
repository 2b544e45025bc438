"""A helper for tests of command lines that must be refused."""

import pytest

from runner.cli import main

Capture = pytest.CaptureFixture[str]


def refused(arguments: list[str], capsys: Capture, code: int = 2) -> str:
    """Run a command; require this exit code, an empty stdout and no traceback; return the error message."""
    assert main(arguments) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert "Traceback" not in err
    return err
