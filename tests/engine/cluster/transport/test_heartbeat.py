import threading

import pytest

from runner.engine.cluster.transport.address import inbox_address
from runner.engine.cluster.transport.heartbeat import HeartbeatThread, Progress
from runner.engine.cluster.transport.messages import Heartbeat, Hello
from runner.engine.cluster.transport.names import MASTER
from runner.engine.cluster.transport.private_directory import PrivateDirectory
from runner.engine.cluster.transport.zmq_endpoint import ZmqEndpoint
from runner.engine.cluster.transport.zmq_outbox import Outbox
from runner.engine.cluster.transport.zmq_sockets import Context
from runner.errors import ClusterError
from tests.engine.cluster.transport.conftest import LIMITS, identity


class RecordingOutbox:
    """An outbox that records messages and lets a test wait for them."""

    def __init__(self, has_room: bool = True) -> None:
        self.beats: list[Heartbeat] = []
        self.thread = threading.get_ident()
        self.closed = False
        self._has_room = has_room
        self._beat = threading.Semaphore(0)

    def offer(self, peer: str, message: Heartbeat) -> bool:
        assert peer == MASTER
        self.beats.append(message)
        self._beat.release()
        return self._has_room

    def close(self) -> None:
        self.closed = True

    def wait_for_beats(self, count: int) -> None:
        for _ in range(count):
            assert self._beat.acquire(timeout=5.0), "no beat came"


def test_thread_sends_the_progress_and_ends() -> None:
    link, progress = RecordingOutbox(), Progress()
    with HeartbeatThread(lambda: link, progress, interval_s=0.001) as thread:
        link.wait_for_beats(1)
        progress.enter("step", 12)
        link.wait_for_beats(5)
        thread.check()
    assert link.beats[0] == Heartbeat("setup", 0)
    assert link.beats[-1] == Heartbeat("step", 12)
    assert link.closed


def test_outbox_is_opened_by_its_thread() -> None:
    made: list[RecordingOutbox] = []

    def open_outbox() -> RecordingOutbox:
        made.append(RecordingOutbox())
        return made[0]

    with HeartbeatThread(open_outbox, Progress(), interval_s=0.001):
        pass
    assert made[0].thread != threading.get_ident()


def test_heartbeat_without_room_is_skipped() -> None:
    link = RecordingOutbox(has_room=False)
    with HeartbeatThread(lambda: link, Progress(), interval_s=0.001) as thread:
        link.wait_for_beats(3)
        thread.check()


def test_error_of_the_thread_is_raised_in_the_main_loop() -> None:
    failed = threading.Event()

    def open_outbox() -> RecordingOutbox:
        failed.set()
        raise ClusterError("no process listens")

    with HeartbeatThread(open_outbox, Progress()) as thread:
        assert failed.wait(5.0)
    with pytest.raises(ClusterError, match="no process listens"):
        thread.check()


def test_heartbeats_use_a_separate_connection(context: Context, private_directory: PrivateDirectory) -> None:
    address = inbox_address(private_directory.path, MASTER)

    def open_outbox() -> Outbox:
        outbox = Outbox(context, identity("worker_heartbeat-3"), LIMITS)
        outbox.connect(MASTER, address)
        return outbox

    with (
        ZmqEndpoint(context, identity(MASTER), address, LIMITS) as master,
        HeartbeatThread(open_outbox, Progress(), interval_s=0.01),
    ):
        received = [master.receive(5.0) for _ in range(3)]
    assert [item and item.source for item in received] == ["worker_heartbeat-3"] * 3
    assert [item and type(item.message) for item in received] == [Hello, Heartbeat, Heartbeat]


def test_skipped_heartbeats_use_no_sequence_numbers(context: Context, private_directory: PrivateDirectory) -> None:
    address = inbox_address(private_directory.path, MASTER)
    tight = LIMITS.__class__(peers=1, queued_messages=2)
    with ZmqEndpoint(context, identity(MASTER), address, tight) as master:
        outbox = Outbox(context, identity("worker_heartbeat-0"), tight)
        outbox.connect(MASTER, address)
        offered = [outbox.offer(MASTER, Heartbeat("step", step)) for step in range(10_000)]
        assert not all(offered)
        while master.receive(0.05) is not None:
            pass  # A gap in the numbers would raise.
        assert outbox.offer(MASTER, Heartbeat("step", 0))
        assert master.receive(5.0) is not None
        outbox.close()
