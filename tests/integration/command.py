"""Run the command ``runner`` in a folder: in this process, or in a separate process that can be killed."""

import io
import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn
from unittest.mock import patch

import psutil
import pytest

from runner.cli import main
from runner.engine.cluster.transport.private_directory import SHARED_MEMORY, remove_abandoned
from runner.engine.run.kernel_table import load_kernels
from runner.records.summary import Summary
from tests.plugin_tables import restored_tables

LIMIT_S = 90.0
QUIET = ("tracking=none", "tracking.pictures=false", "cluster.threads_per_worker=1")
"""Overrides for a run with few records and one thread per worker."""

ENVIRONMENT = {"OPENBLAS_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}


class Command:
    """A ``runner`` command in a separate process; ``finish`` collects its output. environment: additional variables."""

    def __init__(
        self,
        folder: Path,
        *arguments: str,
        executable: tuple[str, ...] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._process = subprocess.Popen(
            [*(executable or (sys.executable, "-m", "runner")), *arguments],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **ENVIRONMENT, **(environment or {})},
        )
        self.pid = self._process.pid
        self.output = ""
        self.errors = ""

    def finish(self) -> int:
        """Wait for the end of the process and return its exit code."""
        self.output, self.errors = self._process.communicate(timeout=LIMIT_S)
        return self._process.returncode

    def wait(self) -> None:
        """Wait for the end of the process, even if other processes still hold its output open."""
        self._process.wait(timeout=LIMIT_S)

    def kill(self) -> None:
        """Kill the process if it still runs."""
        if self._process.poll() is None:
            self._process.kill()
            self.finish()

    def send(self, signum: signal.Signals) -> None:
        """Send a signal to the process of the command, the master, but not to its workers."""
        self._process.send_signal(signum)

    def workers(self) -> list[psutil.Process]:
        """Return the worker processes that are alive, sorted by index."""
        children = {name_of(child): child for child in psutil.Process(self.pid).children(recursive=True)}
        return [children[name] for name in sorted(children) if name.startswith("worker-")]


Start = Callable[..., Command]
"""A function that starts a command: the fixture ``start``."""


@dataclass(frozen=True)
class Ended:
    """The result of a command: its exit code, its standard output and its standard error."""

    code: int
    output: str
    errors: str


def run_command(folder: Path, *arguments: str) -> Ended:
    """Run ``runner`` in this process, with ``folder`` as the working directory. Its workers are separate processes."""
    load_kernels()  # before the tables are saved, so that restoring them keeps all kernels
    output, errors = io.StringIO(), io.StringIO()
    with (
        warnings.catch_warnings(action="ignore"),  # the tests turn warnings of libraries into errors
        chdir(folder),
        redirect_stdout(output),
        redirect_stderr(errors),
        restored_tables(),
        patch.dict(os.environ, ENVIRONMENT),
    ):
        code = main(arguments)
    return Ended(code, output.getvalue(), errors.getvalue())


def succeed(folder: Path, *arguments: str) -> Ended:
    """Run a command like :func:`run_command` and require exit code 0."""
    ended = run_command(folder, *arguments)
    assert ended.code == 0, ended.errors
    return ended


@contextmanager
def running(argv: list[str], log: Path, environment: Mapping[str, str]) -> Iterator["subprocess.Popen[bytes]"]:
    """Start a process in its own session. At the end, end it, and kill the processes that it leaves there."""
    with log.open("w") as output:
        process = subprocess.Popen(
            argv, stdout=output, stderr=output, env={**os.environ, **environment}, start_new_session=True
        )
    try:
        yield process
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(20)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def summary_of(run_dir: Path) -> Summary:
    """Return the summary.json of a run."""
    return Summary.read(run_dir / "summary.json")


def lacking(what: str, reason: str) -> NoReturn:
    """Skip the test because ``what`` is not available; fail it if RUNNER_REQUIRE, such as "root,slurm", names it."""
    if what in os.environ.get("RUNNER_REQUIRE", "").split(","):
        pytest.fail(f"RUNNER_REQUIRE={what}: {reason}")
    pytest.skip(f"{what} is not available: {reason}")


def wait_until(condition: Callable[[], bool], what: str = "the awaited event") -> None:
    """Poll until ``condition`` holds; fail the test after a time limit."""
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, f"never happened: {what}"
        time.sleep(0.01)


def processes_of(run_id: str) -> list[int]:
    """Return the ids of the processes that have the id of the run on their command lines, in the name of a file."""
    return [
        process.pid
        for process in psutil.process_iter(["cmdline"])
        if any(f"/{run_id}." in argument for argument in process.info["cmdline"] or [])
    ]


def abandoned_directories() -> list[str]:
    """Remove the directories of sockets and shared memory that no living process uses, and return their names."""
    before = {path.name for path in SHARED_MEMORY.glob("runner-*")}
    remove_abandoned(SHARED_MEMORY)
    return sorted(before - {path.name for path in SHARED_MEMORY.glob("runner-*")})


def name_of(process: psutil.Process) -> str:
    """Return the name with which a process of a run was started, such as worker-0; "" for another process."""
    try:
        arguments = process.cmdline()
    except psutil.NoSuchProcess:
        return ""
    return Path(arguments[arguments.index("--key") + 1]).stem.partition(".")[2] if "--key" in arguments else ""
