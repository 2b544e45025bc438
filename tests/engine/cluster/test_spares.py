"""Spare processes: which one takes the place of a lost worker, and what a fault of a spare process does to the run."""

import re
import signal
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

import pytest

from runner.engine.cluster.joining import HOST, MEMORY, Joined
from runner.engine.cluster.launchers import LocalLauncher
from runner.engine.cluster.supervisor import Supervisor
from runner.engine.cluster.transport import messages
from runner.engine.cluster.transport.messages import MASTER, Heartbeat, Hello
from runner.errors import ClusterError, ResourceError
from tests.engine.cluster.stage import SLEEPS, Stage
from tests.engine.cluster.transport.conftest import identity, next_of
from tests.engine.cluster.transport.fake_network import FakeEndpoint
from tests.integration.command import wait_until


def hello(host: str, memory: str) -> Hello:
    return Hello("worker", 0, 1, "", facts={HOST: host, MEMORY: memory})


@pytest.mark.parametrize(
    ("ready", "shared", "expected"),
    [
        ({"spare-0", "spare-1"}, False, "spare-1"),
        ({"spare-0"}, False, "spare-0"),
        (set(), False, None),
        ({"spare-0", "spare-1"}, True, "spare-0"),
        ({"spare-1"}, True, None),
    ],
)
def test_spare_process_on_the_host_of_the_lost_worker_is_preferred(
    ready: Collection[str], shared: bool, expected: str | None, supervisor: Supervisor, tmp_path: Path
) -> None:
    """If the lost worker shared memory with the master, only a process that shares it too can read the plans."""
    joined = Joined(["worker-0"], {MEMORY: "m"}, LocalLauncher(tmp_path, 1), supervisor)
    joined.hellos["worker-0"] = hello("b", "m" if shared else "n")
    joined.spares.update({"spare-0": hello("a", "m"), "spare-1": hello("b", "n")})
    joined.remove("worker-0")
    assert joined.take_spare("worker-0", ready) == expected
    taken = {None: "b", "spare-0": "a", "spare-1": "b"}
    others = {name: host for name, host in (("spare-0", "a"), ("spare-1", "b")) if name != expected}
    assert joined.hosts == {"worker-0": taken[expected], **others}


Started = list[list[str]]


@pytest.fixture
def started(elsewhere: Stage) -> Started:
    """Return the names of the processes that the group starts, for each call."""
    calls: Started = []
    spares = elsewhere.group.spares
    elsewhere.group.start = spares.start = lambda names, epoch, hosts: calls.append(list(names))
    spares.ticket = lambda worker, epoch: f"{worker} in epoch {epoch}".encode()
    return calls


def join(stage: Stage, facts: Mapping[str, str]) -> FakeEndpoint:
    """Start the spare processes; the first one joins and sends a heartbeat. Return its endpoint."""
    stage.group.spares.start_missing()
    spare = stage.network.endpoint(identity("spare-0"), peers=2)
    spare.connect(MASTER, facts=facts, own_address="tcp://10.0.0.9:5")
    beats = stage.peers["spare_heartbeat-0"] = stage.network.endpoint(identity("spare_heartbeat-0"), peers=2)
    beats.connect(MASTER)
    wait(stage, 0.5)
    beats.send(MASTER, Heartbeat(messages.IDLE, 0))
    wait(stage, 0.5)
    return spare


def wait(stage: Stage, seconds: float) -> None:
    """Let the master read for some seconds, in which both workers send heartbeats."""
    for worker in (0, 1):
        stage.beat(worker, messages.STEP, 7, *range(round(seconds) + 1))
    with pytest.raises(ClusterError, match="no message 'done'"):
        stage.group.gather(["worker-0"], messages.Done, limit_s=seconds)


def lose_worker_1(stage: Stage, epoch: int = 2) -> None:
    stage.peers["worker-0"].advance(epoch)
    stage.send("worker-0", messages.Abandoned())
    assert stage.group.replace("worker-1", epoch) == ["worker-1"]


