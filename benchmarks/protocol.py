"""The protocol of benchmark processes: one line of JSON per request and per answer, over pipes.

{"do": "start"}                              -> {"versions": {name: version}, "memory_mib": peak before loading}
{"do": "load"}                               -> {}
{"do": "run", "phase": "step", "times": 5}   -> {"seconds": [...], "losses": [...]}, one entry per run; with
                                                "clock": "cpu", seconds of CPU time of the whole process
{"do": "memory"}                             -> {"memory_mib": largest resident set so far, or memory of a GPU}

The process ends when its input ends or after an error, whose traceback it writes to standard error.
"""

import gc
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

PHASES = ("forward", "gradients", "step")
"""Timed phases. forward: the loss. gradients: the loss and its gradients. step: loss, gradients and update."""

WALL = "wall"
CLOCKS: Mapping[str, Callable[[], float]] = {WALL: time.perf_counter, "cpu": time.process_time}
"""Clocks by name. The CPU time of a process, over all its threads, varies less on a machine with other work."""

Run = Callable[[], float]
"""Runs one phase once, waits until it has ended, and returns the loss."""


class Subject(Protocol):
    """A framework that runs the phases of a problem."""

    @property
    def versions(self) -> Mapping[str, str]:
        """Return the versions of the framework and its libraries."""

    def load(self) -> None:
        """Create the network with its initial values."""

    def phase(self, name: str) -> Run:
        """Return a function that runs one of :data:`PHASES`."""


def serve(subject: Subject, memory: Callable[[], float] | None = None) -> None:
    """Answer requests until the input ends. memory: returns the peak so far in MiB; by default the process's peak."""
    runs: dict[str, Run] = {}
    answer_requests(lambda request: _answer(subject, request, runs, memory or peak_memory_mib))


def answer_requests(answer: Callable[[Mapping[str, Any]], dict[str, Any]]) -> None:
    """Answer requests until the input ends. Only answers go to standard output; other output goes to standard error."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), file=answers, flush=True)


def _answer(
    subject: Subject, request: Mapping[str, Any], runs: dict[str, Run], memory: Callable[[], float]
) -> dict[str, Any]:
    match request["do"]:
        case "start":
            return {"versions": dict(subject.versions), "memory_mib": peak_memory_mib()}
        case "load":
            subject.load()
            return {}
        case "run":
            phase = request["phase"]
            if phase not in runs:
                runs[phase] = subject.phase(phase)
            return timed(runs[phase], request["times"], CLOCKS[request.get("clock", WALL)])
        case "memory":
            return {"memory_mib": memory()}
        case other:
            raise ValueError(f"request {other!r}: expected start, load, run or memory")


def timed(run: Run, times: int, clock: Callable[[], float] = time.perf_counter) -> dict[str, Any]:
    """Time ``times`` runs of a phase by a clock, without garbage collection during the runs."""
    seconds, losses = [], []
    gc.collect()
    gc.disable()
    try:
        for _ in range(times):
            started = clock()
            loss = run()
            seconds.append(clock() - started)
            losses.append(loss)
    finally:
        gc.enable()
    return {"seconds": seconds, "losses": losses}


def peak_memory_mib() -> float:
    """Return the peak resident set of this process so far, MiB."""
    # VmHWM is the peak of this program alone; getrusage also includes the parent process before exec.
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) / 1024
