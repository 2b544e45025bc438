"""The start and the end of the worker processes of a session."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from runner.engine.cluster.assignment import peer_of
from runner.engine.cluster.launchers import Launcher
from runner.engine.cluster.supervisor import Supervisor
from runner.engine.cluster.transport import messages
from runner.engine.cluster.transport.endpoint import SEND_TIMEOUT_S, Identity, Limits
from runner.engine.cluster.transport.heartbeat import HeartbeatMonitor
from runner.engine.cluster.transport.private_directory import private_directory
from runner.engine.cluster.transport.ticket import Ticket, new_keys
from runner.engine.cluster.transport.zmq_endpoint import ZmqEndpoint
from runner.engine.cluster.transport.zmq_sockets import open_context
from runner.engine.cluster.worker_group import WorkerGroup
from runner.engine.graph.device import Cluster

OTHER_MESSAGES = 256  # number of messages without tensors that an inbox can queue from one peer


@dataclass(frozen=True)
class Recovered:
    """The replacement of lost workers.

    replaced: names of the workers with new processes. silence_s: seconds from the last heartbeat of the lost worker to
    the recovery. fenced_s: seconds until all lost processes have ended and the others have dropped interrupted steps.
    started_s: further seconds until all workers have loaded the plans that are needed to go on; None if the run
    goes on before that.
    """

    replaced: tuple[str, ...]
    silence_s: float
    fenced_s: float
    started_s: float | None


def worker_names(cluster: Cluster) -> list[str]:
    """Return the process names of a cluster; raises ValueError unless tasks 0, 1, ... of a job have one device each."""
    names = [peer_of(device.name) for device in cluster.devices]
    servers = messages.count_role(names, messages.SERVER_ROLE)
    expected = messages.process_names(len(names) - servers, servers)
    if sorted(names) != sorted(expected):
        raise ValueError(f"devices of {', '.join(names)}: expected one device for each of {', '.join(expected)}")
    return names


@contextmanager
def start_workers(
    workers: Sequence[str],
    identity: Identity,
    setup: Callable[[Mapping[str, str]], bytes],
    launcher: Launcher,
    *,
    facts: Mapping[str, str],
    logs: Path,
    threads: int,
    queued_messages: int,
    arenas: int,
    monitor: HeartbeatMonitor,
) -> Iterator[WorkerGroup]:
    """Start worker processes and set them up; on exit, end all processes and free the shared memory.

    workers: names of all processes, including parameter servers. identity: the master's identity, without keys. setup:
    returns the setup document for the given inbox addresses. facts: see :mod:`~runner.engine.cluster.joining`. logs:
    folder for the workers' logs. threads: kernel threads of each worker. queued_messages: number of messages that one
    worker may send to another before the receiver reads. arenas: number of open arenas. monitor: checks heartbeats.
    Raises ResourceError if a process cannot be started, and the errors of :meth:`WorkerGroup.gather`.
    """
    servers = messages.count_role(workers, messages.SERVER_ROLE)
    peers, lanes, spares = len(workers) - servers, launcher.lanes, launcher.spares
    keys = new_keys([messages.MASTER, *workers, *messages.spare_names(spares)]) if launcher.has_keys else {}
    identity = replace(identity, keys=keys.get(messages.MASTER))
    if launcher.has_keys:
        limits = Limits(peers, servers, queued_messages, spares=spares)
    else:
        limits = Limits(peers, servers, OTHER_MESSAGES, send_timeout_s=SEND_TIMEOUT_S, spares=spares)

    def ticket(name: str, epoch: int) -> Ticket:
        named = (identity.run, epoch, *messages.split_name(name), identity.token)
        own = keys.get(name)
        secret, public = (None, {}) if own is None else (own.secret, own.public)
        return Ticket(*named, secret, public, peers, servers, queued_messages, lanes, threads)

    with (
        private_directory() as directory,
        open_context((2 + lanes) * (len(workers) + spares) + 4, identity.keys, lanes, arenas) as context,
        ZmqEndpoint(context, identity, launcher.listen(directory), limits) as endpoint,
        closing(launcher),
        Supervisor() as supervisor,
    ):

        def start(names: Collection[str], epoch: int, hosts: Mapping[str, str]) -> None:
            if names:
                tickets = {name: ticket(name, epoch) for name in names}
                launcher.start(tickets, endpoint.address, supervisor, directory, hosts)
            endpoint.wake_on(supervisor.pidfds)

        given = (workers, directory, endpoint, supervisor, monitor, logs, launcher, facts)
        group = WorkerGroup(*given, start=start, ticket=lambda name, epoch: ticket(name, epoch).to_bytes())
        start(workers, identity.epoch, {})
        try:
            group.set_up(setup)
            group.spares.start_missing()
            yield group
        except BaseException as error:
            group.dismiss(messages.Shutdown.of(error))
            raise
        group.shut_down()
