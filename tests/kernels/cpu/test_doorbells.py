"""Doorbells between two processes: bytes written before a ring are read after the wait, in order and without loss."""

import mmap
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from runner.kernels.contract import NOT_YET
from runner.kernels.cpu.machine_code.compiler import join
from runner.kernels.cpu.machine_code.doorbells import DOORBELLS, is_supported

pytestmark = pytest.mark.skipif(not is_supported(), reason="futexes are known for Linux on two kinds of CPUs")

ROUNDS = 2000
VALUES = 4096
LINE = 8
"""Numbers from one bell to the next, so that the bells are in separate cache lines."""


class Side:
    """One of two processes that write numbers for each other in turn.

    path: the shared file; first: the process that begins.
    """

    def __init__(self, path: Path, *, first: bool, spins: int) -> None:
        nbytes = 8 * (2 * LINE + 2 * VALUES)
        with path.open("r+b") as file:
            writable = np.frombuffer(mmap.mmap(file.fileno(), nbytes), np.int64)
            readable = np.frombuffer(mmap.mmap(file.fileno(), nbytes, prot=mmap.PROT_READ), np.int64)
        own, other = (0, 1) if first else (1, 0)
        self.first = first
        self.number = np.zeros(1, np.int64)
        self.out = _part(writable, own)
        self.into = _part(readable, other)
        bells = writable[own * LINE :][:1], readable[other * LINE :][:1]
        self.ring = join([DOORBELLS.ring(bells[0], self.number)])
        self.wait = join([DOORBELLS.wait(bells[1], self.number, spins)])

    def play(self) -> None:
        """Take turns; every turn writes ``VALUES`` equal numbers, larger by 1 than the numbers received before."""
        for turn in range(1, ROUNDS + 1):
            self.number[0] = turn
            if self.first:
                self.out[:] = 2 * turn
                self.ring()
            while self.wait():
                pass
            expected = 2 * turn + self.first
            assert (self.into == expected).all(), (turn, expected, np.unique(self.into))
            if not self.first:
                self.out[:] = 2 * turn + 1
                self.ring()


def _part(memory: NDArray[Any], which: int) -> NDArray[Any]:
    begin = 2 * LINE + which * VALUES
    return memory[begin : begin + VALUES]


@pytest.mark.parametrize("spins", [0, 1000])
def test_two_processes_take_turns(tmp_path: Path, spins: int) -> None:
    path = tmp_path / "shared"
    path.write_bytes(bytes(8 * (2 * LINE + 2 * VALUES)))
    program = (
        "import sys; from pathlib import Path; from tests.kernels.cpu.test_doorbells import Side\n"
        f"Side(Path(sys.argv[1]), first=False, spins={spins}).play()"
    )
    with subprocess.Popen([sys.executable, "-c", program, str(path)], env={**os.environ, "PYTHONPATH": "."}) as other:
        Side(path, first=True, spins=spins).play()
        assert other.wait(30) == 0


def bell() -> tuple[NDArray[np.int64], NDArray[np.int64], Callable[[], int]]:
    memory, number = np.zeros(1, np.int64), np.zeros(1, np.int64)
    return memory, number, join([DOORBELLS.wait(memory, number, 1)])


@pytest.mark.parametrize("number", [1, 2**32, -1, 5 << 32 | 7])
def test_a_bell_is_heard_only_for_its_number(number: int) -> None:
    """Both halves of the number count, though the futex compares only the lower one."""
    memory, expected, wait = bell()
    expected[0] = number
    for other in (0, number + 1, number ^ 1 << 32):
        memory[0] = other
        assert wait() == 1 << 16 | NOT_YET
    assert join([DOORBELLS.ring(memory, expected)])() == 0
    assert memory[0] == number
    assert wait() == 0
