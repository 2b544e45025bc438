"""Causes of the ends of processes: signals, lack of memory, and reports of a launcher's command."""

import os
import re
import sys
from pathlib import Path

import pytest

from runner.engine.cluster.process_exit import Exit, oom_kills
from runner.engine.cluster.supervisor import Supervisor
from runner.errors import WorkerLostError
from tests.engine.cluster.test_processes import wait_until_dead

SRUN = """\
2026-11-24 INFO worker_process: worker-1 has joined the run
srun: error: node7: tasks 2,4: Exited with exit code 9
srun: error: node8: task 0: Terminated
"""


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (SRUN, r"^worker-2 on node7: exited with exit code 9\nsrun \(pid \d+\) exited with code 1 "),
        ("srun: error: node7: task 9: Killed\n", r"^srun \(pid \d+\) exited with code 1 "),
        ("srun: error: more processors requested than permitted\n", r"^srun \(pid \d+\) exited with code 1 "),
    ],
)
def test_remote_process_is_named_by_a_report(supervisor: Supervisor, tmp_path: Path, lines: str, message: str) -> None:
    (tmp_path / "log").write_text("srun: error: node1: task 1: Killed\n")  # by an earlier start of the same run
    script = f"print({lines!r}, end=''); raise SystemExit(1)"
    names = [f"worker-{index}" for index in range(5)]
    srun = supervisor.start("srun", [sys.executable, "-c", script], tmp_path / "log", os.environ, names)
    wait_until_dead(srun)
    assert re.search(message, str(supervisor.failure()))
    assert supervisor.first_failed() == ("worker-2" if lines == SRUN else "worker-0")


@pytest.mark.parametrize(
    ("ends", "by_chance", "out_of_memory"),
    [
        ("srun: error: node7: task 0: Killed", True, False),
        ("srun: error: node7: task 0: Terminated", True, False),
        ("srun: error: node7: task 0: Hangup", True, False),
        ("srun: error: node7: task 0: Segmentation fault (core dumped)", False, False),
        ("srun: error: node7: task 0: Exited with exit code 1", False, False),
        ("srun: error: node7: task 0: Exited with exit code 7", True, False),
        ("srun: error: node7: task 0: Out Of Memory", False, True),
        ("ray: error: node7: task 0: killed by SIGKILL", True, False),
        ("ray: error: node7: task 0: killed by SIGSEGV", False, False),
        ("ray: error: its node: task 0: lost by Ray", True, False),
    ],
)
def test_only_ends_that_come_from_outside_may_recur(
    supervisor: Supervisor, tmp_path: Path, ends: str, by_chance: bool, out_of_memory: bool
) -> None:
    argv = [sys.executable, "-c", f"print({ends!r}); raise SystemExit(1)"]
    wait_until_dead(supervisor.start("srun", argv, tmp_path / "log", os.environ, ["worker-0"]))
    lost = supervisor.failure()
    assert isinstance(lost, WorkerLostError)
    assert (lost.worker, lost.by_chance, lost.out_of_memory) == ("worker-0", by_chance, out_of_memory)


@pytest.mark.parametrize(
    ("code", "kills", "text"),
    [
        (-9, 1, "was killed by SIGKILL, probably for lack of memory, after 2.0 s"),
        (-9, 0, "was killed by SIGKILL after 2.0 s"),
        (-9, None, "was killed by SIGKILL (often for lack of memory: see dmesg) after 2.0 s"),
        (-11, 1, "was killed by SIGSEGV after 2.0 s"),
        (1, 1, "exited with code 1 after 2.0 s"),
    ],
)
def test_a_kill_for_lack_of_memory_is_named(code: int, kills: int | None, text: str) -> None:
    end = Exit(code, 2.0, kills)
    assert str(end) == text
    assert end.lost("worker-0", "text").out_of_memory == ("probably" in text)


def test_the_count_of_kills_is_read(tmp_path: Path) -> None:
    path = tmp_path / "vmstat"
    path.write_text("oom_killer 7\noom_kill 12\nunused 3\n")
    assert oom_kills(path) == 12
    path.write_text("unused 3\n")
    assert oom_kills(path) is None
    assert oom_kills(tmp_path / "missing") is None


@pytest.mark.skipif(
    not os.access("/sys/fs/cgroup/memory/cgroup.procs", os.W_OK) or oom_kills() is None,
    reason="needs a writable memory control group of version 1, and the count of kills",
)
def test_a_process_beyond_its_memory_limit_is_recognized(supervisor: Supervisor, tmp_path: Path) -> None:
    group = Path(f"/sys/fs/cgroup/memory/runner-test-{os.getpid()}")
    group.mkdir()
    try:
        (group / "memory.limit_in_bytes").write_text(str(64 * 2**20))
        enter = f"import os; open('{group}/cgroup.procs', 'w').write(str(os.getpid()))"
        argv = [sys.executable, "-c", f"{enter}; bytes(bytearray(b'x') * 2**28)"]
        wait_until_dead(supervisor.start("worker-0", argv, tmp_path / "log", os.environ))
        error = supervisor.failure()
    finally:
        group.rmdir()
    assert isinstance(error, WorkerLostError)
    assert error.out_of_memory
