from __future__ import annotations

import resource

import pytest
import zmq

from runner.engine.transport import zmq_context
from runner.engine.transport.endpoint import Limits
from runner.engine.transport.zmq_context import open_context
from runner.engine.transport.zmq_options import configure_inbox, configure_outbox, milliseconds
from runner.errors import ClusterError, ResourceError


def test_it_is_ours_and_ended() -> None:
    with open_context(connections=2) as context:
        assert context is not zmq.Context.instance()
    assert context.closed


def test_a_socket_left_open_is_said_and_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zmq_context, "TERMINATION_S", 0.05)
    left_open: list[zmq.Socket[bytes]] = []

    def leave_a_socket_open() -> None:
        with open_context(connections=2) as context:
            left_open.append(context.socket(zmq.ROUTER))

    with pytest.raises(ClusterError, match=r"did not end within 0\.05 s: a socket was not closed"):
        leave_a_socket_open()
    left_open[0].close()


def test_the_limit_of_open_files_is_raised_or_said(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = {"now": (100, 400)}
    monkeypatch.setattr(resource, "getrlimit", lambda which: limits["now"])
    monkeypatch.setattr(resource, "setrlimit", lambda which, new: limits.update(now=new))
    with open_context(connections=10):
        assert limits["now"] == (276, 400)
    with (
        pytest.raises(ResourceError, match=r"2256 open files needed, the limit is 400: raise it \(ulimit -Hn\)"),
        open_context(connections=1000),
    ):
        pass


@pytest.mark.parametrize("kind", [zmq.ROUTER, zmq.DEALER])
def test_every_socket_has_its_limits(kind: int) -> None:
    limits = Limits(peers=3, queued_messages=77, frame_bytes=100 * 2**20, send_timeout_s=1.5)
    with open_context(connections=2) as context, context.socket(kind) as socket:
        if kind == zmq.ROUTER:
            configure_inbox(socket, limits)
        else:
            configure_outbox(socket, limits, pings=True)
        assert socket.getsockopt(zmq.LINGER) == 1000
        assert socket.getsockopt(zmq.MAXMSGSIZE) == 100 * 2**20 + 64 * 2**10
        assert socket.getsockopt(zmq.HANDSHAKE_IVL) == 2000
        assert socket.getsockopt(zmq.SNDTIMEO) == socket.getsockopt(zmq.RCVTIMEO) == 1500
        if kind == zmq.ROUTER:
            assert socket.getsockopt(zmq.RCVHWM) == 77
            assert socket.getsockopt(zmq.BACKLOG) == 25
        else:
            assert socket.getsockopt(zmq.SNDHWM) == 77
            assert socket.getsockopt(zmq.IMMEDIATE) == 1
            assert socket.getsockopt(zmq.RECONNECT_IVL) == -1
            assert socket.getsockopt(zmq.HEARTBEAT_IVL) == 5000
            assert socket.getsockopt(zmq.HEARTBEAT_TIMEOUT) == socket.getsockopt(zmq.HEARTBEAT_TTL) == 30_000


def test_only_an_outbox_that_does_not_beat_itself_sends_zmtp_heartbeats() -> None:
    with (
        open_context(connections=2) as context,
        context.socket(zmq.ROUTER) as inbox,
        context.socket(zmq.DEALER) as outbox,
    ):
        configure_inbox(inbox, Limits(peers=1))
        configure_outbox(outbox, Limits(peers=1), pings=False)
        assert inbox.getsockopt(zmq.HEARTBEAT_IVL) == outbox.getsockopt(zmq.HEARTBEAT_IVL) == 0


def test_milliseconds_are_rounded_up() -> None:
    assert milliseconds(0.0001) == 1
    assert milliseconds(0.0) == 0
