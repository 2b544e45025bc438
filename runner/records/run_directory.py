"""The directory of one run: who holds it, which run it is, how often it was started, where its files lie."""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import shlex
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Annotated, Self

from runner.errors import CheckpointError, ConfigError, DirectoryInUseError, ResourceError
from runner.system.files import create_directory, fsync_directory, replace_durably
from runner.system.json_file import JsonFile
from runner.system.schema import Integer, Record, Text

CONFIG_FILE = "config.yaml"
"""The resolved configuration of a run, in its directory."""

PLACEMENT_FILE = "placement.json"
"""Where the layers of a model-parallel run are, in its directory."""

RUN_FILE = "run.json"
"""The identifier of a run and the number of its starts, in its directory: the first file that a start writes."""

SUMMARY_FILE = "summary.json"
"""The record of a run, in its directory."""

_MAX_PID_BYTES = 20


@dataclass(frozen=True)
class _State:
    """The content of ``run.json``, which is kept over the restarts of a run."""

    run_id: Annotated[str, Text(128, r"[A-Za-z0-9._-]+")]
    epoch: Annotated[int, Integer(1)]


_STATE: JsonFile[_State] = JsonFile(
    Record(_State), CheckpointError, "the checkpoints next to it are not affected", limit=65_536
)


class RunDirectory:
    """A run directory held by this process until it is closed; use it as a context manager.

    Get one from :meth:`open`. The folders ``checkpoints``, ``plots`` and ``workers`` exist from then on;
    the files do not.
    """

    def __init__(self, path: Path, lock: int, state: _State) -> None:
        self.path = path
        self._lock = lock
        self._state = state

    @classmethod
    def open(cls, path: str | os.PathLike[str], resume: bool) -> RunDirectory:
        """Take the directory for a new run, or for the next start of the run it holds when ``resume``.

        A new run gets an unguessable ``run_id`` and epoch 1; each resume increments the epoch, on the disk,
        under the lock. The directory of a new run holds a run once :meth:`store_configuration` has returned;
        if the process is killed before, the directory can be opened for a new run again. Raises
        DirectoryInUseError when another process holds it or, without ``resume``, when it holds a run already;
        ConfigError when there is no run to resume; ResourceError when it cannot be created or written;
        CheckpointError when ``run.json`` is damaged.
        """
        path = Path(path).absolute()
        with _writing(path), ExitStack() as on_failure:
            if resume:
                _require_run(path)
            create_directory(path)
            lock = _take_lock(path)
            on_failure.callback(os.close, lock)
            state = _next_state(path, resume)
            _STATE.write(path / RUN_FILE, state)
            for folder in ("checkpoints", "plots", "workers"):
                (path / folder).mkdir(exist_ok=True)
            fsync_directory(path)
            on_failure.pop_all()
        return cls(path, lock, state)

    def close(self) -> None:
        """Release the directory. The lock file stays: were it deleted, two processes could hold one each."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def run_id(self) -> str:
        """16 hex digits, drawn when the run was first started."""
        return self._state.run_id

    @property
    def epoch(self) -> int:
        """How many times the run was started, this time included."""
        return self._state.epoch

    @property
    def config_yaml(self) -> Path:
        """The resolved configuration."""
        return self.path / CONFIG_FILE

    def store_configuration(self, text: bytes, *, private: bool = False) -> None:
        """Store the configuration of this start of the run; private: only its owner may read the file.

        Call it last of all that prepares the directory: from then on the directory holds a run that can be resumed. A
        different configuration of earlier starts is kept as ``config-N.yaml``, where N is the last of these starts.
        """
        stored = self.config_yaml
        if stored.exists() and (earlier := stored.read_bytes()) != text:
            mode = stat.S_IMODE(stored.stat().st_mode)  # it may hold a secret that the new one does not
            replace_durably(self.path / f"config-{self.epoch - 1}.yaml", earlier, mode)
        replace_durably(stored, text, 0o600 if private else 0o666)

    @property
    def code_diff(self) -> Path:
        """What was changed in the code since its commit, at this start of the run."""
        return self.path / code_diff_file(self.epoch)

    @property
    def shown_config_yaml(self) -> Path:
        """The same without secrets, where it has any: for the tracking record."""
        return self.path / "shown" / "config.yaml"

    @property
    def log(self) -> Path:
        """The log of the master."""
        return self.path / "run.log"

    @property
    def summary_json(self) -> Path:
        """The record of the run."""
        return self.path / SUMMARY_FILE

    @property
    def metrics_jsonl(self) -> Path:
        """The metrics, one JSON object a line."""
        return self.path / "metrics.jsonl"

    @property
    def graph_dot(self) -> Path:
        """The picture of the graph in Graphviz's language."""
        return self.path / "graph.dot"

    @property
    def trace_json(self) -> Path:
        """The timeline of some steps, where one was asked for."""
        return self.path / "trace.json"

    @property
    def trace_summary_json(self) -> Path:
        """Critical paths and waits of those steps."""
        return self.path / "trace_summary.json"

    @property
    def placement_json(self) -> Path:
        """Where the layers of a model-parallel run are."""
        return self.path / PLACEMENT_FILE

    @property
    def endings_jsonl(self) -> Path:
        """In which order launched clients ended since this start of the run."""
        return self.path / f"endings-{self.epoch}.jsonl"

    @property
    def asynchronous_json(self) -> Path:
        """What was decided since this start of the run, where the configuration does not decide everything."""
        return self.path / "asynchronous.json"

    def decisions_jsonl(self, name: str) -> Path:
        """Decisions of every update that no configuration states, by the name of their record."""
        return self.path / f"{name}.jsonl"

    @property
    def checkpoints(self) -> Path:
        """The folder of the checkpoints ``step-N``."""
        return self.path / "checkpoints"

    @property
    def plots(self) -> Path:
        """The folder of the plots."""
        return self.path / "plots"

    @property
    def workers(self) -> Path:
        """The folder of the logs of the workers."""
        return self.path / "workers"


