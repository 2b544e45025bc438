"""What is said of an error that a plugin's code raised: the file and line it passed through last, and why."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from runner.errors import ConfigError, RunnerError, as_runner_error


@contextmanager
def faults_told(plugins: Mapping[str, str]) -> Iterator[None]:
    """Raise ConfigError, with file and line, for an error that came from one of ``plugins``; others pass as they are.

    plugins: by reference, as :func:`~runner.plugin.installing.provenance` gives them. A RunnerError says enough, and a
    MemoryError, whatever code raised it, becomes a ResourceError.
    """
    try:
        yield
    except RunnerError:
        raise
    except MemoryError as error:
        raise as_runner_error(error) from error
    except Exception as error:  # what code of the user's raises is about that code
        for path in map(_source, plugins):
            if lines := _lines(path, error):
                raise ConfigError(f"{path}:{lines[-1]}: {reason(error)}") from error
        raise


def place(path: Path, error: Exception) -> str:
    """``FILE:LINE`` where the error passed through the plugin last."""
    if isinstance(error, SyntaxError) and error.filename == str(path):
        return f"{path}:{error.lineno}"
    lines = _lines(path, error)
    return f"{path}:{lines[-1]}" if lines else str(path)


def reason(error: Exception) -> str:
    """What is wrong, and where there is more."""
    if isinstance(error, RunnerError):
        return str(error)
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    return f"{type(error).__name__}: {text}; correct it (--debug prints the traceback)"


def _source(reference: str) -> Path:
    return Path(reference if reference.endswith(".py") else str(sys.modules[reference].__file__))


def _lines(path: Path, error: Exception) -> list[int | None]:
    return [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
