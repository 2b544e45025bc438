"""The directory of one run: its lock, the identity and the number of starts of the run, and the paths of its files."""

import os
import secrets
import shlex
import stat
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Self

from runner.errors import CheckpointError, ConfigError, DirectoryInUseError
from runner.system.files import create_directory, fsync_directory, replace_durably, take_lock, writing
from runner.system.json_file import JsonFile
from runner.system.schema import Integer, Record, Text

CONFIG_FILE = "config.yaml"  # the resolved configuration
PLACEMENT_FILE = "placement.json"  # the device of each layer
RUN_FILE = "run.json"
"""The file with the identifier of a run and the number of its starts. Each start of the run writes this file first."""

SUMMARY_FILE = "summary.json"  # the summary (:class:`~runner.records.summary.Summary`)
METRICS_FILE = "metrics.jsonl"  # the metrics (:mod:`runner.tracking.metrics_log`)
LOG_FILE = "run.log"  # the log of the master
RECOVERIES_FILE = "recoveries.jsonl"  # the recoveries (:mod:`runner.records.recoveries`)
SESSION_FOLDER = "session"
"""The folder, in the directory of a run, with the sources of classes that a Python session passed to the run."""

_MAX_PID_BYTES = 20
_CHOICE = "hydra.run.dir=DIR, or with --output DIR of `runner rerun` and `runner adapt`"


@dataclass(frozen=True)
class _State:
    """The content of ``run.json``, which survives restarts of a run."""

    run_id: Annotated[str, Text(128, r"[A-Za-z0-9._-]+")]
    epoch: Annotated[int, Integer(1)]


_STATE: JsonFile[_State] = JsonFile(
    Record(_State), CheckpointError, "the checkpoints next to it are not affected", limit=65_536
)


class RunDirectory:
    """A run directory, locked by this process until :meth:`close`; use it as a context manager.

    :meth:`open` returns an instance and creates the folders ``checkpoints``, ``plots`` and ``workers``.
    """

    def __init__(self, path: Path, lock: int, state: _State) -> None:
        self.path = path
        self._lock = lock
        self.run_id = state.run_id  # 16 hex digits, drawn when the run was first started
        self.epoch = state.epoch  # the number of starts of the run, this one included
        self.config_yaml = path / CONFIG_FILE  # the resolved configuration
        self.shown_config_yaml = path / "shown" / "config.yaml"  # the configuration without secrets, for tracking
        self.log = path / LOG_FILE
        self.summary_json = path / SUMMARY_FILE
        self.metrics_jsonl = path / METRICS_FILE
        self.graph_dot = path / "graph.dot"  # the graph in the DOT language of Graphviz
        self.trace_json = path / "trace.json"  # the timeline of some steps
        self.trace_summary_json = path / "trace_summary.json"  # critical paths and waits of these steps
        self.placement_json = path / PLACEMENT_FILE
        self.recoveries_jsonl = path / RECOVERIES_FILE
        self.asynchronous_json = path / "asynchronous.json"  # number of steps of each replica, staleness of pushes
        self.checkpoints = path / "checkpoints"
        self.plots = path / "plots"
        self.model = path / "model"  # the network for an MLflow model, with tracking.log_model
        self.workers = path / "workers"  # the logs of the workers

    @classmethod
    def open(cls, path: str | os.PathLike[str], resume: bool) -> "RunDirectory":
        """Lock the directory for a new run or, with ``resume``, for the next start of the run in it.

        A new run gets an unguessable ``run_id`` and epoch 1; each resume increments the epoch on the disk, under the
        lock. The directory holds a run once :meth:`store_configuration` has returned. If the process is killed earlier,
        the directory can be opened for a new run again. Raises DirectoryInUseError if another process has locked
        the directory or, without ``resume``, if it already holds a run; ConfigError if there is no run to resume;
        ResourceError if it cannot be created or written; CheckpointError if ``run.json`` is damaged.
        """
        path = Path(path).absolute()
        with _writing(path), ExitStack() as on_failure:
            # If there is no run to resume, nothing is created, because the path may be a mistake.
            if resume and not (path / RUN_FILE).exists():
                expected = "the directory of an earlier run"
                raise ConfigError(f"resume={path}: there is no run to resume (no {RUN_FILE}); expected {expected}")
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

    @property
    def code_diff(self) -> Path:
        """The file with the changes of the code since its commit, at this start."""
        return self.path / code_diff_file(self.epoch)

    @property
    def endings_jsonl(self) -> Path:
        """The file with the order in which launched clients ended during this start."""
        return self.path / f"endings-{self.epoch}.jsonl"

    def next_start(self) -> int:
        """Count the start of new worker processes as another start of the run; return the number of this start.

        Raises ResourceError if the number cannot be stored.
        """
        before = self.code_diff
        with _writing(self.path):
            _STATE.write(self.path / RUN_FILE, _State(self.run_id, self.epoch + 1))
            self.epoch += 1
            if before.exists():  # the code is that of the earlier start
                self.code_diff.hardlink_to(before)
        return self.epoch

    def close(self) -> None:
        """Unlock the directory. The lock file stays: if it were deleted, two processes could lock different files."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def store_configuration(self, text: bytes, *, private: bool = False) -> None:
        """Store the configuration of this start of the run. private: whether to let only the owner read the file.

        Call this after all other preparations: from then on the directory holds a run that can be resumed. If the start
        before this one, number N, had another configuration, that configuration is kept as ``config-N.yaml``.
        """
        stored = self.config_yaml
        if stored.exists() and (earlier := stored.read_bytes()) != text:
            mode = stat.S_IMODE(stored.stat().st_mode)  # the earlier text may contain a secret that the new text lacks
            replace_durably(self.path / f"config-{self.epoch - 1}.yaml", earlier, mode)
        replace_durably(stored, text, 0o600 if private else 0o666)

    def decisions_jsonl(self, name: str) -> Path:
        """Return the path of ``name``.jsonl, a file of decisions (see :mod:`runner.records.decisions`)."""
        return self.path / f"{name}.jsonl"


def code_diff_file(start: int) -> str:
    """Return the name of the file with the code changes since the commit, at start number ``start`` (from 1)."""
    return "code.diff" if start == 1 else f"code-{start}.diff"


def holds_run(path: Path) -> bool:
    """Return whether the preparation of a run in this directory was completed, so that the run can be resumed."""
    return (path / RUN_FILE).exists() and (path / CONFIG_FILE).exists()


def require_unused(path: Path) -> None:
    """Raise DirectoryInUseError if a directory holds a run, or its checkpoints, which a new run would replace.

    Raises ResourceError if the directory cannot be read.
    """
    with _writing(path):
        # The checkpoints remain if run.json or the configuration of a run was lost.
        used = holds_run(path) or any((path / "checkpoints").glob("step-*"))
    if used:
        advice = f"continue it with `runner resume={shlex.quote(str(path))}`, or choose another directory"
        raise DirectoryInUseError(f"{path} already holds a run: {advice} with {_CHOICE}")


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of a run directory within the block, so that no run starts in it.

    Raises OSError or DirectoryInUseError.
    """
    lock = _take_lock(path)
    try:
        yield
    finally:
        os.close(lock)


