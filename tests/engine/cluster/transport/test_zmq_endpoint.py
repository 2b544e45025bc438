"""Endpoints over ZeroMQ: messages, refusals, time limits, and removal of socket files."""

import os
import resource
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from socket import AF_UNIX
from socket import socket as unix_socket
from typing import Any

import pytest
import zmq

from runner.engine.cluster.transport import zmq_endpoint, zmq_sockets
from runner.engine.cluster.transport.admission import Drop
from runner.engine.cluster.transport.encoding import MAX_DOCUMENT_BYTES, encode_header
from runner.engine.cluster.transport.endpoint import Identity, Keys, Limits, Received
from runner.engine.cluster.transport.messages import FRAME_BYTES, Done, Failed, Hello, Load, Loaded, Shutdown, Welcome
from runner.engine.cluster.transport.private_directory import inbox_address
from runner.engine.cluster.transport.ticket import new_keys
from runner.engine.cluster.transport.zmq_endpoint import Outbox, ZmqEndpoint
from runner.engine.cluster.transport.zmq_sockets import Context, configure_inbox, configure_outbox, open_context
from runner.engine.cluster.worker_process import Interrupts
from runner.errors import ClusterError, ResourceError, SecurityError
from tests.engine.cluster.transport.conftest import LIMITS, SOON_S, identity, next_of


@pytest.fixture
def worker_address(directory: Path) -> str:
    return inbox_address(directory, "worker-0")


@pytest.fixture
def master(context: Context, directory: Path) -> Iterator[ZmqEndpoint]:
    with ZmqEndpoint(context, identity("master-0"), inbox_address(directory, "master-0"), LIMITS) as endpoint:
        yield endpoint


@pytest.fixture
def worker(context: Context, worker_address: str) -> Iterator[ZmqEndpoint]:
    with ZmqEndpoint(context, identity("worker-0"), worker_address, LIMITS) as endpoint:
        yield endpoint


def send_raw(context: Context, address: str, parts: list[bytes]) -> zmq.Socket[bytes]:
    """Send raw message parts from a separate socket and return the socket; the caller closes the socket."""
    socket: zmq.Socket[bytes] = context.socket(zmq.DEALER)
    socket.setsockopt(zmq.LINGER, 0)
    socket.connect(address)
    socket.send_multipart(parts)
    return socket


def hello_header(who: Identity) -> bytes:
    return encode_header(who.envelope(0), Hello(who.role, who.index, 1, who.token))


def test_messages_both_ways(master: ZmqEndpoint, worker: ZmqEndpoint, worker_address: str) -> None:
    worker.connect("master-0", master.address)
    assert master.receive(SOON_S) == Received("worker-0", Hello("worker", 0, os.getpid(), token=""))
    master.connect("worker-0", worker_address)
    master.send("worker-0", Welcome())
    # pyzmq can send a document as large as this one without copying it.
    document = bytearray(b"a" * 3 * FRAME_BYTES)
    master.send("worker-0", Load("p"), [memoryview(document)])
    document[:] = b"b" * 500_000
    assert isinstance(next_of(worker).message, Hello)
    assert next_of(worker).message == Welcome()
    received = next_of(worker)
    assert (received.message, len(received.frames), received.frames[0].readonly) == (Load("p"), 1, True)
    assert set(bytes(received.frames[0])) == {ord("a")}, "the sender may reuse its memory immediately"
    worker.send("master-0", Done("train", 0, {"step_s": 0.5}))
    assert next_of(master) == Received("worker-0", Done("train", 0, {"step_s": 0.5}))


