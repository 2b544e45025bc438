"""How a failure is told on the terminal."""

from __future__ import annotations

import sys
import traceback

from runner.errors import RunnerError
from runner.system.redaction import redact_text

DEBUG_OPTION = "--debug"
"""Wherever it stands on a command line, it has tracebacks shown."""


def print_error(error: BaseException, *, what: str = "runner", debug: bool = False) -> None:
    """Print ``what: error: message`` on standard error, without secrets.

    An exception that is not a RunnerError is a defect and shows where it was raised; with ``debug`` all do.
    """
    if debug or not isinstance(error, RunnerError):
        print(redact_text("".join(traceback.format_exception(error))), end="", file=sys.stderr)
    if isinstance(error, RunnerError):
        print(redact_text(f"{what}: error: {error}"), file=sys.stderr, flush=True)