def run_and_starts(path: Path) -> tuple[str, int]:
    """Return the run_id of the run in a directory, and the number of its starts.

    Raises CheckpointError if its ``run.json`` is damaged or cannot be read, FileNotFoundError if there is none.
    """
    state = _STATE.read(path / RUN_FILE)
    return state.run_id, state.epoch


def _writing(path: Path) -> AbstractContextManager[None]:
    advice = f"expected a writable directory with free space. Choose another one with {_CHOICE}"
    return writing(f"in {path}", advice)


def _take_lock(path: Path) -> int:
    """Lock ``run.lock`` and write the id of this process to it. The lock lasts until the returned descriptor closes."""
    lock = os.open(path / "run.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with ExitStack() as on_failure:
        on_failure.callback(os.close, lock)
        if not take_lock(lock):
            holder = os.pread(lock, _MAX_PID_BYTES, 0).strip()
            process = f"process {int(holder)}" if holder.isdigit() else "another process"
            advice = f"wait for that run, stop it, or choose another directory with {_CHOICE}"
            raise DirectoryInUseError(f"{path} is in use by {process}: {advice}")
        os.ftruncate(lock, 0)
        os.pwrite(lock, b"%d\n" % os.getpid(), 0)
        on_failure.pop_all()
    return lock


def _next_state(path: Path, resume: bool) -> _State:
    """Return the state of this start of the run; the caller holds the lock."""
    if resume:
        state = _STATE.read(path / RUN_FILE)
        return replace(state, epoch=state.epoch + 1)
    require_unused(path)
    if (path / CONFIG_FILE).exists():
        # This file belongs to no run. If the new run is killed early, the file must not be read as its configuration.
        os.rename(path / CONFIG_FILE, path / "config-0.yaml")
    return _State(run_id=secrets.token_hex(8), epoch=1)
