from __future__ import annotations

import pytest

from runner.engine.transport.admission import Admission, Drop
from runner.engine.transport.endpoint import Received
from runner.engine.transport.header import encode_header
from runner.engine.transport.messages import Heartbeat, Hello, Loaded, Message, Run, Shutdown
from runner.engine.transport.references import InlineTensor
from runner.errors import ClusterError, SecurityError
from tests.engine.transport.conftest import TOKEN, identity

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
    """A master's admission that worker-0 has said hello to."""
    assert admit(master, "worker-0", 0, hello("worker-0")) is not None
    return master


def test_a_hello_with_the_token_is_delivered_without_it(master: Admission) -> None:
    received = admit(master, "worker-1", 0, hello("worker-1"))
    assert received == Received("worker-1", Hello("worker", 1, 1, token=""))


def test_a_stranger_without_hello_is_dropped(master: Admission) -> None:
    assert admit(master, "worker-0", 0, Loaded("p")) is None
    assert master.drops == {Drop.NO_HELLO: 1}


def test_a_wrong_token_is_dropped_and_opens_nothing(master: Admission, caplog: pytest.LogCaptureFixture) -> None:
    assert admit(master, "worker-0", 0, hello("worker-0", token="b" * 64)) is None
    assert admit(master, "worker-0", 1, Loaded("p")) is None
    assert master.drops == {Drop.BAD_TOKEN: 1, Drop.NO_HELLO: 1}
    assert "master-0 dropped a message: hello with a wrong token (from worker-0)" in caplog.text
    assert "b" * 64 not in caplog.text


def test_a_token_that_is_not_ascii_is_only_wrong(master: Admission) -> None:
    assert admit(master, "worker-0", 0, hello("worker-0", token="é")) is None
    assert master.drops == {Drop.BAD_TOKEN: 1}


def test_junk_of_a_stranger_is_dropped(master: Admission) -> None:
    assert master.admit(CONNECTION, b"GET / HTTP/1.1", ()) is None
    assert master.drops == {Drop.MALFORMED: 1}


def test_junk_of_a_peer_is_an_error_that_names_it(after_hello: Admission) -> None:
    with pytest.raises(SecurityError, match="worker-0: message header refused"):
        after_hello.admit(CONNECTION, b"\xc1", ())


@pytest.mark.parametrize(("run", "epoch"), [("run", 0), ("run", 2), ("other", 1)])
def test_another_run_or_epoch_is_dropped(after_hello: Admission, run: str, epoch: int) -> None:
    assert admit(after_hello, "worker-0", 1, Loaded("old"), run=run, epoch=epoch) is None
    assert after_hello.drops == {Drop.STALE: 1}
    assert admit(after_hello, "worker-0", 1, Loaded("new")) == Received("worker-0", Loaded("new"))


def test_a_hello_of_another_epoch_is_dropped_even_with_the_token(master: Admission) -> None:
    assert admit(master, "worker-0", 0, hello("worker-0"), epoch=0) is None
    assert master.drops == {Drop.STALE: 1}


def test_a_duplicate_is_dropped(after_hello: Admission) -> None:
    assert admit(after_hello, "worker-0", 1, Loaded("p")) is not None
    assert admit(after_hello, "worker-0", 1, Loaded("p")) is None
    assert admit(after_hello, "worker-0", 0, hello("worker-0")) is None
    assert after_hello.drops == {Drop.DUPLICATE: 2}


def test_a_gap_is_an_error_that_says_what_is_missing(after_hello: Admission) -> None:
    with pytest.raises(
        ClusterError,
        match=r"2 messages from worker-0 to master-0 were lost: number 1 expected, 3 \(loaded\) arrived",
    ):
        admit(after_hello, "worker-0", 3, Loaded("p"))


def test_a_peer_speaks_only_for_itself(after_hello: Admission) -> None:
    with pytest.raises(SecurityError, match="worker-0 sent a message as worker-1"):
        admit(after_hello, "worker-1", 1, Loaded("p"))


@pytest.mark.parametrize("message", [Shutdown(), Run("p", 0, {}), Heartbeat("step", 0), hello("worker-0")])
def test_a_peer_says_only_what_its_role_may(after_hello: Admission, message: Message) -> None:
    with pytest.raises(SecurityError, match=f"worker-0 sent '{message.kind}', which is not for it to say"):
        admit(after_hello, "worker-0", 1, message)


def test_frames_must_be_those_of_the_header() -> None:
    worker = Admission(identity("worker-0"), peers=2)
    assert admit(worker, "master-0", 0, hello("master-0")) is not None
    run = Run("p", 0, {"lr": InlineTensor("float32", (), 0)})
    with pytest.raises(SecurityError, match=r"master-0: run: frame 0 has 5 bytes, but float32\[\] takes 4"):
        admit(worker, "master-0", 1, run, frames=(bytes(5),))


@pytest.mark.parametrize(
    ("inbox", "caller"), [("master-0", "master-0"), ("worker-0", "worker_heartbeat-1"), ("master-0", "worker-2")]
)
def test_who_may_not_connect_here_is_refused_although_it_knows_the_token(inbox: str, caller: str) -> None:
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
def test_parameter_servers_talk_to_all_whom_workers_talk_to(inbox: str, caller: str) -> None:
    received = admit(Admission(identity(inbox), peers=2, servers=1), caller, 0, hello(caller))
    assert received is not None
    assert received.source == caller


@pytest.mark.parametrize("caller", ["ps-1", "ps_heartbeat-1"])
def test_a_parameter_server_that_the_run_does_not_have_is_refused(caller: str) -> None:
    with pytest.raises(SecurityError, match=f"hello of {caller} to master-0: .* and an index below 1"):
        admit(Admission(identity("master-0"), peers=2, servers=1), caller, 0, hello(caller))
    with pytest.raises(SecurityError, match=f"hello of {caller} to master-0: .* and an index below 0"):
        admit(Admission(identity("master-0"), peers=2), caller, 0, hello(caller))


@pytest.mark.parametrize("message", [Shutdown(), Run("p", 0, {}), Heartbeat("step", 0)])
def test_a_parameter_server_says_what_a_worker_may_and_no_more(message: Message) -> None:
    master = Admission(identity("master-0"), peers=2, servers=1)
    admit(master, "ps-0", 0, hello("ps-0"))
    assert admit(master, "ps-0", 1, Loaded("p")) == Received("ps-0", Loaded("p"))
    with pytest.raises(SecurityError, match=f"ps-0 sent '{message.kind}', which is not for it to say"):
        admit(master, "ps-0", 2, message)


def test_a_hello_must_match_its_envelope(master: Admission) -> None:
    with pytest.raises(SecurityError, match="hello of worker-1: sent as worker-0, number 0"):
        admit(master, "worker-0", 0, hello("worker-1"))
    with pytest.raises(SecurityError, match="hello of worker-1: sent as worker-1, number 4"):
        admit(master, "worker-1", 4, hello("worker-1"))


def test_a_name_has_one_connection(after_hello: Admission) -> None:
    with pytest.raises(SecurityError, match="second connection of worker-0 to master-0 in one epoch"):
        admit(after_hello, "worker-0", 0, hello("worker-0"), connection=b"another")


def test_the_token_is_not_in_the_text_of_an_identity() -> None:
    assert TOKEN not in repr(identity("worker-0"))
