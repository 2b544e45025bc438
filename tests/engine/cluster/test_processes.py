"""Worker processes: start, end, causes of failures, logs and command lines."""

import errno
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from runner.engine.cluster.launchers import join_arguments
from runner.engine.cluster.process_exit import Exit
from runner.engine.cluster.processes import WorkerProcess, runner_command, tail, thread_budget
from runner.engine.cluster.supervisor import Supervisor
from runner.engine.cluster.transport.endpoint import Limits
from runner.engine.cluster.transport.private_directory import inbox_address, private_directory
from runner.engine.cluster.transport.zmq_endpoint import ZmqEndpoint
from runner.engine.cluster.transport.zmq_sockets import open_context
from runner.errors import ResourceError
from tests.engine.cluster.transport.conftest import identity

SOON_S = 10.0  # a time limit that is reached only if a test fails
WAITS = "import signal; print('ready', flush=True); signal.pause()"
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + WAITS

Start = Callable[..., WorkerProcess]


@pytest.fixture
def start(supervisor: Supervisor, tmp_path: Path) -> Start:
    """Return a function that starts ``python -c script`` as a worker."""

    def start_script(name: str, script: str, **environment: str) -> WorkerProcess:
        argv = [sys.executable, "-c", script]
        return supervisor.start(name, argv, tmp_path / f"{name}.log", os.environ | environment)

    return start_script


def wait_until_dead(worker: WorkerProcess) -> None:
    assert select.select([worker], [], [], SOON_S)[0], f"{worker.name} still runs"


def wait_for_log(worker: WorkerProcess, text: str) -> None:
    """Wait until a worker has logged ``text``; fail if the worker ends."""
    deadline = time.monotonic() + SOON_S
    while text not in worker.log_path.read_text():
        assert not select.select([worker], [], [], 0.01)[0], worker.log_path.read_text()
        assert time.monotonic() < deadline, f"{worker.name} never logged {text!r}"


@pytest.fixture
def input_of_the_master() -> Iterator[None]:
    """Replace the standard input of this process by a pipe with data, which a worker must not read."""
    saved = os.dup(0)
    reader, writer = os.pipe()
    os.write(writer, b"for the master")
    os.close(writer)
    os.dup2(reader, 0)
    yield
    os.dup2(saved, 0)
    os.close(saved)
    os.close(reader)


@pytest.mark.usefixtures("input_of_the_master")
def test_worker_has_a_log_no_input_and_the_given_environment(supervisor: Supervisor, tmp_path: Path) -> None:
    script = "import os, sys; print(repr(sys.stdin.read()), sorted(os.environ)); sys.stderr.write('oops')"
    worker = supervisor.start("worker-0", [sys.executable, "-c", script], tmp_path / "log", {"LC_CTYPE": "C"})
    wait_until_dead(worker)
    assert (tmp_path / "log").read_text() == "'' ['LC_CTYPE']\noops"
    assert (tmp_path / "log").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("number", "remedy"),
    [(errno.ENOSYS, "; Linux 5.3 or newer is needed"), (errno.EMFILE, "; raise `ulimit -n`"), (errno.ENOMEM, "")],
)
def test_unwatched_process_is_ended(start: Start, monkeypatch: pytest.MonkeyPatch, number: int, remedy: str) -> None:
    def refused(pid: int) -> int:
        raise OSError(number, os.strerror(number))

    before = psutil.Process().children()
    monkeypatch.setattr(os, "pidfd_open", refused)
    message = f"cannot watch worker-0: pidfd_open: {os.strerror(number)}{remedy}"
    with pytest.raises(ResourceError, match=f"^{re.escape(message)}$"):
        start("worker-0", STUBBORN)
    assert psutil.Process().children() == before


def test_death_is_noticed_while_waiting_for_messages(supervisor: Supervisor, start: Start) -> None:
    with (
        open_context(connections=2) as context,
        private_directory() as directory,
        ZmqEndpoint(context, identity("master-0"), inbox_address(directory, "master-0"), Limits(peers=1)) as master,
    ):
        worker = start("worker-0", "import sys; print('I am\\x1b[2J ill'); sys.exit(5)")
        master.wake_on(supervisor.pidfds)
        assert master.receive(SOON_S) is None
        assert worker.poll() is not None
        failure = supervisor.failure()
    expected = (
        rf"worker-0 \(pid {worker.pid}\) exited with code 5 \(NumericError\) after \d+\.\d s\. "
        r"Last lines of its log:\n  \| I am\\x1b\[2J ill\n"
        rf"Full log: {worker.log_path}"
    )
    assert re.fullmatch(expected, str(failure))


