"""Running Hydra's application with arguments in place of ``sys.argv``, raised errors and no side effects."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from hydra.core.global_hydra import GlobalHydra

VERSION_BASE = "1.3"
PROGRAM = "runner"

FULL_ERROR = "HYDRA_FULL_ERROR"
"""Environment variable that makes Hydra show tracebacks."""

HYDRA_SETTINGS = (
    f"hydra.job.name={PROGRAM}",
    # Runs have their own log; Hydra's handlers would repeat the messages of libraries on the terminal.
    "hydra/job_logging=none",
    "hydra/hydra_logging=none",
    # A run stores its configuration after it has locked its directory; Hydra would write before.
    "hydra.output_subdir=null",
)
"""Settings that neither the primary configuration nor the command line can change."""


@contextmanager
def application_arguments(arguments: Sequence[str]) -> Iterator[None]:
    """Let Hydra, which reads ``sys.argv``, read ``arguments``; restore its global state and the logging afterwards."""
    root = logging.getLogger()
    argv, handlers, level = sys.argv, root.handlers[:], root.level
    sys.argv = [PROGRAM, *arguments]
    GlobalHydra.instance().clear()
    try:
        yield
    finally:
        sys.argv = argv
        for handler in set(root.handlers) - set(handlers):
            root.removeHandler(handler)
            handler.close()
        root.setLevel(level)
        GlobalHydra.instance().clear()


@contextmanager
def errors_raised() -> Iterator[None]:
    """Make Hydra raise its errors: without this variable it prints them and exits with 1."""
    with _variable(FULL_ERROR, "1"):
        yield


@contextmanager
def safe_path() -> Iterator[None]:
    """Remove the working directory from the ``sys.path`` of Python processes of launchers such as joblib.

    Otherwise a file in it, such as random.py, is imported in place of a library.
    """
    with _variable("PYTHONSAFEPATH", "1"):
        yield


@contextmanager
def _variable(name: str, value: str) -> Iterator[None]:
    saved = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if saved is None:
            del os.environ[name]
        else:
            os.environ[name] = saved
