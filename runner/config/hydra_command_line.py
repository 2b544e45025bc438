"""What every use of Hydra's application needs: arguments in place of ``sys.argv``, errors raised, no trace left."""

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
"""Variable of the environment by which Hydra shows tracebacks."""

HYDRA_SETTINGS = (
    f"hydra.job.name={PROGRAM}",
    # Runs keep their own log; Hydra's handlers would repeat every library's messages on the terminal.
    "hydra/job_logging=none",
    "hydra/hydra_logging=none",
    # A run stores its configuration once it holds its directory; Hydra would write before that is known.
    "hydra.output_subdir=null",
)
"""What holds whatever the primary configuration and the command line say."""


@contextmanager
def application_arguments(arguments: Sequence[str]) -> Iterator[None]:
    """Let Hydra, which reads ``sys.argv``, read ``arguments``; leave no trace of an application that ran."""
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
    """Have Hydra raise its errors: without this variable it prints them in its own way and exits with 1."""
    with _variable(FULL_ERROR, "1"):
        yield


@contextmanager
def safe_path() -> Iterator[None]:
    """Keep the working directory off the ``sys.path`` of Python processes that launchers such as joblib start.

    Otherwise a file there, such as random.py, is imported in place of a library.
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
