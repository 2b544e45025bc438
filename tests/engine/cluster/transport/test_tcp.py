"""Endpoints over TCP with CURVE: keys, refusals, lanes and lost peers."""

import socket
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zmq

from runner.engine.cluster.arrivals import Arrivals, send_parts
from runner.engine.cluster.transport import zmq_sockets
from runner.engine.cluster.transport.admission import Drop
from runner.engine.cluster.transport.endpoint import CLOSED_S, ClosedConnections, Keys, Received
from runner.engine.cluster.transport.messages import PART_BYTES, Hello, Load, Loaded, TensorsPart, TensorsReady, Welcome
from runner.engine.cluster.transport.shared_memory import ArenaReader, ArenaSpec, ArenaWriter
from runner.engine.cluster.transport.ticket import new_keys
from runner.engine.cluster.transport.zmq_endpoint import Outbox, ZmqEndpoint
from runner.engine.cluster.transport.zmq_sockets import PEER_LOST_MS, configure_inbox, configure_outbox, open_context
from runner.errors import ClusterError, SecurityError
from tests.engine.cluster.transport.conftest import LIMITS, SOON_S, identity, next_of

LOOPBACK = "tcp://127.0.0.1:*"
NAMES = ("master-0", "worker-0", "worker-1")
LANES = 3


