"""Tickets: the files with which processes join a run, and the keys of a run.

The master writes one ticket for each process, in a file of mode 0600. A ticket contains everything that the process
needs before its first message, including its role, its index and its secrets. Secrets are never in arguments or the
environment, because other processes can read these. A process removes its ticket when the master has accepted it. A
spare process that replaces a lost one receives the ticket of the lost process in a message.

Over ``ipc://``, the run's token authenticates a process. Over ``tcp://``, every process also has a CURVE key pair, new
in every start of a run, and accepts connections only from the public keys in its ticket.
"""

import os
import secrets
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import zmq

from runner.engine.cluster.transport.encoding import MAX_DOCUMENT_BYTES, decode_document, encode_document
from runner.engine.cluster.transport.endpoint import SEND_TIMEOUT_S, Identity, Keys, Limits
from runner.engine.cluster.transport.messages import MAX_LANES, MAX_PROCESSES, STARTED_ROLES
from runner.errors import SecurityError
from runner.system.schema import Integer, MapOf, Maybe, OneOf, Record, Text, read_untrusted

_TOKEN = Text(64)
_KEY = Text(40)


def new_token() -> str:
    """Return 256 fresh random bits as 64 hexadecimal digits."""
    return secrets.token_hex(32)


def new_keys(names: Sequence[str]) -> dict[str, Keys]:
    """Return new CURVE keys for processes: name -> secret key of the process and public keys of all processes."""
    pairs = {name: zmq.curve_keypair() for name in names}
    public = {name: pair[0].decode() for name, pair in pairs.items()}
    return {name: Keys(pair[1].decode(), public) for name, pair in pairs.items()}


@dataclass(frozen=True)
class Ticket:
    """The content of a ticket: identity of the process, limits of its connections, and its settings.

    secret_key, public_keys: see :class:`~runner.engine.cluster.transport.endpoint.Keys`; None and {} over ``ipc://``.
    peers, servers, queued_messages, lanes: see ``Limits``. threads: kernel threads of the process.
    """

    run: Annotated[str, Text(64)]
    epoch: Annotated[int, Integer()]
    role: Annotated[str, OneOf(STARTED_ROLES)]
    index: Annotated[int, Integer(high=MAX_PROCESSES - 1)]
    token: Annotated[str, _TOKEN] = field(repr=False)
    secret_key: Annotated[str | None, Maybe(_KEY)] = field(repr=False)
    public_keys: Annotated[Mapping[str, str], MapOf(Text(32), _KEY, MAX_PROCESSES)] = field(repr=False)
    peers: Annotated[int, Integer(low=1, high=MAX_PROCESSES)]
    servers: Annotated[int, Integer(high=MAX_PROCESSES)]
    queued_messages: Annotated[int, Integer(low=1)]
    lanes: Annotated[int, Integer(low=1, high=MAX_LANES)]
    threads: Annotated[int, Integer(low=1)]

    @property
    def identity(self) -> Identity:
        """The identity of the process."""
        keys = None if self.secret_key is None else Keys(self.secret_key, self.public_keys)
        return Identity(self.run, self.epoch, self.role, self.index, self.token, keys)

    def limits(self, connect_timeout_s: float) -> Limits:
        """Return the limits of the connections of the process."""
        send_s = SEND_TIMEOUT_S if self.secret_key is None else Limits.send_timeout_s
        return Limits(self.peers, self.servers, self.queued_messages, connect_timeout_s, send_s, self.lanes)

    def to_bytes(self) -> bytes:
        """Return the encoded ticket."""
        return encode_document(_TICKET.write(self, "ticket"))

    @classmethod
    def from_bytes(cls, content: memoryview, what: str) -> "Ticket":
        """Decode a ticket; raises SecurityError, which names ``what``, if it is malformed."""
        try:
            document = decode_document(content)
        except SecurityError as error:
            raise SecurityError(f"{what}: {error}") from error
        ticket: Ticket = read_untrusted(_TICKET, document, what)
        return ticket


_TICKET = Record(Ticket)


def write_ticket(path: Path, ticket: Ticket) -> None:
    """Write a ticket to a new file of mode 0600. Raises FileExistsError if ``path`` exists."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with open(descriptor, "wb") as file:
        file.write(ticket.to_bytes())


def read_ticket(path: Path) -> Ticket:
    """Return the ticket in a regular file that only this user can read; raises SecurityError for any other file."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        raise SecurityError(
            f"key file {path}: {error.strerror}; key files are removed after the processes have joined, and each start "
            "of a run writes new key files"
        ) from error
    status = os.fstat(descriptor)
    mode = stat.S_IMODE(status.st_mode)
    if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or mode & 0o077:
        os.close(descriptor)
        raise SecurityError(
            f"key file {path}: mode {mode:04o} of user {status.st_uid}, "
            f"expected a regular file with mode 0600 of user {os.geteuid()}"
        )
    with open(descriptor, "rb") as file:  # the call does not accept a folder
        content = file.read(MAX_DOCUMENT_BYTES + 1)
    return Ticket.from_bytes(memoryview(content), f"key file {path}")
