"""The terminal: command-line parsers, error messages, and the log of the package."""

import argparse
import logging
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from runner.errors import RunnerError
from runner.system.redaction import SecretlessFormatter, redact_text

DEBUG_OPTION = "--debug"
"""The option that prints tracebacks; it may be anywhere on a command line."""

_FILE_ONLY = "file_only"

NOT_ON_TERMINAL: Mapping[str, bool] = {_FILE_ONLY: True}
"""Argument ``extra`` of a log call whose text goes to the file only, because the terminal already shows the text."""


def print_error(error: BaseException, *, what: str = "runner", debug: bool = False) -> None:
    """Print an error to standard error, without secrets. A RunnerError is printed as ``what: error: message``.

    The traceback is printed if ``debug`` is true, or if the error is not a RunnerError and therefore a bug.
    """
    if debug or not isinstance(error, RunnerError):
        print(redact_text("".join(traceback.format_exception(error))), end="", file=sys.stderr)
    if isinstance(error, RunnerError):
        print(redact_text(f"{what}: error: {error}"), file=sys.stderr, flush=True)


@contextmanager
def logging_to(path: Path) -> Iterator[None]:
    """Within the block, write the package's log to a file (from level INFO) and to standard error (from WARNING)."""
    package = logging.getLogger("runner")
    level = package.level
    to_file = logging.FileHandler(path, encoding="utf-8")
    to_file.setFormatter(SecretlessFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    handlers = [to_file, _TerminalHandler()]
    for handler in handlers:
        package.addHandler(handler)
    package.setLevel(logging.INFO)
    try:
        yield
    finally:
        for handler in handlers:
            package.removeHandler(handler)
            handler.close()
        package.setLevel(level)


class _TerminalHandler(logging.Handler):
    """A log handler that prints to the current ``sys.stderr``, which a progress bar replaces while it is shown."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.setFormatter(SecretlessFormatter("%(message)s"))
        self.addFilter(lambda record: not hasattr(record, _FILE_ONLY))

    def emit(self, record: logging.LogRecord) -> None:
        """Print a record. A failure to print is reported by the logging module and raises nothing."""
        try:
            print(f"runner: {record.levelname.lower()}: {self.format(record)}", file=sys.stderr, flush=True)
        except OSError:
            self.handleError(record)


def verb_parser(verb: str, description: str, epilog: str) -> argparse.ArgumentParser:
    """Return the parser of ``runner VERB``; the line breaks of description and epilog are kept."""
    return argparse.ArgumentParser(
        prog=f"runner {verb}",
        description=description,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
