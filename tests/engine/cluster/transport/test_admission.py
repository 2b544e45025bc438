"""Admission of messages: delivered, dropped and refused messages."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.engine.cluster.transport.admission import Admission, Drop
from runner.engine.cluster.transport.encoding import Envelope, encode_header
from runner.engine.cluster.transport.endpoint import Received
from runner.engine.cluster.transport.messages import Heartbeat, Hello, Loaded, Message, Run, Shutdown
from runner.errors import ClusterError, RunnerError, SecurityError
from tests.engine.cluster.transport.conftest import TOKEN, identity
from tests.engine.cluster.transport.fake_network import FakeNetwork, Faults, check_state

CONNECTION = b"connection"
LOADED = Loaded("p")


def hello(name: str, token: str = TOKEN) -> Hello:
    who = identity(name)
    return Hello(who.role, who.index, pid=1, token=token)


def admit(
    admission: Admission, source: str, sequence: int, message: Message, *frames: bytes, **options: Any
) -> Received | None:
    """Pass a message to ``admission``. options: ``connection`` and arguments for ``identity``."""
    connection = options.pop("connection", CONNECTION)
    header = encode_header(identity(source, **options).envelope(sequence), message)
    received = admission.admit(connection, header, tuple(map(memoryview, frames)))
    check_state(admission)
    return received


@pytest.fixture
def master() -> Admission:
    return Admission(identity("master-0"), peers=2)


@pytest.fixture
def after_hello(master: Admission) -> Admission:
    """Return a master's admission after worker-0 has sent hello; the hello is delivered without its token."""
    assert admit(master, "worker-0", 0, hello("worker-0")) == Received("worker-0", Hello("worker", 0, 1, token=""))
    return master


@pytest.mark.parametrize(
    ("message", "epoch", "reason"),
    [
        (LOADED, 1, Drop.NO_HELLO),
        (hello("worker-0", token="b" * 64), 1, Drop.BAD_TOKEN),
        (hello("worker-0", token="é"), 1, Drop.BAD_TOKEN),
        (hello("worker-0"), 0, Drop.STALE),
    ],
)
def test_first_message_other_than_a_valid_hello_is_dropped(
    master: Admission, caplog: pytest.LogCaptureFixture, message: Message, epoch: int, reason: Drop
) -> None:
    assert admit(master, "worker-0", 0, message, epoch=epoch) is None
    assert master.drops == {reason: 1}
    ((connection, text),) = master.refused
    assert (connection, text.startswith(f"{reason.value} (")) == (CONNECTION, True)
    assert f"master-0 dropped a message: {reason.value} (" in caplog.text
    assert "b" * 64 not in caplog.text + text
    assert admit(master, "worker-0", 1, LOADED) is None
    assert master.drops[Drop.NO_HELLO] == 1 + (reason is Drop.NO_HELLO)


def test_malformed_header_is_dropped_before_hello_and_refused_after(master: Admission) -> None:
    assert master.admit(CONNECTION, b"GET / HTTP/1.1", ()) is None
    assert master.drops == {Drop.MALFORMED: 1}
    admit(master, "worker-0", 0, hello("worker-0"))
    with pytest.raises(SecurityError, match="worker-0: message header refused"):
        master.admit(CONNECTION, b"\xc1", ())


@pytest.mark.parametrize(("run", "epoch"), [("run", 0), ("other", 1)])
def test_other_run_or_earlier_epoch_is_dropped(after_hello: Admission, run: str, epoch: int) -> None:
    assert admit(after_hello, "worker-0", 1, LOADED, run=run, epoch=epoch) is None
    assert after_hello.drops == {Drop.STALE: 1}
    assert admit(after_hello, "worker-0", 2, LOADED) == Received("worker-0", LOADED)
    with pytest.raises(ClusterError, match="1 messages from worker-0 to master-0 were lost"):
        admit(after_hello, "worker-0", 4, LOADED, run=run, epoch=epoch)


