"""CURVE: encryption and authentication of TCP connections, with an allow-list of keys.

libzmq asks a ZAP handler (ZeroMQ RFC 27, one socket with a fixed name in each context) whether a key may connect. The
handler here accepts the keys of the run and returns the name of the process as the connection's user id, so that
admission can check the name in a hello. Without a handler, libzmq refuses connections (``ZAP_ENFORCE_DOMAIN``).
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import zmq
from zmq.utils import z85

from runner.engine.cluster.transport.endpoint import Keys

_HANDLER = "inproc://zeromq.zap.01"
_DOMAIN = b"runner"
_POLL_MS = 100
USER_ID = "User-Id"


@contextmanager
def allow_list(context: zmq.Context[zmq.Socket[bytes]], keys: Keys) -> Iterator[None]:
    """While the ``with`` block runs, a thread answers libzmq's requests to check keys."""
    names = {z85.decode(key): name for name, key in keys.public.items()}
    socket = context.socket(zmq.REP)
    socket.setsockopt(zmq.LINGER, 0)
    socket.bind(_HANDLER)
    stopping = threading.Event()

    def answer() -> None:
        with socket:
            while not stopping.is_set():
                if socket.poll(_POLL_MS):
                    socket.send_multipart(_answer(socket.recv_multipart(), names))

    thread = threading.Thread(target=answer, name="zap", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join()


def _answer(request: list[bytes], names: dict[bytes, str]) -> list[bytes]:
    """Return the reply to a request (version, request id, domain, address, identity, mechanism, key)."""
    version, number, domain, _, _, mechanism, *credentials = request
    name = names.get(credentials[0]) if (domain, mechanism) == (_DOMAIN, b"CURVE") and credentials else None
    if name is None:
        return [version, number, b"400", b"unknown key", b"", b""]
    return [version, number, b"200", b"OK", name.encode(), b""]


def secure_inbox(socket: zmq.Socket[bytes], keys: Keys) -> None:
    """Accept only connections that present a key of the allow-list; call this function before the socket is bound."""
    socket.setsockopt(zmq.CURVE_SERVER, 1)
    socket.setsockopt_string(zmq.CURVE_SECRETKEY, keys.secret)
    socket.setsockopt(zmq.ZAP_DOMAIN, _DOMAIN)
    socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)


def secure_outbox(socket: zmq.Socket[bytes], keys: Keys, own: str, peer: str) -> None:
    """Connect with the key of process ``own``, and only to an inbox with the key of process ``peer``."""
    socket.setsockopt_string(zmq.CURVE_SERVERKEY, keys.public[peer])
    socket.setsockopt_string(zmq.CURVE_PUBLICKEY, keys.public[own])
    socket.setsockopt_string(zmq.CURVE_SECRETKEY, keys.secret)