class Hosts:
    """Processes with separate contexts, as on separate hosts; ``master`` is one of them."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self.keys = new_keys(NAMES)
        self.master = self.endpoint("master-0")

    def endpoint(self, name: str, keys: Keys | None = None, **changes: Any) -> ZmqEndpoint:
        """Return a new endpoint. keys: by default those of the process. changes: of its identity or its limits."""
        limits = {key: changes.pop(key) for key in ("connect_timeout_s", "queued_messages") if key in changes}
        who = replace(identity(name), keys=keys or self.keys[name], **changes)
        context = self._stack.enter_context(open_context(8, who.keys, threads=2))
        given = {"lanes": LANES, "connect_timeout_s": 1.0, **limits}
        return self._stack.enter_context(ZmqEndpoint(context, who, LOOPBACK, replace(LIMITS, **given)))

    def join(self, endpoint: ZmqEndpoint) -> None:
        endpoint.join("master-0", self.master.address, {"cpu": "x"})


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    with ExitStack() as stack:
        yield Hosts(stack)


def test_process_joins_and_the_master_answers_at_its_address(hosts: Hosts) -> None:
    worker = hosts.endpoint("worker-1")
    hosts.join(worker)
    hello = next_of(hosts.master).message
    assert isinstance(hello, Hello)
    assert (hello.role, hello.index, hello.address, hello.facts) == ("worker", 1, worker.address, {"cpu": "x"})
    hosts.master.connect("worker-1", hello.address)
    hosts.master.send("worker-1", Welcome())
    hosts.master.send("worker-1", Load("p"), [b"document"])
    assert [next_of(worker).message.kind for _ in range(3)] == ["hello", "welcome", "load"]


def test_keys_of_another_run_are_refused_with_a_reason(hosts: Hosts) -> None:
    """The process has the right key of the master and the token, but a secret key of another start of the run."""
    other = new_keys(NAMES)["worker-1"]
    public = {**other.public, "master-0": hosts.keys["master-0"].public["master-0"]}
    late = hosts.endpoint("worker-1", Keys(other.secret, public))
    with pytest.raises(
        SecurityError, match="refused the key of worker-1: the key file is not from the current start of the run"
    ):
        hosts.join(late)
    assert hosts.master.receive(0.05) is None
    assert hosts.master._admission.drops == {}


def test_other_server_than_the_master_is_not_trusted(hosts: Hosts) -> None:
    """With another key of the master, as in the file of an earlier start, the handshake ends immediately."""
    own = hosts.keys["worker-1"]
    fooled = hosts.endpoint("worker-1", Keys(own.secret, {**own.public, "master-0": own.public["worker-0"]}))
    with pytest.raises(SecurityError, match="is not the key of master-0 in the key file of worker-1"):
        hosts.join(fooled)
    assert hosts.master.receive(0.05) is None


@pytest.mark.parametrize(
    ("ends", "error", "text"),
    [
        (0, ClusterError, "no process listens on tcp://127.0.0.1:"),
        (1, ClusterError, "no process listens on tcp://127.0.0.1:"),
        (2, SecurityError, "its key is not the key of master-0 .*, or it was just ending; .* master-0 has ended"),
    ],
    ids=["no process", "process that dies during the handshake", "process of another program or that is ending"],
)
def test_end_of_handshakes_is_reported_immediately(hosts: Hosts, ends: int, error: type[Exception], text: str) -> None:
    """ends: number of connections that the process accepts and closes before it ends.

    The listener is closed before the last connection, as the kernel does for a process that dies. If the listener were
    closed last, the worker could connect once more.
    """

    def end_handshakes() -> None:
        with listener, ExitStack() as last:
            for _ in range(ends):
                last.close()
                connection = last.enter_context(listener.accept()[0])
                connection.recv(64)
            listener.close()

    worker = hosts.endpoint("worker-1", connect_timeout_s=SOON_S)
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:
        address = f"tcp://127.0.0.1:{listener.getsockname()[1]}"
        ending = pool.submit(end_handshakes)
        if ends == 0:
            ending.result()
        with pytest.raises(error, match=text):
            worker.join("master-0", address, {})


def test_first_message_with_a_valid_key_that_is_not_accepted_is_answered(hosts: Hosts) -> None:
    """A message of another run with the keys of this run is an attack; another version of runner can be a mistake."""
    worker = hosts.endpoint("worker-1", run="other")
    hosts.join(worker)
    assert hosts.master.receive(0.05) is None
    with pytest.raises(
        ClusterError, match=r"the master refused worker-1: message of another run or epoch \(other, epoch 1\)"
    ):
        worker.receive(SOON_S)


def test_receiver_that_reads_nothing_stops_the_sender(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    """The receiver's memory is bounded in bytes, for any number of messages that the sender queues."""
    credit, count = 8, 1000
    monkeypatch.setattr(zmq_sockets, "CREDIT_BYTES", credit * PART_BYTES)
    sender, receiver = hosts.endpoint("worker-0"), hosts.endpoint("worker-1", queued_messages=10 * count)
    sender.connect("worker-1", receiver.address)
    memory = bytes(PART_BYTES)
    part = TensorsPart("p", 0, ("x",), 0)

    def send_all() -> None:
        for _ in range(count):
            sender.send("worker-1", part, [memory])

    with pytest.raises(ClusterError, match="worker-0 could not send 'part' to worker-1"):
        send_all()
    sent = max(each.sequence for each in sender._connections["worker-1"])
    in_kernel = sum(int(Path(f"/proc/sys/net/ipv4/tcp_{way}mem").read_text().split()[2]) for way in "rw")
    assert credit <= sent <= credit + LIMITS.queued_messages + in_kernel // PART_BYTES + 2


GREETING = bytes([0xFF, *[0] * 8, 0x7F, 3, 0])
STRANGERS = {
    "nothing": b"",
    "half a greeting": GREETING,
    "another protocol": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "TLS": bytes.fromhex("16030100c8010000c40303") + bytes(200),
    "no keys": GREETING + b"NULL".ljust(20, b"\0") + bytes(32),
    "CURVE, then nothing": GREETING + b"CURVE".ljust(20, b"\0") + bytes(32),
    "CURVE, then a command of 2 GiB": GREETING + b"CURVE".ljust(20, b"\0") + bytes(32) + b"\x06" + (2**31).to_bytes(8),
    "CURVE, then a wrong hello": GREETING + b"CURVE".ljust(20, b"\0") + bytes(32) + b"\x04\xc8\x05HELLO" + bytes(194),
}