def test_ctrl_c_while_a_message_is_sent_is_raised_later(
    master: ZmqEndpoint, worker: ZmqEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the next message, which reports Ctrl-C, has the same number and is dropped as a duplicate."""
    send_multipart = zmq.Socket.send_multipart

    def send_and_interrupt(*given: Any, **options: Any) -> None:
        send_multipart(*given, **options)
        os.kill(os.getpid(), signal.SIGINT)

    worker.connect("master-0", master.address)
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        interrupts = Interrupts()
        monkeypatch.setattr(zmq.Socket, "send_multipart", send_and_interrupt)
        worker.send("master-0", Loaded("train"))
        monkeypatch.undo()
        with pytest.raises(KeyboardInterrupt):
            interrupts.check()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, previous)
    worker.send("master-0", Failed("KeyboardInterrupt", "Ctrl-C"))
    expected = [Hello("worker", 0, os.getpid(), token=""), Loaded("train"), Failed("KeyboardInterrupt", "Ctrl-C")]
    assert [next_of(master).message for _ in expected] == expected


def test_unknown_callers_are_dropped(context: Context, master: ZmqEndpoint, worker: ZmqEndpoint) -> None:
    known = identity("worker-1")
    sockets = [
        send_raw(context, master.address, [encode_header(known.envelope(0), Loaded("p"))]),
        send_raw(context, master.address, [hello_header(identity("worker-1", token="b" * 64))]),
        send_raw(context, master.address, [hello_header(identity("worker-1", epoch=9))]),
        send_raw(context, master.address, [b"junk", b"more"]),
        send_raw(context, master.address, [b""]),
    ]
    while sum(master._admission.drops.values()) < len(sockets):
        assert master.receive(0.05) is None
    worker.connect("master-0", master.address)
    assert next_of(master).source == "worker-0"
    assert master._admission.drops == {Drop.NO_HELLO: 1, Drop.BAD_TOKEN: 1, Drop.STALE: 1, Drop.MALFORMED: 2}
    for socket in sockets:
        socket.close()


def test_too_many_parts_are_refused(context: Context, master: ZmqEndpoint) -> None:
    who = identity("worker-1")
    socket = send_raw(context, master.address, [hello_header(who)])
    assert next_of(master).source == "worker-1"
    socket.send_multipart([encode_header(who.envelope(1), Loaded("p")), *[b"x"] * 1000])
    with pytest.raises(SecurityError, match="worker-1: loaded: 257 frames, expected none"):
        master.receive(SOON_S)
    socket.send_multipart([encode_header(who.envelope(1), Loaded("p"))])
    assert next_of(master).message == Loaded("p")
    socket.close()


NO_ANSWER, NO_PROCESS = r" on .*: no answer within 0\.05 s$", r": no process listens on .*/worker-1$"


@pytest.mark.parametrize(("listens", "reason"), [(True, NO_ANSWER), (False, NO_PROCESS)])
def test_unreachable_peer_is_reported(listens: bool, reason: str, context: Context, directory: Path) -> None:
    impatient = LIMITS.__class__(peers=1, connect_timeout_s=0.05)
    mine = inbox_address(directory, "worker-0")
    with unix_socket(AF_UNIX) as deaf, ZmqEndpoint(context, identity("worker-0"), mine, impatient) as endpoint:
        deaf.bind(str(directory / "worker-1"))  # a process that was killed leaves the file of its socket
        if listens:
            deaf.listen()
        with pytest.raises(ClusterError, match=f"^worker-0 cannot reach worker-1{reason}"):
            endpoint.connect("worker-1", inbox_address(directory, "worker-1"))


def test_handshake_is_repeated_after_the_process_was_suspended(
    monkeypatch: pytest.MonkeyPatch, context: Context, master: ZmqEndpoint
) -> None:
    poll = zmq.Poller.poll

    def stopped(poller: zmq.Poller, timeout: int) -> list[tuple[object, int]]:
        """Simulate a suspended process: the whole connect timeout passes in the first attempt."""
        monkeypatch.setattr(zmq.Poller, "poll", poll)
        time.sleep(1.1)
        return []

    monkeypatch.setattr(zmq_endpoint, "HANDSHAKE_MS", 1000)
    monkeypatch.setattr(zmq.Poller, "poll", stopped)
    with closing(Outbox(context, identity("worker-0"), Limits(peers=1, connect_timeout_s=1.1))) as outbox:
        outbox.connect("master-0", master.address)
        assert next_of(master).source == "worker-0"


def test_lost_peer_is_reported_and_not_reconnected(context: Context, master: ZmqEndpoint, worker_address: str) -> None:
    with ZmqEndpoint(context, identity("worker-0"), worker_address, LIMITS) as gone:
        master.connect("worker-0", worker_address)
        next_of(gone)

    def send_until_noticed() -> None:
        """Send until sending fails; libzmq queues messages until it has noticed the end of the connection."""
        while True:
            master.send("worker-0", Shutdown())

    gone_text = r"could not send 'shutdown' to worker-0 within 0\.2 s: worker-0 has ended, or the queue of 64"
    with ZmqEndpoint(context, identity("worker-0"), worker_address, LIMITS) as successor:
        with pytest.raises(ClusterError, match=gone_text):
            send_until_noticed()
        assert successor.receive(0.0) is None
        assert successor._admission.drops == {}


def test_too_large_frame_closes_the_connection(context: Context, master: ZmqEndpoint) -> None:
    unknown: zmq.Socket[bytes] = context.socket(zmq.DEALER)
    unknown.setsockopt(zmq.LINGER, 0)
    with unknown, unknown.get_monitor_socket(zmq.EVENT_DISCONNECTED) as monitor:
        unknown.connect(master.address)
        unknown.send_multipart([hello_header(identity("worker-1")), bytes(2 * FRAME_BYTES)])
        assert monitor.poll(int(SOON_S * 1000)), "still connected"
        unknown.disable_monitor()
    assert master.receive(0.0) is None
    assert master._admission.drops == {}


@pytest.fixture
def readable(master: ZmqEndpoint) -> Iterator[None]:
    """Let the master wait on a file descriptor that is always readable."""
    reader, writer = os.pipe()
    os.write(writer, b"x")
    master.wake_on([reader])
    yield
    os.close(reader)
    os.close(writer)


@pytest.mark.usefixtures("readable")
def test_message_in_transit_precedes_a_descriptor(master: ZmqEndpoint, worker: ZmqEndpoint) -> None:
    assert master.receive(SOON_S) is None
    worker.connect("master-0", master.address)
    received = None
    while received is None:
        received = master.receive(SOON_S)
    assert received.source == "worker-0"
    for _ in range(200):
        worker.send("master-0", Loaded("p"))
        assert next_of(master).message == Loaded("p")


@pytest.mark.usefixtures("readable")
def test_no_message_is_awaited_without_a_time_out(master: ZmqEndpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zmq.Socket, "poll", None)  # a call would raise TypeError
    assert master.receive(0.0) is None


def test_socket_file_is_private_and_removed(context: Context, directory: Path) -> None:
    with ZmqEndpoint(context, identity("master-0"), inbox_address(directory, "master-0"), LIMITS) as endpoint:
        assert [path.name for path in directory.iterdir()] == ["master-0"]
    assert list(directory.iterdir()) == []
    endpoint.close()


def test_second_bind_of_a_name_is_refused(context: Context, master: ZmqEndpoint) -> None:
    with pytest.raises(ClusterError, match="master-0 exists; another process uses the name master-0"):
        ZmqEndpoint(context, identity("master-0"), master.address, LIMITS)


def test_public_address_is_refused(context: Context) -> None:
    with pytest.raises(SecurityError, match="without CURVE keys"):
        ZmqEndpoint(context, identity("master-0"), "tcp://0.0.0.0:0", LIMITS)


def test_wrong_use_of_connections_is_refused(master: ZmqEndpoint, context: Context, worker_address: str) -> None:
    with pytest.raises(ClusterError, match=f"cannot reach worker-0: no process listens on {worker_address}"):
        master.connect("worker-0", worker_address)
    with ZmqEndpoint(context, identity("worker-0"), worker_address, LIMITS):
        master.connect("worker-0", worker_address)
        with pytest.raises(ValueError, match="master-0 is already connected to worker-0"):
            master.connect("worker-0", worker_address)
        with pytest.raises(ValueError, match=r"load: 1 frames of .* expected a document of at most 67108864"):
            master.send("worker-0", Load("p"), [bytes(MAX_DOCUMENT_BYTES + 1)])


@pytest.mark.parametrize("call", [lambda e: e.receive(0.0), lambda e: e.connect("worker-0", ""), lambda e: e.close()])
def test_use_by_another_thread_is_refused(master: ZmqEndpoint, call: Callable[[ZmqEndpoint], None]) -> None:
    expected = "^endpoint master-0 was used by a thread that did not create it$"
    with ThreadPoolExecutor(1) as pool, pytest.raises(RuntimeError, match=expected):
        pool.submit(call, master).result()


def test_context_is_not_global_and_ends() -> None:
    with open_context(connections=2) as context:
        assert context is not zmq.Context.instance()
    assert context.closed


def test_open_socket_is_reported_within_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zmq_sockets, "TERMINATION_S", 0.05)
    left_open: list[zmq.Socket[bytes]] = []

    def leave_a_socket_open() -> None:
        with open_context(connections=2) as context:
            left_open.append(context.socket(zmq.ROUTER))

    with pytest.raises(ClusterError, match=r"did not end within 0\.05 s: a socket was not closed"):
        leave_a_socket_open()
    left_open[0].close()


KEYS = new_keys(["master-0"])["master-0"]


@pytest.mark.parametrize(
    ("keys", "hard", "expected"),
    [(None, 400, 276), (KEYS, 400, 400), (KEYS, 10**6, 65536), (KEYS, resource.RLIM_INFINITY, 65536)],
)
def test_file_limit_is_raised(keys: Keys | None, hard: int, expected: int, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = {"now": (100, hard)}
    monkeypatch.setattr(resource, "getrlimit", lambda which: limits["now"])
    monkeypatch.setattr(resource, "setrlimit", lambda which, new: limits.update(now=new))
    with open_context(10, keys):
        assert limits["now"] == (expected, hard)


def test_too_low_file_limit_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (100, 400))
    expected = r"2256 open files are needed, but the limit is 400: raise the limit \(ulimit -Hn\)"
    with pytest.raises(ResourceError, match=expected), open_context(connections=1000):
        pass


OPTIONS = {
    zmq.LINGER: 1000,
    zmq.MAXMSGSIZE: FRAME_BYTES + 64 * 2**10,
    zmq.HANDSHAKE_IVL: 2000,
    zmq.SNDTIMEO: 1500,
    zmq.RCVTIMEO: 1500,
    # With heartbeats, libzmq would close the connections of a process that is suspended for longer than the timeout.
    zmq.HEARTBEAT_IVL: 0,
    zmq.HEARTBEAT_TTL: 0,
}


@pytest.mark.parametrize(
    ("kind", "configure", "given", "special"),
    [
        (zmq.ROUTER, configure_inbox, [None], {zmq.RCVHWM: 77, zmq.BACKLOG: 25}),
        (
            zmq.DEALER,
            configure_outbox,
            [identity("worker-0"), "worker-1"],
            {zmq.SNDHWM: 77, zmq.IMMEDIATE: 1, zmq.RECONNECT_IVL: -1},
        ),
    ],
)
def test_every_socket_has_the_configured_limits(
    context: Context, kind: int, configure: Callable[..., None], given: list[Any], special: dict[int, int]
) -> None:
    with context.socket(kind) as socket:
        configure(socket, Limits(peers=3, queued_messages=77, send_timeout_s=1.5), *given)
        expected = OPTIONS | special
        assert {option: socket.getsockopt(option) for option in expected} == expected


def test_milliseconds_are_rounded_up() -> None:
    assert zmq_sockets.milliseconds(0.0001) == 1
    assert zmq_sockets.milliseconds(0.0) == 0
