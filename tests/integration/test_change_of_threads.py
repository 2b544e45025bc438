"""Runs with fewer threads, then with more, in one process whose memory is watched by the C library."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.command import Command

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
CHECKING = "libc_malloc_debug.so.0"
"""The part of glibc that, where a process begins with it, looks at what lies around memory that is given back."""

TRAIN = """
import sys
from pathlib import Path

from runner.engine.run.session import scalar
from runner.records.run_directory import RunDirectory
from runner.training.build import build, open_session
from tests.small_runs import small_config

for threads in sys.argv[1:]:
    experiment = build(small_config(f"cluster.threads_per_worker={threads}"))
    with (
        RunDirectory.open(Path(threads), resume=False) as directory,
        open_session(experiment, directory, check_finite=False) as session,
    ):
        session.run("init")
        for step in range(4):
            feeds = {"step": scalar(step, "int64"), "learning_rate": scalar(0.1, "float32")}
            loss = session.run("train", step=step, feeds=feeds)["loss"]
    print(threads, f"{loss:.4f}")
"""


@pytest.fixture
def watching() -> dict[str, str]:
    """The environment of a process that ends where memory is written behind its end; skips the test without it."""
    found = subprocess.run([sys.executable, "-c", f"import ctypes; ctypes.CDLL({CHECKING!r})"], capture_output=True)
    if found.returncode != 0:
        pytest.skip(f"{CHECKING}, with which the C library watches memory, is not on this machine")
    return {"LD_PRELOAD": CHECKING, "MALLOC_CHECK_": "3"}


def test_a_process_with_more_threads_than_before_stays_within_its_memory(
    tmp_path: Path, watching: dict[str, str]
) -> None:
    """A primitive works in memory for each of its threads; that of the first run would not do for the second.

    The losses are those of one thread: nothing of what is trained was written over either.
    """
    python_path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    environment = {**watching, "PYTHONPATH": python_path}
    command = Command(tmp_path, "-c", TRAIN, "1", "2", "4", executable=(sys.executable,), environment=environment)
    assert command.finish() == 0, command.errors
    threads, losses = zip(*(line.split() for line in command.output.splitlines()), strict=True)
    assert threads == ("1", "2", "4")
    assert len(set(losses)) == 1