ENDS = {
    "a signal is named": (
        ["import os, signal; os.kill(os.getpid(), signal.SIGKILL)"],
        r"worker-0 \(pid \d+\) was killed by SIGKILL.* after \d",
    ),
    "an unexpected exit, with any code": (["pass"], r"exited with code 0 after .* Its log is empty\."),
    "a crash is the cause, a ClusterError its consequence": (
        ["raise SystemExit(7)", "raise SystemExit(1)", "import os; os.abort()"],
        r"(?s)^worker-2 .*Later, worker-1 .*Later, worker-0 .*ClusterError",
    ),
}


@pytest.mark.parametrize(("scripts", "message"), ENDS.values(), ids=ENDS)
def test_ends_of_workers_are_reported(supervisor: Supervisor, start: Start, scripts: list[str], message: str) -> None:
    assert str(Exit(-40, after_s=1.25)) == "was killed by signal 40 after 1.2 s", "a signal without a name"
    for worker in [start(f"worker-{index}", script) for index, script in enumerate(scripts)]:
        wait_until_dead(worker)
    assert re.search(message, str(supervisor.failure()))


def test_expected_exit_is_a_failure_unless_its_code_is_0(supervisor: Supervisor, start: Start) -> None:
    supervisor.expect_exits()
    wait_until_dead(start("worker-0", "pass"))
    assert supervisor.failure() is None
    wait_until_dead(start("worker-1", "raise SystemExit(1)"))
    assert re.search(r"^worker-1 .* exited with code 1 after", str(supervisor.failure()))


def test_first_failure_is_the_cause(supervisor: Supervisor, start: Start) -> None:
    wait_until_dead(start("worker-1", "raise SystemExit(5)"))
    assert supervisor.failure() is not None
    wait_until_dead(start("worker-0", "import os; os.abort()"))
    expected = r"(?s)^worker-1 .* code 5 .*Later, worker-0 was killed by SIGABRT after [\d.]+ s\.$"
    assert re.search(expected, str(supervisor.failure()))


@pytest.mark.parametrize("error", [None, ZeroDivisionError()])
def test_end_of_the_supervisor_ends_all_workers(tmp_path: Path, error: Exception | None) -> None:
    with suppress(ZeroDivisionError), Supervisor(grace_s=SOON_S) as supervisor:
        for index in range(3):
            argv = [sys.executable, "-c", WAITS]
            supervisor.start(f"worker-{index}", argv, tmp_path / f"{index}.log", os.environ)
        workers = list(supervisor.workers.values())
        if error is not None:
            raise error
    assert [worker.exit and worker.exit.code for worker in workers] == [-signal.SIGTERM] * 3
    assert not any(psutil.pid_exists(worker.pid) for worker in workers)


def test_worker_that_ignores_sigterm_dumps_its_stack_and_is_killed(supervisor: Supervisor, start: Start) -> None:
    script = (
        "from runner.engine.cluster.processes import dump_stacks_on_signal\n"
        "dump_stacks_on_signal()\n"
        "def stuck_here():\n"
        f"    {STUBBORN}\n"
        "    signal.pause()\n"
        "stuck_here()\n"
    )
    worker = start("worker-0", script)
    wait_for_log(worker, "ready")
    supervisor.terminate_all(grace_s=0.01)
    assert worker.exit is not None
    assert worker.exit.code == -signal.SIGKILL
    assert "in stuck_here" in worker.log_path.read_text()


def test_child_processes_of_a_worker_end_with_it(start: Start, supervisor: Supervisor) -> None:
    script = (
        "import subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import signal; signal.pause()'])\n"
        "print('child', child.pid, flush=True)\n"
        "child.wait()\n"
    )
    worker = start("worker-0", script)
    wait_for_log(worker, "\n")
    grandchild = psutil.Process(int(worker.log_path.read_text().split()[1]))
    supervisor.terminate_all(grace_s=SOON_S)
    grandchild.wait(SOON_S)


def test_worker_cannot_be_started_twice_and_exits_are_awaited(supervisor: Supervisor, start: Start) -> None:
    start("worker-0", "pass")
    with pytest.raises(ValueError, match="worker-0 is already started"):
        start("worker-0", "pass")
    assert supervisor.wait_for_exit(SOON_S)
    waiting = start("worker-1", WAITS)
    assert os.getsid(waiting.pid) == waiting.pid != os.getsid(0), "a worker has a separate session"
    assert not supervisor.wait_for_exit(0.01)
    waiting.kill()
    assert supervisor.wait_for_exit(SOON_S)


def test_command_that_cannot_be_started_is_reported(supervisor: Supervisor, tmp_path: Path) -> None:
    with pytest.raises(ResourceError, match=r"cannot start worker-0: /no/such: No such file"):
        supervisor.start("worker-0", ["/no/such"], tmp_path / "log", {})
    with pytest.raises(ResourceError, match=r"cannot start worker-1: .*missing.log: No such file"):
        supervisor.start("worker-1", ["/bin/true"], tmp_path / "no" / "missing.log", {})


