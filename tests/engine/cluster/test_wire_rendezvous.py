"""The rendezvous between processes: receivers view the sender's memory after checking the reference."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from runner.engine.cluster.mailbox import Mailbox
from runner.engine.cluster.transport.messages import Message, TensorReady
from runner.engine.cluster.transport.private_directory import PrivateDirectory
from runner.engine.cluster.transport.shared_memory import ArenaReader, ArenaWriter, create_arena
from runner.engine.cluster.wire_rendezvous import WireRendezvous
from runner.engine.graph.device import worker_device
from runner.errors import SecurityError
from tests.engine.cluster.transport.conftest import identity
from tests.engine.cluster.transport.fake_network import FakeNetwork

HERE, THERE = worker_device(0), worker_device(1)
KEY = f"x:0->{THERE}"
VALUE = np.arange(4, dtype=np.float32)


class Wire:
    """Worker 0, which sends ``x``, and worker 1, which receives it."""

    def __init__(self, directory: PrivateDirectory) -> None:
        network = FakeNetwork(0)
        names = ("worker-0", "worker-1")
        self.ends = [network.endpoint(identity(name), len(names)) for name in names]
        for end, other in zip(self.ends, reversed(names), strict=True):
            end.connect(other, "")
        specs = [
            create_arena(directory.path, f"plan {name}", name, 1, sizes)
            for name, sizes in zip(names, ({"x:0": VALUE.nbytes}, {}), strict=True)
        ]
        self.sender, self.receiver = (
            WireRendezvous("plan", end, mailbox, ArenaWriter(own), {other.owner: ArenaReader(other)})
            for end, mailbox, own, other in zip(self.ends, map(Mailbox, self.ends), specs, specs[::-1], strict=True)
        )
        self.receiver._mailbox.expect("plan", {KEY: "worker-0"})

    def send(self, message: Message) -> None:
        self.ends[0].send("worker-1", message)


@pytest.fixture
def wire() -> Iterator[Wire]:
    with PrivateDirectory.create() as directory:
        yield Wire(directory)


def test_receiver_reads_the_sender_s_memory(wire: Wire) -> None:
    memory = wire.sender.outgoing("x:0", VALUE.nbytes).view(np.float32)
    place = wire.receiver.incoming(KEY, HERE, VALUE.nbytes)
    for step in range(2):
        memory[:] = VALUE + step
        wire.sender.send(step, KEY, THERE, memory)
        received = wire.receiver.receive(step, KEY, HERE)
        np.testing.assert_array_equal(received, VALUE + step)
        assert np.shares_memory(received, place)
        assert not place.flags.writeable


def test_value_from_other_memory_is_copied(wire: Wire) -> None:
    value = VALUE.copy()
    wire.sender.send(0, KEY, THERE, value)
    value[:] = -1.0
    np.testing.assert_array_equal(wire.receiver.receive(0, KEY, HERE), VALUE)


def test_reference_to_another_slot_is_refused(wire: Wire) -> None:
    right = wire.sender._writer.put("x:0", VALUE)
    wire.send(TensorReady("plan", 0, KEY, replace(right, offset=64)))
    with pytest.raises(SecurityError, match=r"tensor x:0 of worker-0: reference to .* expected"):
        wire.receiver.receive(0, KEY, HERE)


def test_wrong_size_is_refused(wire: Wire) -> None:
    with pytest.raises(ValueError, match="'x:0': memory of 16 bytes, expected 8"):
        wire.sender.outgoing("x:0", 8)
    with pytest.raises(ValueError, match="memory of 16 bytes, expected 24"):
        wire.receiver.incoming(KEY, HERE, 24)