def code_diff_file(start: int) -> str:
    """The file with what was changed in the code since its commit, at this start of a run, counted from 1."""
    return "code.diff" if start == 1 else f"code-{start}.diff"


def holds_run(path: Path) -> bool:
    """Whether a directory holds a run: its preparation was completed, so that the run can be resumed."""
    return (path / RUN_FILE).exists() and (path / CONFIG_FILE).exists()


@contextmanager
def held(path: Path) -> Iterator[None]:
    """Keep the run in a directory from being started, while something is done for it after its end.

    Raises DirectoryInUseError when another process holds it, OSError.
    """
    lock = _take_lock(path)
    try:
        yield
    finally:
        os.close(lock)


def run_and_starts(path: Path) -> tuple[str, int]:
    """Return the run_id of the run a directory holds, and how many times that was started.

    Raises CheckpointError where its ``run.json`` is damaged, OSError where it cannot be read.
    """
    state = _STATE.read(path / RUN_FILE)
    return state.run_id, state.epoch


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ResourceError(
            f"cannot write in {path}: {error.strerror} ({error.filename or path}); expected a writable "
            "directory with free space. Choose another one with hydra.run.dir=DIR"
        ) from error


def _require_run(path: Path) -> None:
    """Refuse before anything is created: the path given to resume may be a mistake."""
    if not (path / RUN_FILE).exists():
        raise ConfigError(
            f"resume={path}: there is no run to resume (no {RUN_FILE}); expected the directory of an earlier run"
        )


def _take_lock(path: Path) -> int:
    """Lock ``run.lock`` for as long as the returned descriptor is open; write this process's id in it."""
    lock = os.open(path / "run.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(lock, 0)
        os.pwrite(lock, b"%d\n" % os.getpid(), 0)
    except OSError as error:
        holder = os.pread(lock, _MAX_PID_BYTES, 0).strip()
        os.close(lock)
        if error.errno != errno.EWOULDBLOCK:
            raise
        process = f"process {int(holder)}" if holder.isdigit() else "another process"
        raise DirectoryInUseError(
            f"{path} is in use by {process}: wait for that run, stop it, or choose another directory with "
            "hydra.run.dir=DIR"
        ) from None
    return lock


def _next_state(path: Path, resume: bool) -> _State:
    """Return the state this start of the run begins with; the caller holds the lock."""
    if resume:
        state = _STATE.read(path / RUN_FILE)
        return replace(state, epoch=state.epoch + 1)
    # A run that lost its run.json or configuration keeps its checkpoints: those of another run would replace them.
    if holds_run(path) or any((path / "checkpoints").glob("step-*")):
        raise DirectoryInUseError(
            f"{path} already holds a run: continue it with `runner resume={shlex.quote(str(path))}`, or choose another "
            "directory with hydra.run.dir=DIR"
        )
    if (path / CONFIG_FILE).exists():
        # Not of a run. It must not be taken for the configuration of this one if the process is killed before its own.
        os.rename(path / CONFIG_FILE, path / "config-0.yaml")
    return _State(run_id=secrets.token_hex(8), epoch=1)
