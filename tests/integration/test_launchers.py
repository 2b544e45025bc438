"""Runs whose processes Slurm or Ray starts."""

import importlib.util
import json
import os
import re
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import psutil
import pytest

from runner.config.configuration import load_stored
from tests.integration.command import QUIET, Command, Start, lacking, succeed, summary_of, wait_until
from tests.integration.hosts import HostCommand, network
from tests.integration.ray_cluster import HEAD, START, STARTED, ray_cluster, require_ray, token_of
from tests.integration.slurm import Slurm, slurm
from tests.integration.test_many_hosts import CASES, COMMON, LONG, STEPS, SYNC, wait_for_checkpoint
from tests.integration.test_resumed_sweep import finished, starts, steps

LENGTH = ("train.steps=400", "train.eval_every=1000000", "checkpoint.every_steps=40")
JOINED = re.compile(r"has joined the run \(pid (\d+)\)")
PROJECT = str(Path(__file__).parents[2])
PLUGINS = {"slurm": "submitit", "ray": "ray"}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    with slurm(tmp_path_factory.mktemp("slurm"), nodes=3) as running:
        yield running


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str | None]:
    """Return a function that returns the SHA-256 of the weights of a run over shared memory with some overrides."""

    @cache
    def weights(*overrides: str) -> str | None:
        folder = tmp_path_factory.mktemp("shared")
        succeed(folder, *QUIET, *COMMON, *overrides, "hydra.run.dir=run")
        return summary_of(folder / "run").weights_sha256

    return weights


@dataclass(frozen=True)
class Launched:
    """The launcher with which the tests start ``runner``. overrides: overrides that choose the launcher."""

    executable: tuple[str, ...]
    environment: Mapping[str, str]
    overrides: tuple[str, ...]


def in_allocation(cluster: Slurm, nodes: int, tasks: int) -> Launched:
    salloc = ("salloc", "--quiet", f"--nodes={nodes}", f"--ntasks={tasks}")
    environment = {**cluster.environment, "PYTHONPATH": PROJECT}
    return Launched((*salloc, sys.executable, "-m", "runner"), environment, ("cluster/launcher=slurm",))


def begin(start: Start, launched: Launched, folder: Path, *overrides: str) -> Command:
    arguments = (*QUIET, *COMMON, *overrides, "hydra.run.dir=run", *launched.overrides)
    return start(folder, *arguments, executable=launched.executable, environment=launched.environment)


@contextmanager
def two_nodes_of_ray() -> Iterator[Launched]:
    with ray_cluster(nodes=2) as (address, environment):
        overrides = ("cluster/launcher=ray", f"cluster.launcher.ray={address}", "cluster.launcher.placement=spread")
        yield Launched((sys.executable, "-m", "runner"), {**environment, "PYTHONPATH": PROJECT}, overrides)


@pytest.fixture(scope="module")
def nodes_of_ray() -> Iterator[Launched]:
    with two_nodes_of_ray() as launched:
        yield launched


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("launcher", ["slurm", "ray"])
def test_processes_of_a_launcher_give_the_weights_of_one_host(
    launcher: str,
    case: str,
    request: pytest.FixtureRequest,
    start: Start,
    trained: Callable[..., str | None],
    tmp_path: Path,
) -> None:
    overrides, per_host = CASES[case]
    if launcher == "slurm":
        launched = in_allocation(request.getfixturevalue("cluster"), len(per_host), sum(per_host))
    else:
        launched = request.getfixturevalue("nodes_of_ray")
    command = begin(start, launched, tmp_path, *overrides, f"train.steps={STEPS}")
    assert command.finish() == 0, command.errors
    assert summary_of(tmp_path / "run").weights_sha256 == trained(*overrides, f"train.steps={STEPS}")
    logs = [path.read_text() for path in (tmp_path / "run" / "workers").glob("*-*.log")]
    assert len(logs) == sum(per_host)
    assert all("has joined the run" in text for text in logs)
    assert not list((tmp_path / "run").glob("keys/*"))


