"""Cases and faults of a chaos campaign, and one run with a fault."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import psutil

from runner.records.summary import Summary
from runner.system.console import SUPERVISOR_OPTION
from tests.integration.command import QUIET, abandoned_directories, name_of, processes_of

_LENGTH = ("train.steps=500", "train.eval_every=100", "checkpoint.every_steps=150")
_SERVERS = ("parallelism.combine=parameter_server", "parallelism.servers=2")
_SYNC = ("parallelism=sync_data", "parallelism.workers=2", *_LENGTH)
CASES: Mapping[str, Sequence[str]] = {
    "sync_data, sharded_reduce": _SYNC,
    "sync_data, all_reduce": (*_SYNC, "parallelism.combine=all_reduce"),
    "sync_data, one spare": (*_SYNC, "cluster.spares=1"),
    "sync_data, ring_all_reduce": (*_SYNC, "parallelism.combine=ring_all_reduce"),
    "sync_data, parameter_server": (*_SYNC, *_SERVERS),
    "model": ("parallelism=model", "parallelism.workers=2", *_LENGTH),
    "hybrid": ("parallelism=hybrid", "parallelism.workers=2", *_LENGTH),
    "sandblaster": ("parallelism=sandblaster", "optimizer=lbfgs", "schedule=constant", "train.steps=40"),
}
"""Name of a case -> overrides. All runs of a case end with the same weights."""

SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGKILL, signal.SIGSEGV)
MASTER = "master"
_LIMIT_S = 120.0


@dataclass(frozen=True)
class Trial:
    """One run with a fault.

    number: index of the trial. process: the signalled process, "" if the run had ended before. delay_s: time
    from the first metrics to the fault. code: exit code of ``runner --supervise``. recovery_s: seconds
    from the signal until the interrupted step was repeated, for each recovery from a lost worker. left: number of
    remaining processes and directories of shared memory.
    """

    case: str
    number: int
    process: str
    signal: str
    delay_s: float
    code: int
    recovery_s: tuple[float, ...]
    weights_sha256: str
    left: int


def undisturbed(overrides: Sequence[str], folder: Path, limit_s: float = _LIMIT_S) -> tuple[str, float]:
    """Return the weights' SHA-256 of an undisturbed run, and the seconds from its first metrics to its end."""
    directory = folder / "undisturbed"
    process = start(overrides, directory)
    begun = time.monotonic()
    if process.wait(limit_s):
        raise RuntimeError(f"{' '.join(overrides)}: the undisturbed run failed; see {directory}/run.log")
    return weights_of(directory), time.monotonic() - begun


def run_with_fault(case: str, number: int, seed: int, seconds: float, folder: Path) -> Trial:
    """Run a case, and send a signal to one of its processes at a random time of its training."""
    random = Random(f"{case} {number} {seed}")
    directory = folder / f"run-{number}"
    process = start(CASES[case], directory)
    delay, chosen = random.uniform(0, seconds), random.choice(SIGNALS)
    time.sleep(delay)
    processes = processes_of_run(process)
    name, hit = random.choice(processes) if processes else ("", None)
    sent = time.time()
    if hit is not None:
        hit.send_signal(chosen)
    code = process.wait(_LIMIT_S)
    weights = "" if code else weights_of(directory)
    recovered = tuple(line["time"] - sent for line in recoveries(directory))
    return Trial(case, number, name, chosen.name, delay, code, recovered, weights, count_left(directory))


def start(overrides: Sequence[str], directory: Path) -> "subprocess.Popen[bytes]":
    """Start a run, and wait for its first metrics."""
    command = [sys.executable, "-m", "runner", "--supervise", *overrides, *QUIET, f"hydra.run.dir={directory}"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=directory.parent)
    deadline, path = time.monotonic() + _LIMIT_S, directory / "metrics.jsonl"
    while not (path.exists() and path.stat().st_size):
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"the run did not begin to train; see {directory}/run.log")
        time.sleep(0.005)
    return process


def processes_of_run(process: "subprocess.Popen[bytes]") -> list[tuple[str, psutil.Process]]:
    """Return the first names and the running processes of a run, without the supervisor, sorted.

    A spare process that takes the place of a worker keeps its first name, and its successor has the same one.
    """
    found = []
    try:
        for child in psutil.Process(process.pid).children(recursive=True):
            is_master = any(argument.startswith(SUPERVISOR_OPTION) for argument in child.cmdline())
            if name := MASTER if is_master else name_of(child):
                found.append((name, child))
    except psutil.NoSuchProcess:
        return []
    return sorted(found, key=lambda each: (each[0], each[1].pid))


def recoveries(directory: Path) -> list[dict[str, Any]]:
    """Return the recoveries of a run from lost workers and parameter servers."""
    path = directory / "recoveries.jsonl"
    lines = map(json.loads, path.read_text().splitlines()) if path.exists() else ()
    return [line for line in lines if line["worker"] != MASTER and "failed" not in line]


def count_left(directory: Path) -> int:
    """Return the number of remaining processes and directories of shared memory of an ended run."""
    run_id = json.loads((directory / "run.json").read_text())["run_id"]
    return len(processes_of(run_id)) + len(abandoned_directories())


def weights_of(directory: Path) -> str:
    """Return the weights' SHA-256 of a run."""
    return Summary.read(directory / "summary.json").weights_sha256 or ""
