from __future__ import annotations

import pytest

from runner.engine.cluster.transport.admission import Admission, Drop
from runner.engine.cluster.transport.endpoint import Received
from runner.engine.cluster.transport.header import Envelope, encode_header
from runner.engine.cluster.transport.messages import Heartbeat, Hello, Loaded, Message, Run, Shutdown
from runner.engine.cluster.transport.references import InlineTensor
from runner.errors import ClusterError, SecurityError
from tests.engine.cluster.transport.conftest import TOKEN, identity

CONNECTION = b"connection"


def hello(name: str, token: str = TOKEN) -> Hello:
    who = identity(name)
    return Hello(who.role, who.index, pid=1, token=token)


def admit(
    admission: Admission,
    source: str,
    sequence: int,
    message: Message,
    *,
    connection: bytes = CONNECTION,
    run: str = "run",
    epoch: int = 1,
    frames: tuple[bytes, ...] = (),
) -> Received | None:
    header = encode_header(identity(source, run=run, epoch=epoch).envelope(sequence), message)
    received = admission.admit(connection, header, tuple(memoryview(frame) for frame in frames))
    admission.validate_state()
    return received


@pytest.fixture
def master() -> Admission:
    return Admission(identity("master-0"), peers=2)


@pytest.fixture
def after_hello(master: Admission) -> Admission:
    """A master's admission after a hello of worker-0."""
    assert admit(master, "worker-0", 0, hello("worker-0")) is not None
    return master


def test_hello_is_delivered_without_the_token(master: Admission) -> None:
    received = admit(master, "worker-1", 0, hello("worker-1"))
    assert received == Received("worker-1", Hello("worker", 1, 1, token=""))


def test_message_before_hello_is_dropped(master: Admission) -> None:
    assert admit(master, "worker-0", 0, Loaded("p")) is None
    assert master.drops == {Drop.NO_HELLO: 1}


def test_wrong_token_is_dropped(master: Admission, caplog: pytest.LogCaptureFixture) -> None:
    assert admit(master, "worker-0", 0, hello("worker-0", token="b" * 64)) is None
    assert admit(master, "worker-0", 1, Loaded("p")) is None
    assert master.drops == {Drop.BAD_TOKEN: 1, Drop.NO_HELLO: 1}
    assert "master-0 dropped a message: hello with a wrong token (from worker-0)" in caplog.text
    assert "b" * 64 not in caplog.text


def test_non_ascii_token_is_dropped(master: Admission) -> None:
    assert admit(master, "worker-0", 0, hello("worker-0", token="é")) is None
    assert master.drops == {Drop.BAD_TOKEN: 1}


def test_malformed_header_before_hello_is_dropped(master: Admission) -> None:
    assert master.admit(CONNECTION, b"GET / HTTP/1.1", ()) is None
    assert master.drops == {Drop.MALFORMED: 1}


def test_malformed_header_of_a_peer_is_an_error(after_hello: Admission) -> None:
    with pytest.raises(SecurityError, match="worker-0: message header refused"):
        after_hello.admit(CONNECTION, b"\xc1", ())


@pytest.mark.parametrize(("run", "epoch"), [("run", 0), ("run", 2), ("other", 1)])
def test_other_run_or_epoch_is_dropped(after_hello: Admission, run: str, epoch: int) -> None:
    assert admit(after_hello, "worker-0", 1, Loaded("old"), run=run, epoch=epoch) is None
    assert after_hello.drops == {Drop.STALE: 1}
    assert admit(after_hello, "worker-0", 1, Loaded("new")) == Received("worker-0", Loaded("new"))


def test_hello_of_another_epoch_is_dropped(master: Admission) -> None:
    assert admit(master, "worker-0", 0, hello("worker-0"), epoch=0) is None
    assert master.drops == {Drop.STALE: 1}


def test_duplicate_is_dropped(after_hello: Admission) -> None:
    assert admit(after_hello, "worker-0", 1, Loaded("p")) is not None
    assert admit(after_hello, "worker-0", 1, Loaded("p")) is None
    assert admit(after_hello, "worker-0", 0, hello("worker-0")) is None
    assert after_hello.drops == {Drop.DUPLICATE: 2}


def test_gap_is_an_error_with_the_missing_numbers(after_hello: Admission) -> None:
    with pytest.raises(
        ClusterError,
        match=r"2 messages from worker-0 to master-0 were lost: number 1 expected, 3 \(loaded\) arrived",
    ):
        admit(after_hello, "worker-0", 3, Loaded("p"))