@pytest.mark.slow
@pytest.mark.parametrize(("restarts", "signum"), [(0, signal.SIGKILL), (1, signal.SIGKILL), (1, signal.SIGSTOP)])
@pytest.mark.parametrize("launcher", ["slurm", "ray"])
def test_worker_that_dies_or_freezes_is_replaced_or_ends_the_run_with_node_and_reason(
    launcher: str,
    restarts: int,
    signum: int,
    request: pytest.FixtureRequest,
    start: Start,
    trained: Callable[..., str | None],
    tmp_path: Path,
) -> None:
    """Ray is started by the run, on this machine, and ends with the run."""
    if launcher == "slurm":
        launched = in_allocation(request.getfixturevalue("cluster"), 2, 2)
    else:
        require_ray()
        environment = {**token_of(tmp_path), "PYTHONPATH": PROJECT}
        launched = Launched((sys.executable, "-m", "runner"), environment, ("cluster/launcher=ray",))
    length = (*SYNC, *LENGTH)
    command = begin(start, launched, tmp_path, *length, f"train.restarts={restarts}")
    wait_for_checkpoint(tmp_path / "run")
    log = tmp_path / "run" / "workers" / "worker-1.log"
    number = joined_pid(log)
    begun = time.monotonic()
    os.kill(number, signum)
    assert command.finish() == (0 if restarts else 7), command.errors
    expected = r"worker-1 on \S+: killed" if signum == signal.SIGKILL else "may be stopped or disconnected"
    assert re.search(expected, command.errors), command.errors
    if restarts:
        assert summary_of(tmp_path / "run").weights_sha256 == trained(*length)
        expect_only_replaced(tmp_path / "run", "worker-1")
    else:
        assert time.monotonic() - begun < 10
    assert not psutil.pid_exists(number)
    wait_until(lambda: not processes_with(str(tmp_path)), "the end of all processes of the run")


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("launcher", ["slurm", "ray"])
def test_spare_process_takes_the_place_of_a_lost_one(
    launcher: str, request: pytest.FixtureRequest, start: Start, trained: Callable[..., str | None], tmp_path: Path
) -> None:
    if launcher == "slurm":
        launched = in_allocation(request.getfixturevalue("cluster"), 3, 3)
    else:
        launched = request.getfixturevalue("nodes_of_ray")
    length = (*SYNC, *LENGTH)
    command = begin(start, launched, tmp_path, *length, "cluster.spares=1")
    workers = tmp_path / "run" / "workers"
    spare, worker = (workers / f"{name}.log" for name in ("spare-0", "worker-1"))
    waiting, lost = joined_pid(spare), joined_pid(worker)
    os.kill(lost, signal.SIGKILL)
    assert command.finish() == 0, command.errors
    assert summary_of(tmp_path / "run").weights_sha256 == trained(*length)
    expect_only_replaced(tmp_path / "run", "worker-1")
    assert JOINED.findall(worker.read_text()) == [str(lost), str(waiting)]
    wait_until(lambda: not processes_with(str(tmp_path)), "the end of all processes of the run")


def joined_pid(log: Path) -> int:
    """Wait until the process with this log has joined the run; return its process id."""
    wait_until(lambda: log.exists() and JOINED.search(log.read_text()) is not None, f"a process in {log.name}")
    (number,) = JOINED.findall(log.read_text())
    return int(number)


def expect_only_replaced(run: Path, lost: str) -> None:
    """Expect one recovery at the first attempt, in which all processes but ``lost`` have continued."""
    (recovery,) = map(json.loads, (run / "recoveries.jsonl").read_text().splitlines())
    assert (recovery["epoch"], recovery["worker"], recovery["replaced"]) == (2, lost, [lost])
    for log in (run / "workers").glob("worker-*.log"):
        assert len(JOINED.findall(log.read_text())) == 1 + (log.stem == lost), log.read_text()


def begin_on_three_nodes(cluster: Slurm, start: Start, folder: Path, *overrides: str) -> Command:
    """Begin a run in an allocation of nodes n1 to n3 that survives the loss of a node; wait for a checkpoint."""
    launched = in_allocation(cluster, 3, 3)
    launched = replace(launched, executable=(launched.executable[0], "--no-kill", *launched.executable[1:]))
    command = begin(start, launched, folder, *overrides)
    wait_for_checkpoint(folder / "run")
    return command


