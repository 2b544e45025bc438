"""Runs over several hosts, each with its own network, file system and processes (namespaces made here; needs root)."""

import json
import re
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import runner
from tests.integration.command import QUIET, succeed, summary_of, wait_until
from tests.integration.hosts import Host, Network, announced, copied_command, network, train_on
from tests.small_runs import typed

STEPS = 8
COMMON = ("experiment=digits_equivalence", "schedule=constant", "train.batch_size=12", "train.epochs=null")
SYNC = ("parallelism=sync_data", "parallelism.workers=2")
HIERARCHICAL = typed(
    "parallelism=sync_data parallelism.workers=4 parallelism.combine=hierarchical parallelism.workers_per_host=2"
)
SERVED = (*SYNC, "parallelism.combine=parameter_server", "parallelism.servers=1")
HYBRID = ("parallelism=hybrid", "parallelism.workers=3", "parallelism.scheme=c")
MODEL = typed("model=mlp parallelism=model parallelism.workers=2 parallelism.concurrent_steps=2")
ASYNC = ("parallelism=async_data", "parallelism.workers=1", "parallelism.servers=2", "parallelism.loop=sequential")
SANDBLASTER = typed(
    "model=mlp model.hidden=[8] optimizer=lbfgs optimizer.history=2 parallelism=sandblaster parallelism.servers=1 "
    "parallelism.workers=2 train.batch_size=128"
)
CASES = {
    "sync_data": (SYNC, [1, 1]),
    "hierarchical": (HIERARCHICAL, [2, 2]),
    "parameter servers": (SERVED, [1, 1, 1]),
    "hybrid": (HYBRID, [1, 1, 1]),
    "model": (MODEL, [1, 1]),
    "async_data": (ASYNC, [1, 2]),
    "sandblaster": (SANDBLASTER, [1, 1, 1]),
}
LONG = (*SYNC, "train.steps=1000000", "train.eval_every=1000000", "checkpoint.every_steps=4")


