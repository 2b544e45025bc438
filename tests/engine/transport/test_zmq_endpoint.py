from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import numpy as np
import pytest
import zmq

from runner.engine.transport.address import inbox_address
from runner.engine.transport.admission import Drop
from runner.engine.transport.codec import pack, unpack
from runner.engine.transport.endpoint import Endpoint, Identity, Received
from runner.engine.transport.header import encode_header
from runner.engine.transport.messages import Done, Hello, Load, Loaded, Run, Shutdown, Welcome
from runner.engine.transport.private_directory import PrivateDirectory
from runner.engine.transport.zmq_context import Context
from runner.engine.transport.zmq_endpoint import ZmqEndpoint
from runner.errors import ClusterError, SecurityError
from tests.engine.transport.conftest import LIMITS, TOKEN, identity

SOON_S = 5.0
"""Longer than anything here takes: reached only by a test that fails."""


@pytest.fixture
def address(private_directory: PrivateDirectory) -> str:
    return inbox_address(private_directory.path, "master-0")


@pytest.fixture
def worker_address(private_directory: PrivateDirectory) -> str:
    return inbox_address(private_directory.path, "worker-0")


@pytest.fixture
def master(context: Context, address: str) -> Iterator[ZmqEndpoint]:
    with ZmqEndpoint(context, identity("master-0"), address, LIMITS) as endpoint:
        yield endpoint


@pytest.fixture
def worker(context: Context, worker_address: str) -> Iterator[ZmqEndpoint]:
    with ZmqEndpoint(context, identity("worker-0"), worker_address, LIMITS) as endpoint:
        yield endpoint


def send_raw(context: Context, address: str, parts: list[bytes]) -> zmq.Socket[bytes]:
    """Send what no endpoint would, from a socket of our own; the caller closes it."""
    socket: zmq.Socket[bytes] = context.socket(zmq.DEALER)
    socket.setsockopt(zmq.LINGER, 0)
    socket.connect(address)
    socket.send_multipart(parts)
    return socket


def hello_header(who: Identity) -> bytes:
    return encode_header(who.envelope(0), Hello(who.role, who.index, 1, who.token))


def test_it_is_an_endpoint(master: ZmqEndpoint) -> None:
    endpoint: Endpoint = master
    assert endpoint.name == "master-0"


def test_a_conversation(master: ZmqEndpoint, worker: ZmqEndpoint, address: str, worker_address: str) -> None:
    worker.connect("master-0", address)
    assert master.receive(SOON_S) == Received("worker-0", Hello("worker", 0, os.getpid(), token=""))
    master.connect("worker-0", worker_address)
    master.send("worker-0", Welcome())
    references, frames = pack({"lr": np.array(0.1, np.float32), "x": np.arange(6).reshape(2, 3).T})
    master.send("worker-0", Run("train", 0, references), frames)
    assert isinstance(_next(worker).message, Hello)
    assert _next(worker).message == Welcome()
    run = _next(worker)
    assert isinstance(run.message, Run)
    feeds = unpack(run.message.feeds, run.frames)
    assert feeds["x"].tolist() == [[0, 3], [1, 4], [2, 5]]
    assert feeds["lr"] == np.float32(0.1)
    assert not feeds["x"].flags.writeable
    worker.send("master-0", Done("train", 0, {}, {"step_s": 0.5}))
    assert _next(master) == Received("worker-0", Done("train", 0, {}, {"step_s": 0.5}))


def test_the_sender_may_reuse_its_memory_at_once(master: ZmqEndpoint, worker: ZmqEndpoint, worker_address: str) -> None:
    master.connect("worker-0", worker_address)
    # Above the size from which pyzmq could pass memory on without a copy.
    document = bytearray(b"a" * 500_000)
    master.send("worker-0", Load("p"), [memoryview(document)])
    document[:] = b"b" * 500_000
    _next(worker)
    assert set(bytes(_next(worker).frames[0])) == {ord("a")}


def test_nothing_came_within_the_time(master: ZmqEndpoint) -> None:
    assert master.receive(0.0) is None
    assert master.receive(0.01) is None


