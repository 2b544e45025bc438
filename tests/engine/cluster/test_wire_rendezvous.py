"""Transfers between two workers, by messages and by doorbells."""

import itertools
from collections.abc import Collection, Iterator
from pathlib import Path

import numpy as np
import pytest

from runner.engine.cluster.assignment import BELL_BYTES, FINISHED, bell_key
from runner.engine.cluster.emulation import Links
from runner.engine.cluster.mailbox import Mailbox, Stopped
from runner.engine.cluster.transport.messages import MASTER, Message, Shutdown, TensorsReady
from runner.engine.cluster.transport.private_directory import private_directory
from runner.engine.cluster.transport.shared_memory import ArenaReader, ArenaSpec, ArenaWriter, create_arena
from runner.engine.cluster.wire_rendezvous import WireRendezvous
from runner.engine.graph.device import worker_device
from runner.engine.graph.tensor import TensorSpec
from runner.engine.run.kernel_table import load_kernels
from runner.errors import ClusterError, RunnerError, SecurityError
from runner.kernels.registry import Registry
from tests.engine.cluster.transport.conftest import identity
from tests.engine.cluster.transport.fake_network import FakeNetwork

WORKER_0, WORKER_1 = worker_device(0), worker_device(1)
KEY, LATER_KEY = f"x:0->{WORKER_1}", f"y:0->{WORKER_1}"
VALUE, LATER = np.arange(4, dtype=np.float32), np.full(1, 7, np.float32)


class Wire:
    """Two connected workers: worker 0 sends ``x`` and worker 1 receives it.

    rings: a doorbell announces it. together: ``y`` follows in the same message. copies: the workers share no memory.
    awaited: keys that worker 1 takes when its run begins.
    """

    def __init__(
        self,
        directory: Path,
        *,
        rings: bool = False,
        together: bool = False,
        copies: bool = False,
        awaited: Collection[str] = (),
    ) -> None:
        network = FakeNetwork(0)
        names = ("worker-0", "worker-1")
        self.ends = [network.endpoint(identity(name), len(names)) for name in names]
        for end, other in zip(self.ends, reversed(names), strict=True):
            end.connect(other, "")
        self.master = network.endpoint(identity(MASTER), len(names))
        for name in names:
            self.master.connect(name, "")
        sent = {"x:0": VALUE.nbytes, "y:0": LATER.nbytes}
        sent |= {bell_key(KEY): BELL_BYTES, FINISHED: BELL_BYTES} if rings else {}
        sizes = zip(names, (sent, {FINISHED: BELL_BYTES}), strict=True)
        specs = [create_arena(directory, f"plan {name}", name, needed) for name, needed in sizes]
        received = {KEY: TensorSpec(VALUE.shape, "float32"), LATER_KEY: TensorSpec(LATER.shape, "float32")}
        messages = [] if rings else [(KEY, LATER_KEY)] if together else [(KEY,), (LATER_KEY,)]
        kernels = load_kernels()

        def reader(spec: ArenaSpec) -> ArenaReader:
            return ArenaReader(spec.copy if copies else spec)

        self.sender, self.receiver = (
            WireRendezvous(
                *("plan", end, Mailbox(end), ArenaWriter(own), {other.owner: reader(other)}, received, peers),
                messages,
                waits,
                kernels,
            )
            for end, own, other, peers, waits in zip(
                self.ends, specs, specs[::-1], ([names[1]], []), ((), awaited), strict=True
            )
        )
        arena = self.receiver.readers["worker-0"]
        parts = dict.fromkeys(received, arena) if copies else {}
        self.receiver.mailbox.expect("plan", dict.fromkeys(received, "worker-0"), parts)

    def begin(self, step: int) -> None:
        for end in (self.sender, self.receiver):
            end.begin(step)

    def send(self, message: Message) -> None:
        self.ends[0].send("worker-1", message)


@pytest.fixture(params=[False, True], ids=["message", "doorbell"])
def wire(request: pytest.FixtureRequest) -> Iterator[Wire]:
    with private_directory() as directory:
        yield Wire(directory, rings=request.param)


@pytest.fixture
def bell() -> Iterator[Wire]:
    with private_directory() as directory:
        yield Wire(directory, rings=True)


def test_receiver_reads_the_memory_of_the_sender(wire: Wire) -> None:
    memory = wire.sender.outgoing("x:0", VALUE.nbytes).view(np.float32)
    place = wire.receiver.incoming(KEY, WORKER_0, VALUE.nbytes)
    for step in range(2):
        wire.begin(step)
        memory[:] = VALUE + step
        wire.sender.send(step, KEY, WORKER_1, memory)
        received = wire.receiver.receive(step, KEY, WORKER_0)
        np.testing.assert_array_equal(received, VALUE + step)
        assert np.shares_memory(received, place)
        assert not place.flags.writeable


def test_value_outside_the_arena_is_copied(wire: Wire) -> None:
    value = VALUE.copy()
    wire.begin(0)
    wire.sender.send(0, KEY, WORKER_1, value)
    value[:] = -1.0
    np.testing.assert_array_equal(wire.receiver.receive(0, KEY, WORKER_0), VALUE)