def test_other_source_name_is_refused(after_hello: Admission) -> None:
    with pytest.raises(SecurityError, match="worker-0 sent a message as worker-1"):
        admit(after_hello, "worker-1", 1, Loaded("p"))


@pytest.mark.parametrize("message", [Shutdown(), Run("p", 0, {}), Heartbeat("step", 0), hello("worker-0")])
def test_kind_of_another_role_is_refused(after_hello: Admission, message: Message) -> None:
    with pytest.raises(SecurityError, match=f"worker-0 sent '{message.kind}', which its role must not send"):
        admit(after_hello, "worker-0", 1, message)


def test_frames_must_match_the_header() -> None:
    worker = Admission(identity("worker-0"), peers=2)
    assert admit(worker, "master-0", 0, hello("master-0")) is not None
    run = Run("p", 0, {"lr": InlineTensor("float32", (), 0)})
    with pytest.raises(SecurityError, match=r"master-0: run: frame 0 has 5 bytes, but float32\[\] takes 4"):
        admit(worker, "master-0", 1, run, frames=(bytes(5),))


@pytest.mark.parametrize(
    ("inbox", "caller"), [("master-0", "master-0"), ("worker-0", "worker_heartbeat-1"), ("master-0", "worker-2")]
)
def test_role_that_may_not_connect_is_refused(inbox: str, caller: str) -> None:
    with pytest.raises(SecurityError, match=f"hello of {caller} to {inbox}: .* and an index below 2"):
        admit(Admission(identity(inbox), peers=2), caller, 0, hello(caller))


@pytest.mark.parametrize(
    ("inbox", "caller"),
    [
        ("master-0", "ps-0"),
        ("master-0", "ps_heartbeat-0"),
        ("worker-0", "ps-0"),
        ("ps-0", "worker-1"),
        ("ps-0", "ps-0"),
    ],
)
def test_parameter_servers_may_connect_like_workers(inbox: str, caller: str) -> None:
    received = admit(Admission(identity(inbox), peers=2, servers=1), caller, 0, hello(caller))
    assert received is not None
    assert received.source == caller


@pytest.mark.parametrize("caller", ["ps-1", "ps_heartbeat-1"])
def test_unknown_parameter_server_is_refused(caller: str) -> None:
    with pytest.raises(SecurityError, match=f"hello of {caller} to master-0: .* and an index below 1"):
        admit(Admission(identity("master-0"), peers=2, servers=1), caller, 0, hello(caller))
    with pytest.raises(SecurityError, match=f"hello of {caller} to master-0: .* and an index below 0"):
        admit(Admission(identity("master-0"), peers=2), caller, 0, hello(caller))


@pytest.mark.parametrize("role", ["worker", "ps", "worker_heartbeat", "master"])
@pytest.mark.parametrize("index", [2, 10**6, 2**62, 2**63 - 1])
def test_an_index_of_any_size_that_the_run_does_not_have_is_refused(role: str, index: int) -> None:
    message = Hello(role, index, pid=1, token=TOKEN)
    header = encode_header(Envelope("run", 1, "worker-0", 0), message)
    with pytest.raises(SecurityError, match=f"hello of {role}-{index} to worker-0: .* and an index below"):
        Admission(identity("worker-0"), peers=2).admit(CONNECTION, header, ())


@pytest.mark.parametrize("message", [Shutdown(), Run("p", 0, {}), Heartbeat("step", 0)])
def test_parameter_server_may_send_the_kinds_of_a_worker(message: Message) -> None:
    master = Admission(identity("master-0"), peers=2, servers=1)
    admit(master, "ps-0", 0, hello("ps-0"))
    assert admit(master, "ps-0", 1, Loaded("p")) == Received("ps-0", Loaded("p"))
    with pytest.raises(SecurityError, match=f"ps-0 sent '{message.kind}', which its role must not send"):
        admit(master, "ps-0", 2, message)


def test_hello_must_match_its_envelope(master: Admission) -> None:
    with pytest.raises(SecurityError, match="hello of worker-1: sent as worker-0, number 0"):
        admit(master, "worker-0", 0, hello("worker-1"))
    with pytest.raises(SecurityError, match="hello of worker-1: sent as worker-1, number 4"):
        admit(master, "worker-1", 4, hello("worker-1"))


def test_second_connection_of_a_name_is_refused(after_hello: Admission) -> None:
    with pytest.raises(SecurityError, match="second connection of worker-0 to master-0 in one epoch"):
        admit(after_hello, "worker-0", 0, hello("worker-0"), connection=b"another")


def test_text_of_an_identity_hides_the_token() -> None:
    assert TOKEN not in repr(identity("worker-0"))