def test_strangers_are_dropped_and_do_not_end_a_wait(
    context: Context, master: ZmqEndpoint, worker: ZmqEndpoint, address: str
) -> None:
    known = identity("worker-1")
    sockets = [
        send_raw(context, address, [encode_header(known.envelope(0), Loaded("p"))]),
        send_raw(context, address, [hello_header(identity("worker-1", token="b" * 64))]),
        send_raw(context, address, [hello_header(identity("worker-1", epoch=9))]),
        send_raw(context, address, [b"junk", b"more"]),
        send_raw(context, address, [b""]),
    ]
    while sum(master.drops.values()) < len(sockets):
        assert master.receive(0.05) is None
    worker.connect("master-0", address)
    assert _next(master).source == "worker-0"
    assert master.drops == {Drop.NO_HELLO: 1, Drop.BAD_TOKEN: 1, Drop.STALE: 1, Drop.MALFORMED: 2}
    for socket in sockets:
        socket.close()


def test_too_many_parts_are_refused_and_the_next_message_is_whole(
    context: Context, master: ZmqEndpoint, address: str
) -> None:
    who = identity("worker-1")
    socket = send_raw(context, address, [hello_header(who)])
    assert _next(master).source == "worker-1"
    socket.send_multipart([encode_header(who.envelope(1), Loaded("p")), *[b"x"] * 1000])
    with pytest.raises(SecurityError, match="worker-1: loaded: 257 frames, expected 0 and never more than 256"):
        master.receive(SOON_S)
    socket.send_multipart([encode_header(who.envelope(1), Loaded("p"))])
    assert _next(master).message == Loaded("p")
    socket.close()


def test_a_lost_message_is_noticed(context: Context, master: ZmqEndpoint, address: str) -> None:
    who = identity("worker-1")
    socket = send_raw(context, address, [hello_header(who)])
    socket.send_multipart([encode_header(who.envelope(2), Loaded("p"))])
    _next(master)
    with pytest.raises(ClusterError, match="1 messages from worker-1 to master-0 were lost"):
        master.receive(SOON_S)
    socket.close()


def test_a_peer_that_is_not_there_is_said(master: ZmqEndpoint, worker_address: str) -> None:
    with pytest.raises(ClusterError, match=f"cannot reach worker-0: nobody listens on {worker_address}"):
        master.connect("worker-0", worker_address)


def test_a_peer_that_does_not_answer_is_said(context: Context, private_directory: PrivateDirectory) -> None:
    impatient = LIMITS.__class__(peers=1, connect_timeout_s=0.05)
    deaf = inbox_address(private_directory.path, "worker-1")
    (private_directory.path / "worker-1").touch()
    mine = inbox_address(private_directory.path, "worker-0")
    with (
        ZmqEndpoint(context, identity("worker-0"), mine, impatient) as endpoint,
        pytest.raises(ClusterError, match=r"worker-0 cannot reach worker-1 on .*: no answer within 0\.05 s"),
    ):
        endpoint.connect("worker-1", deaf)


def test_a_peer_that_has_gone_is_said_and_not_reconnected(
    context: Context, master: ZmqEndpoint, worker_address: str
) -> None:
    with ZmqEndpoint(context, identity("worker-0"), worker_address, LIMITS) as gone:
        master.connect("worker-0", worker_address)
        _next(gone)

    def send_until_noticed() -> None:
        """Until libzmq's thread has seen the end of the connection, a message can still be queued."""
        while True:
            master.send("worker-0", Shutdown())

    gone_text = r"could not send 'shutdown' to worker-0 for 0\.2 s: it is gone, or its queue of 64"
    with ZmqEndpoint(context, identity("worker-0"), worker_address, LIMITS) as successor:
        with pytest.raises(ClusterError, match=gone_text):
            send_until_noticed()
        assert successor.receive(0.0) is None
        assert successor.drops == {}


