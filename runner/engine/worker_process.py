"""The process of a worker or of a parameter server: it joins the master with heartbeats and serves until it is told."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

from runner.engine.kernel_table import load_kernels
from runner.engine.mailbox import Mailbox
from runner.engine.processes import die_with_parent, dump_stacks_when_asked
from runner.engine.transport.address import sibling_address
from runner.engine.transport.endpoint import Identity, Limits
from runner.engine.transport.heartbeat import HeartbeatThread, Progress
from runner.engine.transport.names import DEVICE_ROLES, MASTER, heartbeat_role, process_names
from runner.engine.transport.tokens import read_token
from runner.engine.transport.zmq_context import open_context
from runner.engine.transport.zmq_endpoint import ZmqEndpoint
from runner.engine.transport.zmq_outbox import Outbox
from runner.engine.worker import SourceMaker, Worker
from runner.errors import ConfigError


@dataclass(frozen=True)
class Joining:
    """What a worker is told on its command line; the token comes in a file of mode 0600.

    peers, servers: workers and parameter servers in the run. queued_messages: most messages one peer may send it
    before it reads again. Raises ConfigError for a role that runs no device.
    """

    address: str
    role: str
    index: int
    token_file: Path
    run: str
    epoch: int
    parent: int
    peers: int
    servers: int
    queued_messages: int

    def __post_init__(self) -> None:
        if self.role not in DEVICE_ROLES:
            raise ConfigError(f"--role {self.role!r}: expected one of {', '.join(DEVICE_ROLES)}")


def main(joining: Joining, make_source: SourceMaker) -> int:
    """Run a worker until the master says shutdown; return the exit code.

    make_source: builds the input source from the plain description that the master sends.
    """
    die_with_parent(joining.parent)
    dump_stacks_when_asked()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    identity = Identity(joining.run, joining.epoch, joining.role, joining.index, read_token(joining.token_file))
    limits = Limits(joining.peers, joining.servers, queued_messages=joining.queued_messages)
    own_address = sibling_address(joining.address, identity.name)
    progress = Progress()
    processes = process_names(joining.peers, joining.servers)
    with open_context(3 * len(processes) + 6) as context:

        def open_heartbeat() -> Outbox:
            beat = Identity(identity.run, identity.epoch, heartbeat_role(identity.role), identity.index, identity.token)
            outbox = Outbox(context, beat, limits)
            outbox.connect(MASTER, joining.address)
            return outbox

        with ZmqEndpoint(context, identity, own_address, limits) as endpoint:
            endpoint.connect(MASTER, joining.address)
            with HeartbeatThread(open_heartbeat, progress) as heartbeat:
                mailbox = Mailbox(endpoint)
                worker = Worker(endpoint, mailbox, joining.address, processes, make_source, load_kernels(), progress)
                return worker.serve(heartbeat.check)