def test_thread_budget_reaches_the_libraries(start: Start) -> None:
    script = "import numpy, threadpoolctl; print([p['num_threads'] for p in threadpoolctl.threadpool_info()])"
    worker = start("worker-0", script, **thread_budget(1))
    wait_until_dead(worker)
    assert worker.log_path.read_text() == "[1]\n"


def test_tail_of_a_log_is_limited_and_escaped(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"x" * 10**6 + b"\n\xff\x1b[0m\nlast\n")
    assert tail(log, lines=2) == ["\N{REPLACEMENT CHARACTER}\\x1b[0m", "last"]
    assert len(tail(log, lines=3)[0]) < 300
    assert tail(tmp_path / "none") == [f"({tmp_path / 'none'} cannot be read: No such file or directory)"]


CHILD_OF_A_DYING_PARENT = """
import os, signal, sys
from runner.engine.cluster.processes import die_with_parent
die_with_parent(os.getppid())
print(os.getpid(), flush=True)
signal.pause()
"""

DYING_PARENT = """
import os, signal, subprocess, sys
command = [sys.executable, *sys.argv[1:], "--parent", str(os.getpid())]
child = subprocess.Popen(command, start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
print(child.stdout.readline().decode(), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def expect_death_with_parent(*child: str) -> None:
    """Expect that a child process dies when its parent is killed right after the child has printed its process id."""
    command = [sys.executable, "-c", DYING_PARENT, *child]
    parent = subprocess.run(command, capture_output=True, text=True, check=False)
    assert parent.returncode == -signal.SIGKILL, parent.stderr
    try:
        process = psutil.Process(int(parent.stdout))
    except psutil.NoSuchProcess:
        return
    try:
        process.wait(SOON_S)
    finally:
        with suppress(psutil.NoSuchProcess):
            process.kill()


def test_worker_dies_with_its_killed_master() -> None:
    expect_death_with_parent("-c", CHILD_OF_A_DYING_PARENT)


def test_worker_dies_with_a_master_killed_during_the_imports(tmp_path: Path) -> None:
    plugin = tmp_path / "slow.py"
    plugin.write_text("import os, signal\nprint(os.getpid(), flush=True)\nsignal.pause()\n")
    argv = [*runner_command(), *join_arguments("ipc:///dev/shm/run/master-0", [], tmp_path / "key")]
    expect_death_with_parent(*argv[1:], "--plugin", str(plugin))


def test_worker_without_a_master_reports_it() -> None:
    script = "from runner.engine.cluster.processes import die_with_parent; die_with_parent(1)"
    orphan = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert "ClusterError: the process that started this one (pid 1) has ended" in orphan.stderr


def test_removed_process_is_dead_and_its_name_is_free(supervisor: Supervisor, start: Start) -> None:
    first, other = start("worker-0", STUBBORN), start("worker-1", WAITS)
    wait_for_log(first, "ready")
    first.send_signal(signal.SIGSTOP)
    deadline = time.monotonic() + SOON_S
    while not supervisor.is_stopped("worker-0"):
        assert time.monotonic() < deadline
    assert not supervisor.is_stopped("worker-1")
    assert not supervisor.is_stopped("worker-2")
    supervisor.remove("worker-0")
    assert not psutil.pid_exists(first.pid)
    assert supervisor.failure() is None
    again = start("worker-0", WAITS)
    assert supervisor.workers == {"worker-0": again, "worker-1": other}
    other.kill()
    wait_until_dead(other)
    assert supervisor.ended == ["worker-1"]
    assert supervisor.has_crashed
    supervisor.remove("worker-1")
    assert supervisor.ended == []
    assert not supervisor.has_crashed


def test_spare_process_takes_a_name(supervisor: Supervisor, start: Start, tmp_path: Path) -> None:
    for name in ("spare-0", "spare-1"):
        start(name, WAITS)
    ended, spare = supervisor.workers.values()
    ended.kill()
    wait_until_dead(ended)
    assert supervisor.pidfds == [], "a wait for messages does not end because a spare process has ended"
    assert supervisor.failure() is None
    assert supervisor.ended == ["spare-0"]
    log_path = tmp_path / "worker-3.log"
    log_path.write_text("of the lost process\n")
    assert supervisor.rename("spare-1", "worker-3", log_path) == str(log_path)
    assert supervisor.pidfds == [spare.fileno()]
    spare.kill()
    wait_until_dead(spare)
    failure = supervisor.failure()
    assert failure is not None
    assert str(failure).startswith("worker-3 (pid ")
    assert "Its log is empty." in str(failure)
