from __future__ import annotations

import threading

import pytest

from runner.engine.transport.address import inbox_address
from runner.engine.transport.heartbeat import HeartbeatThread, Progress
from runner.engine.transport.messages import Heartbeat, Hello
from runner.engine.transport.names import MASTER
from runner.engine.transport.private_directory import PrivateDirectory
from runner.engine.transport.zmq_context import Context
from runner.engine.transport.zmq_endpoint import ZmqEndpoint
from runner.engine.transport.zmq_outbox import Outbox
from runner.errors import ClusterError
from tests.engine.transport.conftest import LIMITS, identity


class RecordingLink:
    """A link that notes what is offered, and lets a test wait for it."""

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


def test_the_thread_tells_what_the_main_loop_does_and_ends() -> None:
    link, progress = RecordingLink(), Progress()
    with HeartbeatThread(lambda: link, progress, interval_s=0.001) as thread:
        link.wait_for_beats(1)
        progress.enter("step", 12)
        link.wait_for_beats(5)
        thread.check()
    assert link.beats[0] == Heartbeat("setup", 0)
    assert link.beats[-1] == Heartbeat("step", 12)
    assert link.closed


def test_the_link_is_made_by_the_thread_that_uses_it() -> None:
    made: list[RecordingLink] = []

    def open_link() -> RecordingLink:
        made.append(RecordingLink())
        return made[0]

    with HeartbeatThread(open_link, Progress(), interval_s=0.001):
        pass
    assert made[0].thread != threading.get_ident()


def test_a_beat_without_room_is_left_out_and_the_next_one_tried() -> None:
    link = RecordingLink(has_room=False)
    with HeartbeatThread(lambda: link, Progress(), interval_s=0.001) as thread:
        link.wait_for_beats(3)
        thread.check()


def test_what_ends_the_thread_is_raised_in_the_main_loop() -> None:
    failed = threading.Event()

    def open_link() -> RecordingLink:
        failed.set()
        raise ClusterError("nobody listens")

    with HeartbeatThread(open_link, Progress()) as thread:
        assert failed.wait(5.0)
    with pytest.raises(ClusterError, match="nobody listens"):
        thread.check()


def test_beats_reach_the_master_over_a_connection_of_their_own(
    context: Context, private_directory: PrivateDirectory
) -> None:
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


def test_a_full_queue_drops_beats_and_loses_no_number(context: Context, private_directory: PrivateDirectory) -> None:
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