def test_messages_from_before_a_recovery_are_dropped_but_heartbeats_are_not(after_hello: Admission) -> None:
    beats: dict[str, Any] = {"connection": b"heartbeats"}
    admit(after_hello, "worker_heartbeat-0", 0, hello("worker_heartbeat-0"), **beats)
    after_hello.advance(identity("master-0", epoch=2))
    assert admit(after_hello, "worker-0", 1, LOADED) is None
    assert after_hello.drops == {Drop.STALE: 1}
    assert admit(after_hello, "worker-0", 2, LOADED, epoch=2) == Received("worker-0", LOADED)
    beat = Heartbeat("step", 0)
    assert admit(after_hello, "worker_heartbeat-0", 1, beat, **beats) == Received("worker_heartbeat-0", beat)


def test_message_of_the_next_epoch_is_delivered_to_a_process_that_has_not_begun_it(after_hello: Admission) -> None:
    assert admit(after_hello, "worker-0", 1, LOADED, epoch=2) == Received("worker-0", LOADED)


def test_replacement_of_a_lost_process_joins_in_the_new_epoch(after_hello: Admission) -> None:
    admit(after_hello, "worker_heartbeat-0", 0, hello("worker_heartbeat-0"), connection=b"heartbeats")
    after_hello.advance(identity("master-0", epoch=2), ["worker-0"])
    assert admit(after_hello, "worker-0", 1, LOADED) is None, "of the lost process"
    for name in ("worker-0", "worker_heartbeat-0"):
        assert admit(after_hello, name, 0, hello(name), connection=b"old") is None
    assert after_hello.drops == {Drop.NO_HELLO: 1, Drop.STALE: 2}
    assert admit(after_hello, "worker-0", 0, hello("worker-0"), epoch=2, connection=b"new") is not None


@pytest.mark.parametrize("name", ["worker-1", "worker_heartbeat-1"])
def test_hello_of_a_survivor_that_arrives_after_the_recovery_is_admitted(after_hello: Admission, name: str) -> None:
    after_hello.advance(identity("master-0", epoch=2), ["worker-0"])
    assert admit(after_hello, name, 0, hello(name), connection=b"late") is not None
    sent = Heartbeat("step", 0) if "heartbeat" in name else LOADED
    assert admit(after_hello, name, 1, sent, epoch=2, connection=b"late") == Received(name, sent)


def test_duplicate_is_dropped(after_hello: Admission) -> None:
    assert admit(after_hello, "worker-0", 1, LOADED) is not None
    assert admit(after_hello, "worker-0", 1, LOADED) is None
    assert admit(after_hello, "worker-0", 0, hello("worker-0")) is None
    assert after_hello.drops == {Drop.DUPLICATE: 2}


def expect_refused(admission: Admission, error: type[RunnerError], text: str, *sent: Any, **options: Any) -> None:
    with pytest.raises(error, match=text):
        admit(admission, *sent, **options)


def test_messages_that_a_role_may_not_send_are_refused() -> None:
    for name in ("worker-0", "ps-0"):
        master = Admission(identity("master-0"), peers=2, servers=1)
        admit(master, name, 0, hello(name))
        assert admit(master, name, 1, LOADED) == Received(name, LOADED)
        for message in (Shutdown(), Run("p", 0), Heartbeat("step", 0), hello(name)):
            forbidden = f"{name} sent '{message.kind}', which a .* may not send"
            expect_refused(master, SecurityError, forbidden, name, 2, message)


def test_peer_that_violates_the_protocol_is_refused(after_hello: Admission) -> None:
    lost = r"2 messages from worker-0 to master-0 were lost: received number 3 \(loaded\), expected 1"
    expect_refused(after_hello, ClusterError, lost, "worker-0", 3, LOADED)
    expect_refused(
        after_hello,
        SecurityError,
        "worker-0 sent a message with the sender worker-1, expected worker-0",
        "worker-1",
        1,
        LOADED,
    )
    expect_refused(after_hello, SecurityError, "worker-0: loaded: 1 frames, expected none", "worker-0", 1, LOADED, b"x")


