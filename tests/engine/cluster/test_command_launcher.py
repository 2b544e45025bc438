"""Commands that start workers on other hosts: their text, reports of ended tasks, and the nodes of replacements."""

import itertools
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from runner.engine.cluster import command_launcher
from runner.engine.cluster.command_launcher import SlurmLauncher, placed
from runner.engine.cluster.command_process import CommandProcess
from runner.engine.cluster.launchers import HostsLauncher
from runner.engine.cluster.processes import runner_command
from runner.engine.cluster.supervisor import Supervisor
from runner.engine.cluster.transport.messages import STEP, Done
from runner.errors import ClusterError, WorkerLostError
from runner.system import slurm
from tests.engine.cluster.stage import SLEEPS, WORKERS, Stage
from tests.engine.cluster.test_processes import wait_until_dead
from tests.engine.cluster.transport.test_ticket import PLAIN
from tests.integration.command import wait_until

REPEATS = "import sys\nfor line in sys.stdin: print(line, end='', flush=True)\nraise SystemExit({code})"
NAMES = ("worker-0", "worker-1", "worker-2", "ps-0")


def command_of(supervisor: Supervisor, folder: Path, code: int = 0) -> CommandProcess:
    """Start a command that writes its input into its log, and ends with an exit code when its input ends."""
    argv = [sys.executable, "-c", REPEATS.format(code=code)]
    return supervisor.start("srun", argv, folder / "srun.log", os.environ, NAMES)