@pytest.fixture(scope="module")
def net() -> Iterator[Network]:
    """Yield three hosts; a test that cuts off or ends a host makes its own hosts."""
    with network(3) as found:
        yield found


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the SHA-256 of the weights of each case, trained on this host over shared memory and over TCP."""
    return {}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_loopback_tcp_gives_the_weights_of_shared_memory(case: str, trained: dict[str, str], tmp_path: Path) -> None:
    shared, over_tcp = tmp_path / "shared", tmp_path / "tcp"
    # For recoveries, the master fetches the variables at times that depend on the speed, and these bytes count too.
    common = (*QUIET, *COMMON, *CASES[case][0], f"train.steps={STEPS}", "train.restarts=0")
    succeed(tmp_path, *common, f"hydra.run.dir={shared}")
    succeed(tmp_path, *common, f"hydra.run.dir={over_tcp}", "cluster.launcher.over_tcp=true")
    trained[case] = summary_of(shared).weights_sha256
    assert summary_of(over_tcp).weights_sha256 == trained[case]
    if case != "sandblaster":  # whose workers compute some portions twice, depending on their speed
        assert summary_of(over_tcp).bytes_sent_per_worker == summary_of(shared).bytes_sent_per_worker


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_several_hosts_give_the_weights_of_one(
    case: str, net: Network, trained: dict[str, str], tmp_path: Path
) -> None:
    overrides, per_host = CASES[case]
    if case not in trained:
        succeed(tmp_path, *QUIET, *COMMON, *overrides, f"train.steps={STEPS}", "hydra.run.dir=run")
        trained[case] = summary_of(tmp_path / "run").weights_sha256
    hosts = net.hosts[: len(per_host)]
    run, joined = train_on(hosts, per_host, *COMMON, *overrides, f"train.steps={STEPS}")
    assert run.finish() == 0, run.output
    assert [command.finish() for command in joined] == [0] * len(joined), [command.output for command in joined]
    summary = summary_of(hosts[0].path("/home/me/run"))
    assert summary.weights_sha256 == trained[case]
    logs = {path.name: path.read_text() for path in hosts[0].path("/home/me/run/workers").iterdir()}
    assert len(logs) == len(joined)
    assert all("has joined the run" in text for text in logs.values())
    for host in hosts[1:]:
        expect_nothing_left(host)
        written = {path for path in host.path("/home/me").rglob("*") if path.is_file()}
        others = {path.parent.name for path in written if not path.name.startswith("output-")}
        assert others <= {"machine_code"}, "the run writes nothing there but compiled code"


def expect_nothing_left(host: Host) -> None:
    """Expect that no process of a run and no file in shared memory is left on a host."""
    deadline = time.monotonic() + 3.0
    while "--join" in " ".join(host.processes()):
        assert time.monotonic() < deadline, host.processes()
        time.sleep(0.05)
    assert list(host.path("/dev/shm").iterdir()) == []


@pytest.mark.slow
def test_processes_of_different_hosts_have_no_shared_memory_but_those_of_one_host_have(net: Network) -> None:
    hosts = net.hosts[:2]
    run, joined = train_on(hosts, [2, 1], *COMMON, "parallelism=sync_data", "parallelism.workers=3", *LONG[2:])
    wait_for_checkpoint(hosts[0].path("/home/me/run"))
    mapped = {host.name: arenas(host) for host in hosts}
    assert len(mapped["host0"]) > 0
    assert not mapped["host1"]
    run.interrupt()
    assert run.finish() == 130, run.output
    assert [command.finish(10.0) for command in joined] == [130] * 3
    assert all("the run has ended: stopped after step" in command.output for command in joined)


def arenas(host: Host) -> set[str]:
    """Return the files of shared memory that the processes of a host have mapped."""
    maps = (path.read_text() for path in host.root.glob("proc/[0-9]*/maps"))
    return {found for text in maps for found in re.findall(r"/dev/shm/\S+", text)}


def wait_for_checkpoint(run: Path) -> None:
    wait_until(lambda: any(run.glob("checkpoints/step-*")), "a checkpoint")


@pytest.mark.slow
@pytest.mark.parametrize("way", ["cut", "power"])
def test_lost_host_ends_the_run_with_its_name_a_checkpoint_and_nothing_left(way: str) -> None:
    with network(3) as net:
        first, _, lost = net.hosts
        three = ("parallelism=sync_data", "parallelism.workers=3", "train.restarts=0", *LONG[2:])
        run, joined = train_on(net.hosts, [1, 1, 1], *COMMON, *three)
        wait_for_checkpoint(first.path("/home/me/run"))
        begin = time.monotonic()
        if way == "cut":
            net.cut(lost)
        else:
            lost.close()
        assert run.finish() == 7, run.output
        assert time.monotonic() - begin < 10
        assert "worker-2" in run.output
        assert "host2" in run.output
        assert [command.finish(10.0) for command in joined[:2]] == [7, 7], [each.output for each in joined]
        if way == "cut":
            assert joined[2].finish(10.0) == 7, joined[2].output
            net.mend(lost)
            expect_nothing_left(lost)
        for host in net.hosts[:2]:
            expect_nothing_left(host)
        assert not list(first.path("/home/me/run/keys").iterdir())
        saved = max(int(path.name[5:]) for path in first.path("/home/me/run/checkpoints").glob("step-*"))
        resumed = first.start("resume=/home/me/run", f"train.steps={saved + 1}", "cluster=local")
        assert resumed.finish() == 0, resumed.output


@pytest.mark.slow
@pytest.mark.parametrize("way", ["cut", "power"])
def test_run_goes_on_after_the_command_of_a_lost_host_is_typed_on_another(way: str, tmp_path: Path) -> None:
    three = (*COMMON, "parallelism=sync_data", "parallelism.workers=3", "train.steps=150", "checkpoint.every_steps=50")
    succeed(tmp_path, *QUIET, *three, "hydra.run.dir=run")
    with network(4) as net:
        *hosts, another = net.hosts
        run, joined = train_on(hosts, [1, 1, 1], *three)
        wait_for_checkpoint(hosts[0].path("/home/me/run"))
        if way == "cut":
            net.cut(hosts[2])
        else:
            hosts[2].close()
        replacement = copied_command(run, hosts, 3, elsewhere=another)
        joined.append(another.start(*replacement.arguments))
        if way == "cut":
            net.mend(hosts[2])
            assert joined[2].finish() == 7, "the master does not take back a process that it has replaced"
        assert run.finish() == 0, run.output
        assert [joined[number].finish() for number in (0, 1, 3)] == [0, 0, 0]
        assert summary_of(hosts[0].path("/home/me/run")).weights_sha256 == summary_of(tmp_path / "run").weights_sha256
        (recovery,) = map(json.loads, hosts[0].path("/home/me/run/recoveries.jsonl").read_text().splitlines())
        assert (recovery["worker"], recovery["replaced"]) == ("worker-2", ["worker-2"])
        for host in (*hosts[:2], another):
            expect_nothing_left(host)


@pytest.mark.slow
def test_processes_that_do_not_fit_are_refused_with_a_reason(net: Network) -> None:
    """Processes with other code, and a second process with a used key, get the reason; the run is unharmed."""
    hosts = net.hosts[:2]
    plugin = hosts[1].path("/home/me/other.py")
    plugin.write_text("from runner.plugin import Plugin\n\nplugin = Plugin()\n")
    run, commands = announced(hosts, [1, 1], *COMMON, *LONG, "train.restarts=0")
    hosts[1].path("/home/me/second.key").write_bytes(commands[1].key.read_bytes())
    hosts[1].path("/home/me/second.key").chmod(0o600)
    wrong = hosts[1].start(*commands[1].arguments, "--plugin", "/home/me/other.py")
    assert wrong.finish() == 7
    assert "plugin other.py is" in wrong.output
    package = shutil.copytree(Path(runner.__file__).parent, hosts[1].path("/home/me/other/runner"))
    with (package / "errors.py").open("a") as file:
        file.write("# a change\n")
    python = ("env", "PYTHONPATH=/home/me/other", sys.executable, "-m", "runner")
    wrong = hosts[1].execute(*python, *commands[1].arguments)
    assert wrong.finish() == 7
    assert "source files of runner is SHA-256" in wrong.output
    joined = [command.host.start(*command.arguments) for command in commands]
    wait_for_checkpoint(hosts[0].path("/home/me/run"))
    address = commands[1].arguments[2]
    second = hosts[1].start("worker", "--join", address, "--key", "/home/me/second.key")
    assert second.finish() == 7
    assert "worker-1 has already joined the run" in second.output
    joined[1].interrupt()
    assert run.finish() == 7, run.output
    ended = "worker-1 on host1: Ctrl-C stopped this process"
    assert ended in run.output, "the end of the process is reported, and not noticed by its silence"
    assert [command.finish(10.0) for command in joined] == [7, 130]
    assert any(text in joined[0].output for text in (f"the run has ended: {ended}", "could not send"))
    late = hosts[1].start("worker", "--join", address, "--key", "/home/me/none.key")
    assert late.finish() == 8
    assert "each start of a run writes new key files" in late.output


@pytest.mark.slow
def test_timeline_of_hosts_with_different_clocks_is_aligned() -> None:
    """The clock of the second host is 1,000 s ahead; within the error, no tensor is received before it is sent."""
    with network(2, clocks_s=(0, 1000)) as net:
        traced = ("trace=true", "trace_skip=1", "trace_steps=3", "train.steps=6")
        run, joined = train_on(net.hosts, [1, 1], *COMMON, *SYNC, *traced)
        assert run.finish() == 0, run.output
        assert [command.finish() for command in joined] == [0, 0]
        log = net.hosts[0].path("/home/me/run/run.log").read_text()
        (ahead, error), *_ = [
            (float(found[1]), float(found[2]))
            for found in re.finditer(
                r"clock of worker-1: (\S+) s ahead of the master's clock, with an error of at most (\S+) s", log
            )
        ]
        assert abs(ahead - 1000) <= error < 0.1
        events = json.loads(net.hosts[0].path("/home/me/run/trace.json").read_text())["traceEvents"]
        times = [event["ts"] for event in events if event["ph"] == "X"]
        assert times
        assert max(times) - min(times) < 60e6, "microseconds"