@pytest.mark.parametrize(
    ("caller", "inbox"),
    [(f"ps{kind}-0", "master-0") for kind in ("", "_heartbeat")]
    + [("ps-0", "worker-0"), ("worker-1", "ps-0"), ("ps-0", "ps-0")]
    + [("spare-0", "master-0"), ("spare_heartbeat-0", "master-0"), ("master-0", "spare-0")],
)
def test_parameter_servers_may_connect_like_workers_and_spare_processes_with_the_master(
    caller: str, inbox: str
) -> None:
    received = admit(Admission(identity(inbox), peers=2, servers=1, spares=1), caller, 0, hello(caller))
    assert received is not None
    assert received.source == caller


@pytest.mark.parametrize(
    ("inbox", "caller", "servers", "limit"),
    [
        ("master-0", "master-0", 0, 2),
        ("worker-0", "worker_heartbeat-1", 0, 2),
        ("master-0", "worker-2", 0, 2),
        ("master-0", "spare-1", 0, 1),
        ("master-0", "spare_heartbeat-1", 0, 1),
        ("worker-0", "spare-0", 0, 1),
        ("spare-0", "worker-0", 0, 2),
        *(("master-0", caller, servers, servers) for caller in ("ps-1", "ps_heartbeat-1") for servers in (0, 1)),
    ],
)
def test_role_or_index_that_may_not_connect_is_refused(inbox: str, caller: str, servers: int, limit: int) -> None:
    with pytest.raises(SecurityError, match=f"hello of {caller} to {inbox}: .* and an index below {limit}"):
        admit(Admission(identity(inbox), peers=2, servers=servers, spares=1), caller, 0, hello(caller))


@pytest.mark.parametrize("role", ["worker", "ps", "worker_heartbeat", "master"])
@pytest.mark.parametrize("index", [2, 10**6, 2**62, 2**63 - 1])
def test_index_that_the_run_does_not_have_is_refused_whatever_its_size(role: str, index: int) -> None:
    message = Hello(role, index, pid=1, token=TOKEN)
    header = encode_header(Envelope("run", 1, "worker-0", 0), message)
    with pytest.raises(SecurityError, match=f"hello of {role}-{index} to worker-0: .* and an index below"):
        Admission(identity("worker-0"), peers=2).admit(CONNECTION, header, ())


def test_hello_must_match_its_envelope(master: Admission) -> None:
    for source, sequence, frames in (("worker-0", 0, ()), ("worker-1", 4, ()), ("worker-1", 0, (b"x",))):
        text = f"hello of worker-1: sent as {source}, number {sequence}, with {len(frames)} frames; expected worker-1"
        expect_refused(master, SecurityError, text, source, sequence, hello("worker-1"), *frames)


@given(st.integers(0, 2**32), st.tuples(st.floats(0, 1), st.floats(1, 5)), st.floats(0, 1), st.floats(0, 0.5))
def test_messages_arrive_once_in_order(seed: int, delay_s: tuple[float, float], duplicate: float, drop: float) -> None:
    network = FakeNetwork(seed)
    master, worker = (network.endpoint(identity(name), peers=4) for name in ("master-0", "worker-0"))
    worker.connect("master-0")
    network.faults = Faults(delay_s, drop, duplicate)
    sent = [str(i) for i in range(10)]
    for plan in sent:
        worker.send("master-0", Loaded(plan))
    network.faults = Faults()
    worker.send("master-0", Loaded("last"))
    delivered: list[str] = []
    try:
        while (received := master.receive(10.0)) is not None:
            delivered += [received.message.plan] if isinstance(received.message, Loaded) else []
    except ClusterError:
        assert drop
        assert delivered == sent[: len(delivered)]
        assert len(delivered) < len(sent)
    else:
        assert delivered == [*sent, "last"]