def join_again(stage: Stage) -> None:
    """Let the process that replaces worker-1 join in epoch 2."""
    new = stage.network.endpoint(identity("worker-1", epoch=2), peers=2)
    new.connect(MASTER, own_address="tcp://10.0.0.9:6")
    stage.group.set_up(lambda addresses: b"", ["worker-1"])
    stage.group.absent.clear()
    stage.group.spares.start_again()


def test_spare_process_gets_the_ticket_of_the_lost_worker(elsewhere: Stage, started: Started) -> None:
    spare = join(elsewhere, {})
    lose_worker_1(elsewhere)
    received = [next_of(spare) for _ in range(3)]
    assert [type(each.message) for each in received] == [messages.Hello, messages.Welcome, messages.Replace]
    assert bytes(received[-1].frames[0]) == b"worker-1 in epoch 2"
    assert started == [["spare-0", "spare-1"], []]
    join_again(elsewhere)
    assert started == [["spare-0", "spare-1"], [], ["spare-0"]], "the other spare process may still join"
    again = elsewhere.network.endpoint(identity("spare-0", epoch=2), peers=2)
    again.connect(MASTER, own_address="tcp://10.0.0.9:7")
    wait(elsewhere, 0.5)
    assert [type(next_of(again).message) for _ in range(2)] == [messages.Hello, messages.Welcome]