@pytest.mark.parametrize("copies", [False, True])
def test_tensors_of_a_message_are_sent_with_the_last(copies: bool) -> None:
    class Recorded(Links):
        def __init__(self) -> None:
            self.sent: list[tuple[str, int]] = []

        def due(self, destination: str, nbytes: int) -> float:
            self.sent.append((destination, nbytes))
            return 0.0

    with private_directory() as directory:
        wire, links = Wire(directory, together=True, copies=copies), Recorded()
        wire.sender.links = links
        wire.begin(0)
        assert (wire.sender.ring(KEY), wire.sender.ring(LATER_KEY)) == ([], None)
        wire.sender.send(0, KEY, WORKER_1, VALUE)
        wire.receiver.mailbox.catch_up()
        assert wire.receiver.mailbox.missing("plan", [KEY, LATER_KEY]).keys() == {KEY, LATER_KEY}
        wire.sender.send(0, LATER_KEY, WORKER_1, LATER)
        wire.receiver.mailbox.catch_up()
        assert not wire.receiver.mailbox.missing("plan", [KEY, LATER_KEY])
        assert links.sent == [("worker-1", VALUE.nbytes + LATER.nbytes)]
        for key, value in ((LATER_KEY, LATER), (KEY, VALUE)):
            np.testing.assert_array_equal(wire.receiver.receive(0, key, WORKER_0), value)


def test_awaited_tensors_are_taken_when_the_run_begins() -> None:
    with private_directory() as directory:
        wire = Wire(directory, together=True, awaited=[KEY])
        assert (wire.receiver.arrival(KEY, WORKER_0), wire.receiver.arrival(LATER_KEY, WORKER_0)) == ([], None)
        for step in range(2):
            wire.sender.begin(step)
            for key, value in ((KEY, VALUE), (LATER_KEY, LATER)):
                wire.sender.send(step, key, WORKER_1, value + step)
            wire.receiver.begin(step)
            assert wire.receiver.mailbox.missing("plan", [KEY, LATER_KEY]).keys() == {KEY}
            for key, value in ((KEY, VALUE), (LATER_KEY, LATER)):
                np.testing.assert_array_equal(wire.receiver.receive(step, key, WORKER_0), value + step)


def test_a_notice_without_bytes_is_refused_between_workers_without_common_memory() -> None:
    with private_directory() as directory:
        wire = Wire(directory, copies=True)
        wire.send(TensorsReady("plan", 0, (KEY,)))
        with pytest.raises(
            SecurityError, match=r"tensor x:0->.* of plan plan, step 0 from worker-0: expected its bytes"
        ):
            wire.receiver.receive(0, KEY, WORKER_0)


def test_a_wait_for_a_doorbell_ends_with_a_message_or_a_second_run_of_the_sender(bell: Wire) -> None:
    bell.begin(0)
    bell.master.send("worker-1", Shutdown(reason="the run has ended"))
    with pytest.raises(Stopped, match="the run has ended"):
        bell.receiver.receive(0, KEY, WORKER_0)
    bell.sender.begin(1)
    bell.sender.send(1, KEY, WORKER_1, VALUE)
    with pytest.raises(SecurityError, match=r"'x:0->.*': worker-0 is in run 2 of the plan, expected run 1"):
        bell.receiver.receive(0, KEY, WORKER_0)


def test_a_plan_with_doorbells_is_refused_without_machine_code(bell: Wire) -> None:
    bell.receiver.registry = Registry()
    with pytest.raises(RunnerError, match="plan 'plan' has doorbells, but this process cannot compile machine code"):
        bell.receiver.arrival(KEY, WORKER_0)


def test_a_wait_for_a_doorbell_has_a_limit(bell: Wire) -> None:
    time = itertools.count(0.0, 2.4)  # the mailbox is read every 9.6 s, so no gap restarts the limit
    bell.receiver.mailbox = Mailbox(bell.ends[1], lambda: next(time))
    bell.begin(7)
    with pytest.raises(ClusterError, match=r"step 7: tensor 'x:0->.*' did not arrive from worker-0 within 600 s"):
        bell.receiver.receive(7, KEY, WORKER_0)
    assert next(time) < 650


def test_in_a_series_the_sender_waits_until_its_value_has_been_read(bell: Wire) -> None:
    bell.begin(0)
    bell.sender.send(0, KEY, WORKER_1, VALUE)
    bell.sender.finish()
    bell.master.send("worker-0", Shutdown(reason="it waited"))
    with pytest.raises(Stopped, match="it waited"):
        bell.sender.begin(1, first=False)
    np.testing.assert_array_equal(bell.receiver.receive(0, KEY, WORKER_0), VALUE)
    bell.receiver.finish()
    bell.receiver.begin(1, first=False)
    bell.sender.begin(1, first=False)
    bell.sender.send(1, KEY, WORKER_1, VALUE + 1)
    np.testing.assert_array_equal(bell.receiver.receive(1, KEY, WORKER_0), VALUE + 1)


def test_a_doorbell_of_an_interrupted_run_is_not_heard_in_a_later_epoch(bell: Wire) -> None:
    bell.begin(0)
    bell.sender.send(0, KEY, WORKER_1, VALUE)
    for end in (*bell.ends, bell.master):
        end.advance(2)
    for rendezvous in (bell.sender, bell.receiver):
        rendezvous.restart()
    bell.begin(0)
    bell.master.send("worker-1", Shutdown(reason="nothing was heard"))
    with pytest.raises(Stopped, match="nothing was heard"):
        bell.receiver.receive(0, KEY, WORKER_0)
    bell.sender.send(0, KEY, WORKER_1, VALUE + 1)
    np.testing.assert_array_equal(bell.receiver.receive(0, KEY, WORKER_0), VALUE + 1)


def test_wrong_size_is_refused(wire: Wire) -> None:
    with pytest.raises(ValueError, match="'x:0': memory of 16 bytes, expected 8"):
        wire.sender.outgoing("x:0", 8)
    with pytest.raises(ValueError, match="memory of 16 bytes, expected 24"):
        wire.receiver.incoming(KEY, WORKER_0, 24)
