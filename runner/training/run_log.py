"""Where the package's log goes while a run lives: all of it to a file of the run, warnings to the terminal as well."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from runner.system.redaction import SecretlessFormatter

_FILE_ONLY = "file_only"

TOLD_OTHERWISE: Mapping[str, bool] = {_FILE_ONLY: True}
"""``extra`` of a record that the terminal has in another way."""


@contextmanager
def logging_to(path: Path) -> Iterator[None]:
    """Send the package's log to a file of the run, from level INFO, and from WARNING to standard error too."""
    package = logging.getLogger("runner")
    level = package.level
    handlers = [_file_handler(path), _TerminalHandler()]
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


def _file_handler(path: Path) -> logging.Handler:
    handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(SecretlessFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    return handler


class _TerminalHandler(logging.Handler):
    """Prints on what is standard error at that moment: a progress bar puts its own in the place of it."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.setFormatter(SecretlessFormatter("%(message)s"))
        self.addFilter(lambda record: not hasattr(record, _FILE_ONLY))

    def emit(self, record: logging.LogRecord) -> None:
        """Print a record. What fails of that is no fault of who logs: the file has the record."""
        try:
            print(f"runner: {record.levelname.lower()}: {self.format(record)}", file=sys.stderr, flush=True)
        except OSError:
            self.handleError(record)