def test_a_replacement_gets_no_plans_before_the_others_are_in_the_new_epoch(
    elsewhere: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    group, rejoined = elsewhere.group, list[bool]()
    monkeypatch.setattr(group, "rejoined", lambda: rejoined.append(True))
    new = elsewhere.network.endpoint(identity("worker-1", epoch=2), peers=2)

    def start(names: Collection[str], epoch: int, hosts: Mapping[str, str]) -> None:
        if names:
            new.connect(MASTER, own_address="tcp://10.0.0.9:6")
            elsewhere.peers["worker-0"].advance(epoch)
            elsewhere.send("worker-0", messages.Abandoned())

    group.start = start
    assert group.replace("worker-1", 2) == ["worker-1"]
    assert group.has_joined
    assert rejoined == []


def test_a_spare_process_that_started_before_another_failed_is_not_started_again(
    elsewhere: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    spares, supervised = elsewhere.group.spares, dict[str, object]()

    def start(names: Collection[str], epoch: int, hosts: Mapping[str, str]) -> None:
        supervised["spare-0"] = None
        raise ResourceError("no more processes")

    monkeypatch.setattr(spares, "start", start)
    with monkeypatch.context() as patched:
        patched.setattr(spares.supervisor, "workers", supervised)
        with pytest.raises(ResourceError, match="no more processes"):
            spares.start_missing()
    assert spares.started == {"spare-0"}


def test_spare_process_joins_although_a_worker_was_lost_while_it_started(elsewhere: Stage, started: Started) -> None:
    """It is not used before its first heartbeat, because it may not have received the welcome."""
    elsewhere.group.spares.start_missing()
    lose_worker_1(elsewhere)
    join_again(elsewhere)
    spare = elsewhere.network.endpoint(identity("spare-0"), peers=2)
    spare.connect(MASTER, own_address="tcp://10.0.0.9:5")
    wait(elsewhere, 0.5)
    assert [type(next_of(spare).message) for _ in range(2)] == [messages.Hello, messages.Welcome]
    lose_worker_1(elsewhere, epoch=3)
    assert started == [["spare-0", "spare-1"], ["worker-1"], ["worker-1"]]


def end_process(stage: Stage, signum: int) -> None:
    """Start a process of this host as that of the spare process, and send it a signal; its connection stays open."""
    process = stage.supervisor.start("spare-0", SLEEPS, stage.group.logs / "spare-0.log", {})
    process.send_signal(signal.Signals(signum))
    wait_until(lambda: process.is_stopped or process.poll() is not None)


def test_spare_processes_get_all_documents_whenever_they_join(elsewhere: Stage, started: Started) -> None:
    elsewhere.group.spares.prepare(messages.Setup(), b"setup")
    spare = join(elsewhere, {})
    elsewhere.group.spares.prepare(messages.Load("train-0"), b"assignment")
    received = [next_of(spare) for _ in range(4)]
    assert [each.message for each in received[1:]] == [messages.Welcome(), messages.Setup(), messages.Load("train-0")]
    assert [bytes(each.frames[0]) for each in received[2:]] == [b"setup", b"assignment"]


def test_spare_processes_get_a_limited_number_of_documents(elsewhere: Stage, started: Started) -> None:
    for number in range(100):
        elsewhere.group.spares.prepare(messages.Load(f"train-{number}"), b"assignment")
    spare = join(elsewhere, {})
    received = list(iter(lambda: spare.receive(0), None))
    assert [each.message for each in received[2:]] == [messages.Load(f"train-{number}") for number in range(32)]


def test_spare_process_that_cannot_be_reached_is_removed(elsewhere: Stage, started: Started) -> None:
    spare = join(elsewhere, {})
    elsewhere.network.kill("spare-0")
    elsewhere.group.spares.prepare(messages.Load("train-0"), b"assignment")
    assert not elsewhere.group.spares.joined.spares
    assert not isinstance(list(iter(lambda: spare.receive(0), None))[-1].message, messages.Load)
    elsewhere.group.spares.start_missing()
    assert started == [["spare-0", "spare-1"], ["spare-0"]]


FAULTS: dict[str, tuple[Mapping[str, str], Callable[[Stage], object], str]] = {
    "other facts": ({"numpy": "1"}, lambda stage: None, "spare-0 .* was refused: numpy is 1, expected none"),
    "lost connection": ({}, lambda stage: stage.network.kill("spare-0"), "could not send 'replace' to spare-0"),
    "killed": ({}, lambda stage: end_process(stage, signal.SIGKILL), ""),
    "stopped": ({}, lambda stage: end_process(stage, signal.SIGSTOP), ""),
    "no recent heartbeat": ({}, lambda stage: wait(stage, 2.0), ""),
    "silent": ({}, lambda stage: wait(stage, 12.0), "spare-0 is silent: .* without this spare process"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_spare_process_that_cannot_take_over_is_not_used(
    fault: str, elsewhere: Stage, started: Started, caplog: pytest.LogCaptureFixture
) -> None:
    facts, disturb, warning = FAULTS[fault]
    spare = join(elsewhere, facts)
    disturb(elsewhere)
    lose_worker_1(elsewhere)
    assert started == [["spare-0", "spare-1"], ["worker-1"]]
    assert re.search(warning, caplog.text)
    assert bool(elsewhere.group.endpoint.refusals) == bool(facts)  # type: ignore[attr-defined]
    assert messages.Replace not in [type(each.message) for each in iter(lambda: spare.receive(0), None)]


@pytest.mark.parametrize("slow", ["checkpoint", "end of the lost worker"])
def test_spare_process_is_used_although_the_master_was_busy_since_the_loss(
    slow: str, elsewhere: Stage, started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The master reads no heartbeats while it completes a checkpoint or waits for the end of the lost process."""
    spare = join(elsewhere, {})
    if slow == "checkpoint":
        elsewhere.network.clock.advance(4.0)
    else:
        monkeypatch.setattr(elsewhere.supervisor, "remove", lambda name: elsewhere.network.clock.advance(4.0))
    lose_worker_1(elsewhere)
    assert started == [["spare-0", "spare-1"], []]
    assert [type(next_of(spare).message) for _ in range(3)][-1] == messages.Replace


def test_spare_processes_end_with_the_run(elsewhere: Stage, started: Started) -> None:
    spare = join(elsewhere, {})
    elsewhere.group.dismiss(messages.Shutdown(7, "why"))
    assert [next_of(spare).message for _ in range(3)][-1] == messages.Shutdown(7, "why")
