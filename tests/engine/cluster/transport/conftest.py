"""Fixtures for tests of the transport: a private directory, a ZeroMQ context, and identities of one run."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from runner.engine.cluster.transport.endpoint import Endpoint, Identity, Limits, Received
from runner.engine.cluster.transport.private_directory import private_directory
from runner.engine.cluster.transport.zmq_sockets import Context, open_context

TOKEN = "a" * 64
SOON_S = 5.0  # a time limit that is reached only if a test fails
LIMITS = Limits(peers=4, queued_messages=64, connect_timeout_s=5.0, send_timeout_s=0.2)


def identity(name: str, *, run: str = "run", epoch: int = 1, token: str = TOKEN) -> Identity:
    """Return the identity of a peer such as ``worker-1``, by default in the run that all tests use."""
    role, _, index = name.partition("-")
    return Identity(run, epoch, role, int(index), token)


def next_of(endpoint: Endpoint) -> Received:
    received = endpoint.receive(SOON_S)
    assert received is not None, "no message arrived"
    return received


@pytest.fixture
def directory() -> Iterator[Path]:
    with private_directory() as path:
        yield path


@pytest.fixture
def context() -> Iterator[Context]:
    with open_context(connections=8) as opened:
        yield opened
