"""How a subject in a process of its own is asked: one line of JSON per request and per answer, over its pipes.

{"do": "start"}                              -> {"versions": {name: version}, "memory_mib": before the network}
{"do": "load"}                               -> {}
{"do": "run", "phase": "step", "times": 5}   -> {"seconds": [...], "losses": [...]}, one entry per run
{"do": "memory"}                             -> {"memory_mib": largest resident set so far, or memory of a GPU}

The end of the requests ends the process. A fault ends it as well, with its traceback on standard error.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol, TextIO

PHASES = ("forward", "gradients", "step")
"""What is timed: the loss; the loss and its gradients; the loss, its gradients and the update."""

Run = Callable[[], float]
"""Does one phase once, waits for its end and returns the loss."""


class Subject(Protocol):
    """One way to solve a problem."""

    @property
    def versions(self) -> Mapping[str, str]:
        """Of the framework and what it computes with."""
        ...

    def load(self) -> None:
        """Make the network, with its initial values."""
        ...

    def phase(self, name: str) -> Run:
        """Return what does one of :data:`PHASES`, bound once."""
        ...


def serve(subject: Subject, memory: Callable[[], float] | None = None) -> None:
    """Answer requests until they end. memory: the peak so far, MiB; of the process where it is None."""
    answers = _take_standard_output()
    runs: dict[str, Run] = {}
    for line in sys.stdin:
        request = json.loads(line)
        answers.write(json.dumps(_answer(subject, request, runs, memory or peak_memory_mib)) + "\n")
        answers.flush()


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
            return _timed(runs[phase], request["times"])
        case "memory":
            return {"memory_mib": memory()}
        case other:
            raise ValueError(f"request {other!r}: expected start, load, run or memory")


def _timed(run: Run, times: int) -> dict[str, Any]:
    """Run a phase some times, without the garbage collector in between."""
    seconds, losses = [], []
    gc.collect()
    gc.disable()
    try:
        for _ in range(times):
            started = time.perf_counter()
            loss = run()
            seconds.append(time.perf_counter() - started)
            losses.append(loss)
    finally:
        gc.enable()
    return {"seconds": seconds, "losses": losses}


def peak_memory_mib() -> float:
    """Largest resident set of this process so far, MiB."""
    status = Path("/proc/self/status")
    if status.exists():
        # The high-water mark of this program alone: that of getrusage is handed down from the parent by exec.
        lines = dict(line.split(":", 1) for line in status.read_text().splitlines() if ":" in line)
        return int(lines["VmHWM"].split()[0]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _take_standard_output() -> TextIO:
    """Keep standard output for answers; whatever else is printed goes to standard error."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return answers
