"""A benchmark process: start it with a thread budget, send requests, and end it."""

import json
import os
import select
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from benchmarks.environments import PEERS, ROOT, python_of
from benchmarks.subjects import SubjectSpec

ANSWER_TIMEOUT_S = 1800.0
"""Timeout of an answer. It is long because compilers take minutes for the deepest networks."""

_END_TIMEOUT_S = 30.0
_TERMINATION_TIMEOUT_S = 5.0
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NPROC", "PJRT_NPROC")


class SubjectError(Exception):
    """A benchmark process failed: for example, it ended before it answered, or did not answer in time."""


class SubjectProcess:
    """One running benchmark process.

    threads: thread budget of its libraries. If ``pinned``, the process may use only this number of cores, because not
    every library respects the budget. log: file for the output. timeout_s: seconds to wait for an answer, or a
    function that returns this number. Raises MissingEnvironmentError.
    """

    def __init__(
        self,
        spec: SubjectSpec,
        *,
        threads: int,
        log: Path,
        pinned: bool = True,
        timeout_s: float | Callable[[], float] = ANSWER_TIMEOUT_S,
    ) -> None:
        self._log = log
        self._timeout_s = timeout_s
        command = [str(python_of(spec.environment)), "-m", spec.module, *spec.arguments]
        with log.open("wb") as errors, _held_to(threads if pinned else None):
            self._process = subprocess.Popen(
                command,
                cwd=ROOT,
                env=_environment(threads),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,  # so that its child processes can be ended with it
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._requests, self._answers = self._process.stdin, self._process.stdout

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._end(_TERMINATION_TIMEOUT_S, signal.SIGTERM)  # do not wait for a compilation, which may take minutes
        self.close()

    def ask(self, do: str, **more: object) -> dict[str, Any]:
        """Send a request and return the answer; see :mod:`benchmarks.protocol`. Raises SubjectError."""
        self.send(do, **more)
        return self.receive()

    def send(self, do: str, **more: object) -> None:
        """Send a request without waiting. Raises SubjectError."""
        try:
            self._requests.write((json.dumps({"do": do, **more}) + "\n").encode())
            self._requests.flush()
        except BrokenPipeError:
            raise self._ended() from None

    def receive(self) -> dict[str, Any]:
        """Return the answer to the oldest unanswered request. Raises SubjectError."""
        timeout_s = self._timeout_s() if callable(self._timeout_s) else self._timeout_s
        readable, _, _ = select.select([self._answers], [], [], timeout_s)
        if not readable:
            self._end(0.0)  # the process would use cores during the turns of others
            raise SubjectError(f"no answer within {timeout_s:.3g} s")
        line = self._answers.readline()
        if not line:
            raise self._ended()
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """End the process by closing its input, or by force if the process does not end in time."""
        for pipe in (self._requests, self._answers):
            try:
                pipe.close()
            except BrokenPipeError:
                continue  # the process ended before it had read all requests
        self._end(_END_TIMEOUT_S)

    def _end(self, timeout_s: float, signum: signal.Signals | None = None) -> int:
        """Send ``signum`` if given, wait at most ``timeout_s``, kill the process group and return the exit code."""
        pid = self._process.pid
        if self._process.returncode is None:
            if signum is not None:
                os.killpg(pid, signum)
            pidfd = os.pidfd_open(pid)
            select.select([pidfd], [], [], timeout_s)
            os.close(pidfd)
            # Kill the group before the wait. After the wait, the system could reuse the number of the group.
            os.killpg(pid, signal.SIGKILL)
        return self._process.wait()

    def _ended(self) -> SubjectError:
        code = self._end(_END_TIMEOUT_S)
        lines = [line for line in self._log.read_text(errors="replace").splitlines() if line.strip()]
        said = lines[-1].strip() if lines else "no output"
        return SubjectError(f"ended with code {code}: {said}")


def _environment(threads: int) -> Mapping[str, str]:
    counts = dict.fromkeys(_THREAD_VARIABLES, str(threads))
    # Compiled kernels are kept between runs, inside the repository.
    settings = {"TORCHINDUCTOR_CACHE_DIR": str(PEERS / "inductor"), "TF_CPP_MIN_LOG_LEVEL": "2"}
    return {**os.environ, **counts, **settings}


@contextmanager
def _held_to(threads: int | None) -> Iterator[None]:
    """Limit processes that are started in this context to as many cores as ``threads``."""
    if threads is None:
        yield
        return
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(cores)[:threads])
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)