def test_ended_task_of_a_running_command_is_noticed_and_can_be_replaced(
    supervisor: Supervisor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = command_of(supervisor, tmp_path)
    assert supervisor.failure() is None
    command.write_line("srun: error: n2: tasks 1-2: Killed")
    wait_until(lambda: supervisor.failure() is not None)
    with monkeypatch.context() as patched:
        patched.setattr(Path, "open", lambda *_: pytest.fail("a log that has not grown was read"))
        assert supervisor.ended == ["worker-1", "worker-2"]
    assert supervisor.has_crashed
    text = str(supervisor.failure())
    assert text.startswith("worker-1 on n2: killed\nsrun (pid ")
    assert "Later, worker-2 killed." in text
    for name in ("worker-1", "worker-2"):
        supervisor.remove(name)
    assert (supervisor.failure(), supervisor.ended, command.tasks) == (None, [], ["worker-0", "ps-0"])
    assert command.add("worker-2") == (4, 2)
    command.write_line("srun: error: n2: task 2: Killed\nsrun: error: n3: task 4: Exited with exit code 7")
    wait_until(lambda: supervisor.failure() is not None)
    assert str(supervisor.failure()).startswith("worker-2 on n3: exited with exit code 7\n")
    assert not supervisor.has_crashed


def test_reported_kill_is_noticed_soon_although_other_messages_keep_arriving(elsewhere: Stage, tmp_path: Path) -> None:
    """Many workers send heartbeats; the clock is virtual."""
    log_path = tmp_path / "srun.log"
    elsewhere.supervisor.start("srun", SLEEPS, log_path, {}, WORKERS)
    log_path.write_text("srun: error: n2: task 1: Killed\n")
    elsewhere.beat(0, STEP, 7, *(number / 50 for number in range(500)))
    with pytest.raises(WorkerLostError, match=r"^worker-1 on n2: killed"):
        elsewhere.group.gather(["worker-0"], Done)
    assert elsewhere.network.clock.now < 0.25


def test_spare_task_takes_the_name_and_gives_its_place_to_the_next_one(supervisor: Supervisor, tmp_path: Path) -> None:
    command = command_of(supervisor, tmp_path)
    assert command.add("spare-0") == (4, 4)
    command.write_line("srun: error: n2: task 4: Killed")
    wait_until(lambda: supervisor.ended == ["spare-0"])
    assert (supervisor.failure(), supervisor.has_crashed) == (None, False)
    supervisor.remove("spare-0")
    assert command.add("spare-0") == (5, 4)
    supervisor.remove("worker-1")
    assert supervisor.rename("spare-0", "worker-1", tmp_path / "worker-1.log") == ""
    assert command.add("spare-0") == (6, 1)
    supervisor.remove("worker-1")
    assert command.add("worker-1") == (7, 4)
    command.write_line("srun: error: n2: task 7: Killed")
    wait_until(lambda: supervisor.failure() is not None)
    assert str(supervisor.failure()).startswith("worker-1 on n2: killed\n")


def test_end_of_a_command_with_spare_tasks_alone_is_no_failure(supervisor: Supervisor, tmp_path: Path) -> None:
    argv = [sys.executable, "-c", REPEATS.format(code=137)]
    command = supervisor.start("srun-2", argv, tmp_path / "srun.log", os.environ, ["spare-0"])
    assert supervisor.pidfds == []
    command.end_input()
    wait_until_dead(command)
    assert (supervisor.failure(), supervisor.ended) == (None, ["spare-0"])
    supervisor.rename("spare-0", "worker-1", tmp_path / "worker-1.log")
    assert supervisor.pidfds == [command.fileno()]


@pytest.mark.parametrize("replaced", [False, True])
def test_exit_code_of_a_replaced_task_is_not_a_failure_only_at_the_end(
    supervisor: Supervisor, tmp_path: Path, replaced: bool
) -> None:
    command = command_of(supervisor, tmp_path, code=137)
    if replaced:
        supervisor.remove("worker-1")
    command.end_input()
    wait_until_dead(command)
    failure = supervisor.failure()
    assert isinstance(failure, WorkerLostError)
    assert (failure.worker, failure.cause, failure.by_chance) == ("srun", "exited with code 137", True)
    supervisor.expect_exits()
    assert (supervisor.failure() is None) == replaced


def test_command_without_workers_is_ended(supervisor: Supervisor, tmp_path: Path) -> None:
    command = command_of(supervisor, tmp_path)
    for name in NAMES[1:]:
        supervisor.remove(name)
    supervisor.end_idle_commands()
    assert supervisor.commands == [command]
    supervisor.remove(NAMES[0])
    supervisor.end_idle_commands()
    assert supervisor.workers == {}
    assert command.exit is not None


def test_printed_command_can_be_typed_although_its_folder_has_a_space(supervisor: Supervisor, tmp_path: Path) -> None:
    keys, lines = tmp_path / "my run", list[str]()
    hosts = {"worker-0": "first"}
    launcher = HostsLauncher(address="tcp://10.0.0.1:*", hosts=hosts, keys=keys, announce=lines.append)
    launcher.start({"worker-0": PLAIN}, "tcp://10.0.0.1:5", supervisor, tmp_path, {})
    _, command = lines[0].splitlines()
    expected = ["runner", "worker", "--join", "tcp://10.0.0.1:5", "--key", str(keys / "worker-0.key")]
    assert shlex.split(command) == expected


@pytest.mark.parametrize(
    ("lost", "living", "expected"),
    [
        (["worker-1"], {"n1": 2, "n2": 2, "n3": 2}, ["n2"]),
        (["worker-1"], {"n1": 2, "n3": 2}, ["n3"]),
        (["worker-1"], {"n1": 4, "n3": 2}, ["n1"]),
        (["worker-0", "worker-1"], {"n1": 2, "n3": 2}, ["n1", "n3"]),
        (["worker-0", "worker-1"], {"n3": 3, "n4": 2}, ["n3", "n4"]),
        (["worker-1", "worker-0"], {"n1": 4}, ["n1", "n1"]),
        (["worker-1", "never joined"], {"n1": 2, "n2": 4}, ["n2", "n2"]),
        (["worker-1"], {"n1": 2}, None),
        (["worker-1"], {"n1": 3}, None),
    ],
)
def test_replacement_is_on_its_node_or_on_one_with_room(
    lost: list[str], living: Mapping[str, int], expected: list[str] | None
) -> None:
    """Each process has two CPUs."""
    hosts = {"worker-0": "n1", "worker-1": "n2"}
    if expected is not None:
        assert placed(lost, hosts, living, threads=2) == expected
    else:
        with pytest.raises(ClusterError, match=r"^worker-1 cannot .* 2 unused CPUs; .* failed: n1; a cancelled or req"):
            placed(lost, hosts, living, threads=2)


def slurm_started(
    supervisor: Supervisor, folder: Path, monkeypatch: pytest.MonkeyPatch, hosts: Mapping[str, str], nodes: str
) -> Callable[[str], str]:
    """Return a function that starts a process under Slurm, and returns its node. nodes: names, with one CPU each."""
    monkeypatch.setattr(command_launcher, "SRUN", ("sh", "-c", "exec sleep 60"))
    cpus = dict.fromkeys(nodes.split(), 1)
    launcher = SlurmLauncher(address="tcp://n1:5", logs=folder, threads=1, keys=folder, nodes=lambda: cpus)
    epochs = itertools.count(2)

    def started(name: str) -> str:
        launcher.start({name: replace(PLAIN, epoch=next(epochs))}, launcher.address, supervisor, folder, hosts)
        return next(command.nodes[name] for command in supervisor.commands if name in command.nodes)

    return started


HOSTS = {"worker-0": "n1", "worker-1": "n2"}


def test_spare_process_is_not_placed_on_the_node_of_a_process_that_is_starting(
    supervisor: Supervisor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = slurm_started(supervisor, tmp_path, monkeypatch, HOSTS, "n1 n2 n3 n4")
    assert (started("spare-0"), started("spare-1")) == ("n3", "n4")
    supervisor.remove("worker-1")
    supervisor.rename("spare-1", "worker-1", tmp_path / "worker-1.log")
    assert started("spare-1") == "n2", "the worker has moved to n4"
    with pytest.raises(ClusterError, match=r"^spare-2 cannot be started"):
        started("spare-2")
    supervisor.workers["srun-2-spares"].kill()
    wait_until(lambda: "spare-0" in supervisor.ended)
    assert started("spare-2") == "n3"


def test_worker_that_has_lost_its_node_may_share_that_of_a_spare_process_that_is_starting(
    supervisor: Supervisor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = slurm_started(supervisor, tmp_path, monkeypatch, HOSTS, "n1 n3 n4")
    assert (started("spare-0"), started("worker-1")) == ("n3", "n4")
    supervisor.remove("worker-1")
    started = slurm_started(supervisor, tmp_path, monkeypatch, HOSTS, "n1 n3")
    assert started("worker-1") == "n3"


def test_nodes_that_have_not_failed_are_those_of_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {"n[1-4]": "n1\nn2\nn3\nn4\n", "n[1,3-4]": "n1\nn3\nn4\n"}
    answers = {"squeue": lambda command: "n[1,3-4]\n", "scontrol": lambda command: names[command[-1]]}
    monkeypatch.setattr(slurm, "_output", lambda command: answers[command[0]](command))
    environment = {slurm.JOB: "7", slurm.NODES: "n[1-4]", slurm.CPUS: "4(x2),1,16"}
    assert slurm.living_nodes(environment) == {"n1": 4, "n3": 1, "n4": 16}


def test_cluster_of_ray_that_cannot_be_reached_is_reported_without_a_traceback(tmp_path: Path) -> None:
    """Ray raises the same error for a wrong address and for a missing token."""
    (tmp_path / "ray.py").write_text("def init(**settings): raise ConnectionError(settings['address'])\n")
    options = (
        "--address=10.0.0.1:6379 --placement=PACK --threads=1 --join-s=1 --count=1 --spares=0 --keys=. --variables=A"
    )
    ended = subprocess.run(
        [*runner_command("runner.engine.cluster.ray_program"), *options.split()],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])},
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 1
    assert "Traceback" not in ended.stderr
    assert "10.0.0.1:6379: expected the address of a running cluster" in ended.stderr
    assert "RAY_AUTH_MODE=token" in ended.stderr