def test_strangers_are_disconnected_and_deliver_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each stranger opens three connections and closes none."""
    monkeypatch.setattr(zmq_sockets, "HANDSHAKE_MS", 200)
    with ExitStack() as stack:
        hosts = Hosts(stack)
        port = int(hosts.master.address.rpartition(":")[2])
        connections = []
        for sent in 3 * list(STRANGERS.values()):
            connections.append(stack.enter_context(socket.create_connection(("127.0.0.1", port), SOON_S)))
            connections[-1].sendall(sent)
        for connection in connections:
            with suppress(ConnectionResetError):
                while connection.recv(256):
                    pass  # the master's greeting
        assert hosts.master.receive(0.05) is None
        assert hosts.master._admission.drops == {}
        hosts.join(hosts.endpoint("worker-0", connect_timeout_s=SOON_S))
        assert next_of(hosts.master).source == "worker-0"


def test_connection_without_keys_delivers_nothing(hosts: Hosts) -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    with context, context.socket(zmq.DEALER) as plain:
        plain.setsockopt(zmq.LINGER, 0)
        plain.connect(hosts.master.address)
        plain.send_multipart([b"hello"])
        assert hosts.master.receive(0.2) is None
        assert hosts.master._admission.drops == {}
    worker = hosts.endpoint("worker-0")
    hosts.join(worker)
    assert next_of(hosts.master).source == "worker-0"


def test_process_cannot_speak_under_the_name_of_another_key(hosts: Hosts) -> None:
    own = hosts.keys["worker-0"]
    hosts.join(
        hosts.endpoint("worker-0", Keys(own.secret, {**own.public, "worker-1": own.public["worker-0"]}), index=1)
    )
    with pytest.raises(SecurityError, match="hello of worker-1 with the key of worker-0"):
        next_of(hosts.master)


def test_second_process_with_one_key_is_refused_with_a_reason_and_the_first_continues(hosts: Hosts) -> None:
    first, second = hosts.endpoint("worker-0"), hosts.endpoint("worker-0")
    hosts.join(first)
    assert next_of(hosts.master).source == "worker-0"
    hosts.join(second)
    assert hosts.master.receive(0.1) is None
    assert hosts.master._admission.drops == {Drop.TWICE: 1}
    with pytest.raises(ClusterError, match=r"refused worker-0: .* \(worker-0 has already joined the run\)"):
        second.receive(SOON_S)
    first.send("master-0", Loaded("p"))
    assert next_of(hosts.master).message == Loaded("p")


def test_refused_process_receives_the_reason_and_another_takes_its_place(hosts: Hosts) -> None:
    wrong, right = hosts.endpoint("worker-0"), hosts.endpoint("worker-0")
    hosts.join(wrong)
    assert next_of(hosts.master).source == "worker-0"
    hosts.master.refuse("worker-0", "runner is 1, expected 2")
    with pytest.raises(ClusterError, match="the master refused worker-0: runner is 1, expected 2"):
        wrong.receive(SOON_S)
    hosts.join(right)
    assert next_of(hosts.master).source == "worker-0"


def spec(sizes: Sequence[int]) -> ArenaSpec:
    """Return the arena of worker 0 with the tensors ``"0"``, ``"1"`` and so on."""
    return ArenaSpec("p worker-0", "worker-0", "", {str(key): nbytes for key, nbytes in enumerate(sizes)})


PARTS = [[0], [1], [PART_BYTES], [PART_BYTES + 1], [5 * PART_BYTES + 7], [0, 3, 0, PART_BYTES, 2 * PART_BYTES], [7, 0]]


@pytest.mark.parametrize("sizes", PARTS)
def test_tensors_arrive_in_parts_over_all_lanes(hosts: Hosts, sizes: list[int]) -> None:
    sender, receiver = hosts.endpoint("worker-0"), hosts.endpoint("worker-1")
    sender.connect("worker-1", receiver.address)
    assert {next_of(receiver).message.lane for _ in range(LANES)} == set(range(LANES))  # type: ignore[attr-defined]
    draw, keys = np.random.default_rng(len(sizes)), tuple(map(str, range(len(sizes))))
    values = {key: draw.integers(0, 256, nbytes, np.uint8) for key, nbytes in zip(keys, sizes, strict=True)}
    writer, reader, arrivals = ArenaWriter(spec(sizes)), ArenaReader(spec(sizes)), Arrivals()
    arrivals.expect("p", dict.fromkeys(keys, reader))
    for key, value in values.items():
        writer.put(key, value)
    ready = TensorsReady("p", 3, keys, due=0.25)
    send_parts(sender, "worker-1", ready, lambda key: writer.memory(key).data)
    found = [arrivals.add(next_of(receiver)) for _ in range(max(1, -(-sum(sizes) // PART_BYTES)))]
    assert [each for each in found if each is not None] == [ready]
    for key, value in values.items():
        np.testing.assert_array_equal(reader.memory(key), value)


TWO = "2 tensors from 0 on, of plan p, step"
REST = f"came from worker-0; expected a missing part of {TWO} 3, due at 0, with {PART_BYTES} bytes unless"
STRAY = "of plan p, step 3 came from"


@pytest.mark.parametrize(
    ("change", "nbytes", "source", "expected"),
    [
        ({"keys": ("0", "y")}, 9, "worker-0", f"bytes of tensor y {STRAY} worker-0, but no loaded plan receives them"),
        ({}, 9, "worker-1", f"bytes of tensor 0 {STRAY} worker-1, but no loaded plan receives them"),
        ({"step": 4}, PART_BYTES, "worker-0", f"^{TWO} 4, due at 0: {PART_BYTES} bytes from 0 on {REST}"),
        ({"keys": ("0",)}, PART_BYTES, "worker-0", f"^1 tensors from 0 on, .* {REST}"),
        ({"keys": ("0", "1", "0")}, PART_BYTES, "worker-0", f"^3 tensors from 0 on, .* {REST}"),
        ({"due": 1.0}, PART_BYTES, "worker-0", f"^{TWO} 3, due at 1: .* {REST}"),
        ({"start": PART_BYTES}, 9, "worker-0", f"9 bytes from {PART_BYTES} on {REST}"),
        ({}, 9, "worker-0", f"9 bytes from 0 on {REST}"),
        ({"start": 2 * PART_BYTES}, 8, "worker-0", f"8 bytes from {2 * PART_BYTES} on {REST}"),
        ({"start": 2 * PART_BYTES}, 6, "worker-0", f"6 bytes from {2 * PART_BYTES} on {REST}"),
    ],
)
def test_wrong_part_of_tensors_is_refused(change: dict[str, Any], nbytes: int, source: str, expected: str) -> None:
    sizes = [PART_BYTES + 3, PART_BYTES + 4]
    arrivals, reader = Arrivals(), ArenaReader(spec(sizes))
    arrivals.expect("p", {"0": reader, "1": reader})
    right = TensorsPart("p", 3, ("0", "1"), PART_BYTES)
    assert arrivals.add(Received("worker-0", right, (memoryview(bytes(PART_BYTES)),))) is None
    with pytest.raises(SecurityError, match=expected):
        arrivals.add(Received(source, replace(right, **{"start": 0} | change), (memoryview(b"x" * nbytes),)))
    assert not any(reader.memory(key).any() for key in "01"), "bytes of a refused part were copied"


def test_a_tensor_is_not_sent_twice_in_a_message() -> None:
    arrivals = Arrivals()
    arrivals.expect("p", {"0": ArenaReader(spec([3]))})
    with pytest.raises(SecurityError, match=r"^2 tensors from 0 on, .*: 6 bytes from 0 on came from worker-0;"):
        arrivals.add(Received("worker-0", TensorsPart("p", 3, ("0", "0"), 0), (memoryview(b"abcdef"),)))


def test_small_tensor_does_not_wait_for_the_large_one_before_it(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    """A receiver that reads nothing stops the connections of large tensors, but not the first connection.

    The large tensor exceeds the kernel's buffers and the credit, so its last parts cannot arrive before the small one.
    """
    monkeypatch.setattr(zmq_sockets, "CREDIT_BYTES", 4 * PART_BYTES)
    parts = 120
    sender, receiver = hosts.endpoint("worker-0"), hosts.endpoint("worker-1")
    sender.connect("worker-1", receiver.address)
    sizes = {"large": parts * PART_BYTES, "small": 8}
    writer = ArenaWriter(ArenaSpec("p worker-0", "worker-0", "", sizes))
    order = []
    for key, nbytes in sizes.items():
        writer.put(key, np.zeros(nbytes, np.uint8))
        send_parts(sender, "worker-1", TensorsReady("p", 0, (key,)), lambda key: writer.memory(key).data)
    while len(order) < parts + 1:
        message = next_of(receiver).message
        order += message.keys if isinstance(message, TensorsPart) else []
    assert order.index("small") < parts
    # The first lane has sent hello and the small tensor; each other lane has sent hello and every second part of the
    # large tensor.
    lanes = [connection.sequence for connection in sender._connections["worker-1"]]
    assert lanes == [2, 1 + parts // 2, 1 + parts // 2]


def test_sockets_over_tcp_detect_lost_peers(hosts: Hosts) -> None:
    who = replace(identity("worker-0"), keys=hosts.keys["worker-0"])
    with open_context(2) as context, context.socket(zmq.ROUTER) as inbox, context.socket(zmq.DEALER) as outbox:
        configure_inbox(inbox, LIMITS, who.keys)
        configure_outbox(outbox, LIMITS, who, "worker_heartbeat-1")
        for socket in (inbox, outbox):
            assert socket.getsockopt(zmq.HEARTBEAT_TIMEOUT) == PEER_LOST_MS
            assert socket.getsockopt(zmq.HEARTBEAT_IVL) > 0
            assert socket.getsockopt(zmq.HEARTBEAT_TTL) == 0, "a suspended machine would close its connections"
            assert socket.getsockopt(zmq.MECHANISM) == zmq.CURVE


def test_sender_notices_the_end_of_the_connection_to_the_master(hosts: Hosts) -> None:
    with ExitStack() as stack:
        gone = Hosts(stack)
        who = replace(identity("worker_heartbeat-0"), keys=gone.keys["worker-0"])
        context = stack.enter_context(open_context(2, who.keys))
        outbox = stack.enter_context(closing(Outbox(context, who, LIMITS)))
        outbox.connect("master-0", gone.master.address)
        assert outbox.offer("master-0", Loaded("p"))
        gone.master.close()
        deadline = time.monotonic() + SOON_S
        while outbox.offer("master-0", Loaded("p")):
            assert time.monotonic() < deadline, "the end was not noticed"
            time.sleep(0.01)


def test_sender_without_a_message_to_send_notices_the_end_of_a_connection(hosts: Hosts) -> None:
    sender, receiver = hosts.endpoint("worker-0"), hosts.endpoint("worker-1")
    for peer in (receiver, hosts.master):
        sender.connect(peer.name, peer.address)
    connections = ClosedConnections(sender)
    assert connections.lost(0.0) == []
    receiver.close()
    deadline = time.monotonic() + SOON_S
    while not sender.closed():
        assert time.monotonic() < deadline, "the end was not noticed"
        time.sleep(0.01)
    found = [connections.lost(now) for now in (1.0, 1.0 + CLOSED_S / 2, 1.0 + CLOSED_S)]
    assert found == [[], [], ["worker-1"]]
    sender.forget("worker-1")
    assert connections.lost(9.0) == []