def test_a_frame_over_the_declared_limit_is_not_sent(
    master: ZmqEndpoint, worker: ZmqEndpoint, worker_address: str
) -> None:
    master.connect("worker-0", worker_address)
    references, frames = pack({"x": np.zeros(LIMITS.frame_bytes + 1, np.uint8)})
    with pytest.raises(ValueError, match="declared were at most 1048576: send it through an arena"):
        master.send("worker-0", Run("p", 0, references), frames)


def test_a_frame_over_the_accepted_size_cuts_the_connection(
    context: Context, master: ZmqEndpoint, worker: ZmqEndpoint, address: str
) -> None:
    stranger: zmq.Socket[bytes] = context.socket(zmq.DEALER)
    stranger.setsockopt(zmq.LINGER, 0)
    with stranger, stranger.get_monitor_socket(zmq.EVENT_DISCONNECTED) as monitor:
        stranger.connect(address)
        stranger.send_multipart([hello_header(identity("worker-1")), bytes(65 * 2**20)])
        assert monitor.poll(int(SOON_S * 1000)), "still connected"
        stranger.disable_monitor()
    assert master.receive(0.0) is None
    assert master.drops == {}


def test_a_readable_descriptor_ends_a_wait_but_a_message_goes_first(
    master: ZmqEndpoint, worker: ZmqEndpoint, address: str
) -> None:
    reader, writer = os.pipe()
    master.wake_on([reader])
    os.write(writer, b"x")
    assert master.receive(SOON_S) is None
    worker.connect("master-0", address)
    received = None
    while received is None:
        received = master.receive(SOON_S)
    assert received.source == "worker-0"
    master.no_longer_wake_on(reader)
    assert master.receive(0.01) is None
    os.close(reader)
    os.close(writer)


def test_last_words_that_are_still_under_way_come_before_the_death(
    master: ZmqEndpoint, worker: ZmqEndpoint, address: str
) -> None:
    reader, writer = os.pipe()
    os.write(writer, b"x")
    master.wake_on([reader])
    worker.connect("master-0", address)
    assert _next(master).source == "worker-0"
    for _ in range(200):
        worker.send("master-0", Loaded("p"))
        assert _next(master).message == Loaded("p")
    os.close(reader)
    os.close(writer)


def test_the_inbox_is_in_the_private_directory_and_gone_afterwards(
    context: Context, private_directory: PrivateDirectory, address: str
) -> None:
    with ZmqEndpoint(context, identity("master-0"), address, LIMITS) as endpoint:
        assert [path.name for path in private_directory.path.iterdir()] == ["master-0"]
    assert list(private_directory.path.iterdir()) == []
    endpoint.close()


def test_a_name_is_bound_once(context: Context, master: ZmqEndpoint, address: str) -> None:
    with pytest.raises(ClusterError, match="master-0 exists; another process has that role and index"):
        ZmqEndpoint(context, identity("master-0"), address, LIMITS)


def test_a_public_address_is_refused_before_anything_is_bound(context: Context) -> None:
    with pytest.raises(SecurityError, match="needs CURVE keys"):
        ZmqEndpoint(context, identity("master-0"), "tcp://0.0.0.0:0", LIMITS)


def test_two_connections_to_one_peer_are_a_defect(
    master: ZmqEndpoint, worker: ZmqEndpoint, worker_address: str
) -> None:
    master.connect("worker-0", worker_address)
    with pytest.raises(ValueError, match="master-0 is connected to worker-0 already"):
        master.connect("worker-0", worker_address)


def test_another_thread_is_told_off(master: ZmqEndpoint) -> None:
    errors: list[str] = []

    def receive() -> None:
        try:
            master.receive(0.0)
        except RuntimeError as error:
            errors.append(str(error))

    thread = threading.Thread(target=receive)
    thread.start()
    thread.join()
    assert errors == ["endpoint master-0 was used by a thread that did not make it"]


def test_the_token_does_not_reach_the_receiver(master: ZmqEndpoint, worker: ZmqEndpoint, address: str) -> None:
    worker.connect("master-0", address)
    assert TOKEN not in repr(_next(master))


def _next(endpoint: ZmqEndpoint) -> Received:
    received = endpoint.receive(SOON_S)
    assert received is not None, "nothing came"
    return received
