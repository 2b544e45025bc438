"""The process of a worker or parameter server: it connects to the master, sends heartbeats and runs the main loop."""

import logging
from dataclasses import dataclass
from pathlib import Path

from runner.engine.cluster.mailbox import RECEIVE_LIMIT_S, Mailbox
from runner.engine.cluster.processes import dump_stacks_on_signal
from runner.engine.cluster.transport.endpoint import Identity, Limits
from runner.engine.cluster.transport.heartbeat import HeartbeatThread, Progress
from runner.engine.cluster.transport.messages import DEVICE_ROLES, MASTER, heartbeat_role, process_names
from runner.engine.cluster.transport.private_directory import read_token, sibling_address
from runner.engine.cluster.transport.zmq_endpoint import Outbox, ZmqEndpoint
from runner.engine.cluster.transport.zmq_sockets import open_context
from runner.engine.cluster.worker import SourceMaker, Worker
from runner.engine.run.kernel_table import load_kernels
from runner.errors import ConfigError


@dataclass(frozen=True)
class WorkerOptions:
    """The command-line options of a worker; the token is in a file of mode 0600.

    peers, servers: numbers of workers and parameter servers. queued_messages: how many messages one peer may send
    before this worker reads. Raises ConfigError for a role that runs no device.
    """

    address: str
    role: str
    index: int
    token_file: Path
    run: str
    epoch: int
    peers: int
    servers: int
    queued_messages: int

    def __post_init__(self) -> None:
        if self.role not in DEVICE_ROLES:
            raise ConfigError(f"--role {self.role!r}: expected one of {', '.join(DEVICE_ROLES)}")

    @property
    def limits(self) -> Limits:
        """The limits of the worker's connections.

        A stopped master accepts no connection until it continues, so the time limit for connections is long.
        """
        return Limits(self.peers, self.servers, queued_messages=self.queued_messages, connect_timeout_s=RECEIVE_LIMIT_S)


def main(options: WorkerOptions, make_source: SourceMaker) -> int:
    """Run a worker until the master sends shutdown; return the exit code.

    make_source: builds the input source from its description, which the master sends as plain data.
    """
    dump_stacks_on_signal()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    identity = Identity(options.run, options.epoch, options.role, options.index, read_token(options.token_file))
    limits = options.limits
    own_address = sibling_address(options.address, identity.name)
    progress = Progress()
    processes = process_names(options.peers, options.servers)
    with open_context(3 * len(processes) + 6) as context:

        def open_heartbeat() -> Outbox:
            beat = Identity(identity.run, identity.epoch, heartbeat_role(identity.role), identity.index, identity.token)
            outbox = Outbox(context, beat, limits)
            outbox.connect(MASTER, options.address)
            return outbox

        with ZmqEndpoint(context, identity, own_address, limits) as endpoint:
            endpoint.connect(MASTER, options.address)
            with HeartbeatThread(open_heartbeat, progress) as heartbeat:
                mailbox = Mailbox(endpoint)
                worker = Worker(endpoint, mailbox, options.address, processes, make_source, load_kernels(), progress)
                return worker.serve(heartbeat.check)
