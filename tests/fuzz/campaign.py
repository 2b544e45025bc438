"""A campaign: many mutated inputs for one target, in a separate process that may crash, hang or run out of memory."""

import ctypes
import logging
import multiprocessing
import resource
import time
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import psutil

from tests.fuzz.targets import Target

LONGEST_S = 10.0
"""Time limit of one input."""
MOST_GROWTH = 64 * 2**20
"""Limit of the growth of a process, in bytes, after its first inputs."""
_LONGEST_START_S = 300.0
_ROOM = 2 * 2**30
_WARM_UP = 0.1


@dataclass(frozen=True)
class Finding:
    """An input that a target neither accepted nor refused.

    number: of the input. error: the unexpected exception or event.
    """

    number: int
    error: str


@dataclass
class Outcome:
    """The outcome of a campaign for one target. grown_bytes: growth of the process after its first inputs."""

    accepted: int = 0
    refused: int = 0
    seconds: float = 0.0
    grown_bytes: int = 0
    findings: list[Finding] = field(default_factory=list)


def input_of(target: Target, seeds: Any, seed: int, number: int) -> bytes:
    """Return an input of a campaign, which depends on the arguments only."""
    return target.input(seeds, Random(f"{seed} {number}"))


def is_accepted(target: Target, data: bytes, folder: Path) -> bool:
    """Return whether a target accepts an input; raise the error of an input that it neither accepts nor refuses."""
    try:
        target.read(data, folder)
    except target.refusals:
        return False
    return True


def _refusal(target: Target, valid: Any, folder: Path) -> str:
    """Return the error with which a target refuses a valid input, "" if it accepts it."""
    try:
        target.read(valid if target.encode is None else target.encode(valid), folder)
    except target.refusals as error:
        return str(error)
    return ""


def run(target: Target, inputs: int, seed: int) -> Outcome:
    """Read ``inputs`` inputs. After a crash, the campaign goes on with the next input in a new process."""
    outcome, begin, first = Outcome(), time.monotonic(), 0
    with TemporaryDirectory() as folder:
        seeds = target.seeds(Path(folder))
        while first < inputs:
            first = _run_until_fault(target, seeds, range(first, inputs), seed, outcome)
    outcome.seconds = time.monotonic() - begin
    if outcome.grown_bytes > MOST_GROWTH:
        outcome.findings.append(Finding(inputs, f"the process grew by {outcome.grown_bytes / 2**20:.0f} MiB"))
    return outcome


def _run_until_fault(target: Target, seeds: Any, numbers: range, seed: int, outcome: Outcome) -> int:
    """Read the inputs of some numbers in a new process; return the number after the last number that was tried."""
    fork, first = multiprocessing.get_context("fork"), numbers.start
    number = fork.Value("q", first - 1, lock=False)
    ours, theirs = fork.Pipe(duplex=False)
    process = fork.Process(target=_read_all, args=(target, seeds, numbers, seed, number, theirs), daemon=True)
    process.start()
    theirs.close()
    last, since = first - 1, time.monotonic()
    try:
        while True:
            if ours.poll(0.2):
                found = ours.recv()
                if isinstance(found, Finding):
                    outcome.findings.append(found)
                    continue
                accepted, refused, grown = found
                outcome.accepted += accepted
                outcome.refused += refused
                outcome.grown_bytes = max(outcome.grown_bytes, grown)
                return numbers.stop
            if number.value != last:
                last, since = number.value, time.monotonic()
            elif time.monotonic() - since > (LONGEST_S if last >= first else _LONGEST_START_S):
                outcome.findings.append(Finding(last, "took too long"))
                return max(last, first) + 1
    except EOFError:
        process.join()
        outcome.findings.append(Finding(number.value, f"ended the process with exit code {process.exitcode}"))
        return max(number.value, first) + 1
    finally:
        process.kill()
        process.join()


def _read_all(target: Target, seeds: Any, numbers: range, seed: int, number: Any, report: Connection) -> None:
    """Read the inputs of some numbers; report findings and, at the end, the numbers of inputs and the growth."""
    logging.disable()
    # The child of a large process could keep much in its free memory without growing.
    ctypes.CDLL(None).malloc_trim(0)
    accepted = refused = warm = 0
    process = psutil.Process()
    with TemporaryDirectory() as name:
        folder = Path(name)
        refusals = [refusal for each in seeds[:: len(seeds) // 20 + 1] if (refusal := _refusal(target, each, folder))]
        if refusals:
            report.send(Finding(-1, f"a valid input is refused: {refusals[0]}"))
            numbers = range(0)
        limit = process.memory_info().vms + _ROOM
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        for place, each in enumerate(numbers):
            number.value = each
            data = input_of(target, seeds, seed, each)
            try:
                good = is_accepted(target, data, folder)
                accepted, refused = accepted + good, refused + (not good)
            except Exception as error:  # noqa: BLE001 - any other error is a finding
                report.send(Finding(each, f"{type(error).__name__}: {str(error)[:200]}"))
            if place == int(_WARM_UP * len(numbers)):
                warm = process.memory_info().rss
        report.send((accepted, refused, process.memory_info().rss - warm))
