"""Load a plugin from a file or module, compute its checksum, and locate errors in its code."""

import errno
import hashlib
import importlib
import importlib.util
import re
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from runner.errors import ConfigError, DataError, ResourceError, RunnerError, as_runner_error
from runner.plugin.contract import Plugin
from runner.system.files import open_regular


@contextmanager
def plugin_errors(plugins: Mapping[str, str]) -> Iterator[None]:
    """Replace an error from the code of one of ``plugins`` by a ConfigError with file and line; other errors pass.

    plugins: as returned by :func:`~runner.plugin.installing.provenance`. A RunnerError always passes. A MemoryError
    from any code and the OSError of a full disk become a ResourceError.
    """
    try:
        yield
    except RunnerError:
        raise
    except MemoryError as error:
        raise as_runner_error(error) from error
    except Exception as error:  # the code of a plugin can raise any error
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise ResourceError(f"no space left on a disk: {error}; free space, then resume the run") from error
        # An error in a class of a Python session passes with its traceback, which the session shows.
        for reference in (each for each in plugins if not each.startswith(SESSION)):
            path = Path(reference if reference.endswith(".py") else str(sys.modules[reference].__file__))
            if (line := _line(path, error)) is not None:
                raise ConfigError(f"{path}:{line}: {reason(error)}") from error
        raise


def reason(error: Exception) -> str:
    """Return the text of an error, followed by a hint on how to see its traceback unless it is a RunnerError."""
    if isinstance(error, RunnerError):
        return str(error)
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    return f"{type(error).__name__}: {text}; correct it (--debug prints the traceback)"


def _line(path: Path, error: Exception) -> int | None:
    """Return the line of the innermost frame of an error in a file, or of its syntax error; None if there is none."""
    if isinstance(error, SyntaxError) and error.filename == str(path):
        return error.lineno
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    return lines[-1] if lines else None


OBJECT = "plugin"
"""Name of the module variable that refers to the :class:`Plugin` object."""

PIN = "#sha256="
"""Separator between a reference and the required checksum of its source."""

SESSION = "session:"
"""First characters of the references of classes that the user defined in a Python session, without a file."""

CALLBACKS = f"{SESSION}callback/"
"""First characters of the references of callbacks, which no configuration names."""

_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


@dataclass(frozen=True)
class Located:
    """A plugin whose source was read but not executed yet.

    reference: absolute path of a file, or name of a module. path: the source file. sha256: checksum of ``source``.
    """

    reference: str
    path: Path
    source: bytes
    sha256: str


def locate(reference: str) -> Located:
    """Find ``FILE.py`` or ``package.module``; if ``#sha256=HEX`` is appended, the source must have this checksum.

    Raises ConfigError if the source does not exist, is not Python, or has another checksum.
    """
    name, _, pin = reference.partition(PIN)
    path = Path(name).expanduser().absolute() if name.endswith(".py") else _path_of_module(name)
    try:
        with open_regular(path) as file:
            source = file.read()
    except DataError as error:
        raise ConfigError(f"--plugin {reference}: {error}") from error
    except OSError as error:
        raise ConfigError(f"--plugin {reference}: cannot read {path}: {error.strerror}") from error
    located = Located(str(path) if name.endswith(".py") else name, path, source, hashlib.sha256(source).hexdigest())
    if pin and pin != located.sha256:
        fault = f"its SHA-256 is {located.sha256}, expected {pin} of --plugin {reference}"
        raise ConfigError(f"{path} was changed: {fault}; use the pinned source, or remove the part from # on")
    return located


def execute(located: Located) -> Plugin:
    """Execute a plugin's code and return its :class:`Plugin`. Raises ConfigError, with the line, for any error."""
    try:
        by_file = located.reference.endswith(".py")
        module = _execute_file(located) if by_file else importlib.import_module(located.reference)
    except Exception as error:  # the module can raise any error
        line = _line(located.path, error)
        place = located.path if line is None else f"{located.path}:{line}"
        raise ConfigError(f"{place}: {reason(error)}") from error
    found = getattr(module, OBJECT, None)
    if not isinstance(found, Plugin):
        fault = f"{OBJECT} is of class {type(found).__name__}" if hasattr(module, OBJECT) else f"no {OBJECT} found"
        raise ConfigError(f"{located.path}: {fault}; expected `{OBJECT} = runner.plugin.Plugin(models={{...}}, ...)`")
    return found


def _path_of_module(name: str) -> Path:
    if not _MODULE.fullmatch(name):
        raise ConfigError(f"--plugin {name}: expected a file, FILE.py, or the name of a module that Python can import")
    try:
        spec = importlib.util.find_spec(name)
    except Exception as error:  # finding a module imports its parent packages, which can raise any error
        raise ConfigError(f"--plugin {name}: {reason(error)}") from error
    if spec is None or not spec.has_location or spec.origin is None:
        advice = "install it, add its folder to PYTHONPATH, or give its file, FILE.py"
        raise ConfigError(f"--plugin {name}: Python finds no module of that name; {advice}")
    return Path(spec.origin)


def _execute_file(located: Located) -> ModuleType:
    """Execute the bytes from which the checksum was computed, as a module with a unique name."""
    # Python looks up the types of dataclass fields through sys.modules.
    stem = re.sub(r"\W", "_", located.path.stem)
    module = ModuleType(f"runner_plugin_{stem}_{located.sha256[:8]}")
    module.__file__ = str(located.path)
    sys.modules[module.__name__] = module
    try:
        exec(compile(located.source, located.path, "exec"), vars(module))
    except BaseException:
        del sys.modules[module.__name__]
        raise
    return module