@pytest.mark.slow
def test_run_whose_node_is_lost_goes_on_with_fewer_workers(cluster: Slurm, start: Start, tmp_path: Path) -> None:
    length = ("parallelism=sync_data", "parallelism.workers=3", *LENGTH, "cluster.min_workers=2")
    command = begin_on_three_nodes(cluster, start, tmp_path, *length)
    cluster.call("scontrol", "update", "nodename=n3", "state=down", "reason=test")
    assert command.finish() == 0, command.errors
    assert "the run continues from the newest checkpoint with 2 workers" in command.errors
    assert load_stored(tmp_path / "run" / "config.yaml").parallelism.workers == 2
    assert (summary_of(tmp_path / "run").status, summary_of(tmp_path / "run").steps) == ("finished", 400)


@pytest.mark.slow
def test_process_of_a_lost_node_of_slurm_is_replaced_on_another(
    cluster: Slurm, start: Start, trained: Callable[..., str | None], tmp_path: Path
) -> None:
    length = (*SYNC, *LENGTH)
    command = begin_on_three_nodes(cluster, start, tmp_path, *length)
    joined_pid(tmp_path / "run" / "workers" / "worker-1.log")  # heartbeats carry the lines of this log
    cluster.call("scontrol", "update", "nodename=n2", "state=down", "reason=test")
    assert command.finish() == 0, command.errors
    assert summary_of(tmp_path / "run").weights_sha256 == trained(*length)
    expect_only_replaced(tmp_path / "run", "worker-1")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_process_of_a_lost_node_of_ray_is_replaced_on_another(
    start: Start, trained: Callable[..., str | None], tmp_path: Path
) -> None:
    length, run = (*SYNC, *LENGTH), tmp_path / "run"
    with two_nodes_of_ray() as launched:
        command = begin(start, launched, tmp_path, *length)
        wait_until(lambda: (run / "checkpoints" / "step-40").exists(), "a checkpoint")
        logs = sorted((run / "workers").glob("worker-*.log"))
        wait_until(lambda: all(JOINED.search(log.read_text()) for log in logs), "the logs of the workers")
        # The parents of a worker are its actor and the daemon of its node.
        daemons = {log.stem: psutil.Process(int(JOINED.findall(log.read_text())[0])).parents()[1] for log in logs}
        ((lost, daemon),) = ((name, each) for name, each in daemons.items() if "--head" not in each.cmdline())
        daemon.kill()
        assert command.finish() == 0, command.errors
    assert summary_of(run).weights_sha256 == trained(*length)
    expect_only_replaced(run, lost)


