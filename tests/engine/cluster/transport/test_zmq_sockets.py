"""ZeroMQ contexts that end in time, and the options of sockets."""

import resource

import pytest
import zmq

from runner.engine.cluster.transport import zmq_sockets
from runner.engine.cluster.transport.endpoint import Limits
from runner.engine.cluster.transport.zmq_sockets import configure_inbox, configure_outbox, milliseconds, open_context
from runner.errors import ClusterError, ResourceError


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


def test_limit_of_open_files_is_raised_or_reported(monkeypatch: pytest.MonkeyPatch) -> None:
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
    limits = Limits(peers=3, queued_messages=77, send_timeout_s=1.5)
    with open_context(connections=2) as context, context.socket(kind) as socket:
        if kind == zmq.ROUTER:
            configure_inbox(socket, limits)
        else:
            configure_outbox(socket, limits)
        assert socket.getsockopt(zmq.LINGER) == 1000
        assert socket.getsockopt(zmq.MAXMSGSIZE) == 64 * 2**20 + 64 * 2**10
        assert socket.getsockopt(zmq.HANDSHAKE_IVL) == 2000
        assert socket.getsockopt(zmq.SNDTIMEO) == socket.getsockopt(zmq.RCVTIMEO) == 1500
        if kind == zmq.ROUTER:
            assert socket.getsockopt(zmq.RCVHWM) == 77
            assert socket.getsockopt(zmq.BACKLOG) == 25
        else:
            assert socket.getsockopt(zmq.SNDHWM) == 77
            assert socket.getsockopt(zmq.IMMEDIATE) == 1
            assert socket.getsockopt(zmq.RECONNECT_IVL) == -1
        # libzmq would cut the connections of a process that is stopped for longer than its time-out.
        assert socket.getsockopt(zmq.HEARTBEAT_IVL) == socket.getsockopt(zmq.HEARTBEAT_TTL) == 0


def test_milliseconds_are_rounded_up() -> None:
    assert milliseconds(0.0001) == 1
    assert milliseconds(0.0) == 0
