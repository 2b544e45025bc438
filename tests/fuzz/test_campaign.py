"""A short campaign of each target, and faults of readers that a campaign must find."""

import os
import signal
import time
from pathlib import Path

import pytest

from runner.errors import DataError
from tests.fuzz import campaign
from tests.fuzz.campaign import run
from tests.fuzz.targets import TARGETS, Read, Target


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
def test_every_input_is_accepted_or_refused(target: str) -> None:
    inputs = round(20_000 * TARGETS[target].share)
    outcome = run(TARGETS[target], inputs, seed=20_261_124)
    assert outcome.findings == []
    assert outcome.accepted + outcome.refused == inputs
    assert outcome.accepted > 0, "no input passed the checks: none reached the end of the reader"


def _crash(data: bytes, folder: Path) -> None:
    if data == b"":
        os.kill(os.getpid(), signal.SIGKILL)


def _raise(data: bytes, folder: Path) -> None:
    if data != b"a":
        raise KeyError(data)


def _refuse(data: bytes, folder: Path) -> None:
    raise DataError("never")


def _wait(data: bytes, folder: Path) -> None:
    if data == b"":
        time.sleep(60)


KEPT: list[bytes] = []


def _keep(data: bytes, folder: Path) -> None:
    KEPT.append(bytes(b"x" * 32 * 2**20))


@pytest.mark.parametrize(
    ("read", "finding"),
    [
        (_crash, "ended the process with exit code -9"),
        (_raise, "KeyError: "),
        (_wait, "took too long"),
        (_keep, "the process grew by "),
        (_refuse, "a valid input is refused: never"),
    ],
)
def test_a_fault_of_a_reader_is_found(read: Read, finding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(campaign, "LONGEST_S", 0.5)
    outcome = run(Target(lambda folder: [b"a"], read), 5, seed=1)
    assert finding in outcome.findings[0].error
