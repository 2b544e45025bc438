"""What the tests of the transport share: a private directory, a ZeroMQ context, identities of one run."""

from collections.abc import Iterator

import pytest

from runner.engine.cluster.transport.endpoint import Identity, Limits
from runner.engine.cluster.transport.private_directory import PrivateDirectory
from runner.engine.cluster.transport.zmq_sockets import Context, open_context

TOKEN = "a" * 64
LIMITS = Limits(peers=4, queued_messages=64, connect_timeout_s=5.0, send_timeout_s=0.2)


def identity(name: str, *, run: str = "run", epoch: int = 1, token: str = TOKEN) -> Identity:
    """The identity of a peer such as ``worker-1`` in the run all tests share."""
    role, _, index = name.partition("-")
    return Identity(run, epoch, role, int(index), token)


@pytest.fixture
def private_directory() -> Iterator[PrivateDirectory]:
    with PrivateDirectory.create() as directory:
        yield directory


@pytest.fixture
def context() -> Iterator[Context]:
    with open_context(connections=8) as opened:
        yield opened