def processes_with(text: str) -> list[int]:
    """Return the ids of the processes with this text in an environment variable, such as the working directory."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if any(text in value for value in process.environ().values()):
                found.append(process.pid)
    return found


def submitted(command: Command) -> str:
    assert command.finish() == 0, command.errors
    found = re.search(r"submitted as job (\d+) of Slurm", command.output)
    assert found, command.output
    return found[1]


@pytest.mark.slow
@pytest.mark.parametrize("way", ["notice", "requeue"])
def test_preempted_run_continues_with_the_weights_of_an_undisturbed_one(
    way: str, cluster: Slurm, start: Start, trained: Callable[..., str | None], tmp_path: Path
) -> None:
    """Slurm either gives notice by SIGTERM to the batch script, or ends all processes immediately."""
    length = (*SYNC, *LENGTH)
    outside = Launched(
        (sys.executable, "-m", "runner"),
        {**cluster.environment, "PYTHONPATH": PROJECT},
        ("cluster/launcher=slurm", "cluster.launcher.sbatch={nodes: 2}"),
    )
    job = submitted(begin(start, outside, tmp_path, *length))
    run = tmp_path / "run"
    wait_until(lambda: (run / "checkpoints" / "step-80").exists(), "a checkpoint")
    if way == "notice":
        cluster.call("scancel", "--batch", "--signal=TERM", job)
    else:
        cluster.call("scontrol", "requeue", job)
    cluster.wait_for("COMPLETED", job)
    assert summary_of(run).status == "finished", (run / "slurm.log").read_text()
    assert "runner resume=" in (run / "slurm.log").read_text() or way == "requeue"
    assert summary_of(run).weights_sha256 == trained(*length)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", ["slurm", "ray"])
def test_twelve_jobs_of_a_sweep_run_once_although_the_command_is_killed(
    name: str, request: pytest.FixtureRequest, start: Start, tmp_path: Path
) -> None:
    """The jobs of Slurm outlive the command. Jobs of Ray that the kill interrupts are run again."""
    if importlib.util.find_spec(f"hydra_plugins.hydra_{PLUGINS[name]}_launcher") is None:
        lacking(name, f"pip install 'runner-dataflow[{name}]'")
    if name == "slurm":
        cluster = request.getfixturevalue("cluster")
        environment = {**cluster.environment, "PYTHONPATH": PROJECT}
        launcher = ("hydra/launcher=submitit_slurm", "hydra.launcher.cpus_per_task=1")
    else:
        nodes = request.getfixturevalue("nodes_of_ray")
        environment, address = dict(nodes.environment), nodes.overrides[1].partition("=")[2]
        init = (f"hydra.launcher.ray.init.address={address}", "+hydra.launcher.ray.init.object_store_memory=null")
        launcher = ("hydra/launcher=ray", *init)
    sweep = tmp_path / "sweep"
    jobs = ("model=mlp", "parallelism=single", "train.epochs=null", "train.steps=4", "train.log_every=1")
    swept = ("seed=range(12)", *jobs, "hydra.sweep.dir=sweep")
    killed = start(tmp_path, "-m", *QUIET, *launcher, *swept, environment=environment)
    wait_until(lambda: len(finished(sweep)) >= 2, "two finished jobs")
    killed.send(signal.SIGKILL)
    killed.finish()
    before = {path: path.stat().st_mtime_ns for path in finished(sweep)}
    assert len(before) < 12
    resumed = start(tmp_path, "sweep", "resume", "sweep", *launcher, environment=environment)
    assert resumed.finish() == 0, resumed.errors
    assert len(finished(sweep)) == 12
    assert {path: path.stat().st_mtime_ns for path in before} == before, "a finished job ran again"
    assert all(steps(sweep / str(number)) == [1, 2, 3, 4] for number in range(12))
    if name == "slurm":
        assert [starts(sweep / str(number)) for number in range(12)] == [1] * 12
        array = cluster.call("squeue", "--noheader", "--states=all", "--array", "--format=%i").split()
        assert len([job for job in array if re.fullmatch(r"\d+_\d+", job)]) >= 12


@pytest.mark.slow
def test_ray_on_two_hosts_gives_the_weights_of_one_and_a_host_that_is_cut_off_ends_the_run(
    trained: Callable[..., str | None], tmp_path: Path
) -> None:
    require_ray()
    with network(2) as net:
        first, second = net.hosts
        variables = token_of(tmp_path) | {"RAY_AUTH_TOKEN_PATH": "/home/me/token"}
        given = [f"{name}={value}" for name, value in variables.items()]
        for host in net.hosts:
            shutil.copy2(tmp_path / "token", host.path("/home/me/token"))
            place = [*HEAD, "--port=6379"] if host is first else [f"--address={first.address}:6379"]
            host.execute("env", *given, *START, *place, f"--node-ip-address={host.address}").wait_for(STARTED)

        def run_on_both(folder: str, *overrides: str) -> HostCommand:
            chosen = (f"cluster.launcher.ray={first.address}:6379", "cluster.launcher.placement=strict_spread")
            common = (*QUIET, *COMMON, "cluster/launcher=ray", *chosen, f"hydra.run.dir=/home/me/{folder}")
            return first.execute("env", *given, sys.executable, "-m", "runner", *common, *overrides)

        run = run_on_both("run", *SYNC, f"train.steps={STEPS}")
        assert run.finish() == 0, run.output
        assert summary_of(first.path("/home/me/run")).weights_sha256 == trained(*SYNC, f"train.steps={STEPS}")
        run = run_on_both("long", *LONG, "train.restarts=0")
        wait_for_checkpoint(first.path("/home/me/long"))
        begun = time.monotonic()
        net.cut(second)
        assert run.finish() == 7, run.output
        assert time.monotonic() - begun < 10
        assert re.search(r"worker-\d on host1|the host host1 may be stopped", run.output), run.output
        net.mend(second)
        for host in net.hosts:
            wait_until(lambda host=host: "--join" not in " ".join(host.processes()), "the end of the processes")
