"""Communicator setup: the GPUs of several processes join one communicator of a collective library."""

from dataclasses import dataclass

from runner.engine.cluster.assignment import peer_of
from runner.engine.graph.device import Cluster
from runner.errors import ResourceError
from runner.kernels.platform import CommunicatorLibrary
from runner.kernels.registry import Registry

ID_BYTES = 128


@dataclass(frozen=True)
class CommunicatorSetup:
    """The data with which processes join one communicator.

    library: one of :data:`~runner.engine.graph.device.COLLECTIVES`, not "none". unique_id: ``ID_BYTES`` bytes that
    identify the communicator. members: names of the processes in the order of their ranks. Raises ValueError unless
    there are at least two members and no member twice.
    """

    library: str
    unique_id: bytes
    members: tuple[str, ...]

    def __post_init__(self) -> None:
        if not 1 < len(self.members) == len(set(self.members)):
            raise ValueError(f"communicator of {list(self.members)}: expected two or more different members")

    def join(self, registry: Registry, name: str) -> bool:
        """Join the communicator with the thread's device if ``name`` is a member; return whether it is.

        Returns after all members have joined. Raises ResourceError if the library is missing or fails.
        """
        if name not in self.members:
            return False
        if self.library not in registry.communicators:
            raise ResourceError(
                f"{self.library} is not available here, but at the master; install the same libraries for all processes"
            )
        try:
            registry.communicators[self.library].join(self.unique_id, self.members.index(name), len(self.members))
        except RuntimeError as error:
            raise ResourceError(f"{error}; set cluster.collectives=none to run without {self.library}") from error
        return True


def require_library(cluster: Cluster, registry: Registry) -> CommunicatorLibrary | None:
    """Return the collective library of a cluster, or None if the cluster has no members of a communicator.

    Raises ResourceError if the library is not available.
    """
    if not cluster.members:
        return None
    library = registry.communicators.get(cluster.collectives)
    if library is None:
        raise ResourceError(
            f"cluster.collectives={cluster.collectives}: the library is not available, expected with CuPy; see "
            "`runner doctor`, or set cluster.collectives=none"
        )
    return library


def new_communicator_setup(cluster: Cluster, registry: Registry) -> CommunicatorSetup | None:
    """Open a communicator for a cluster's members in this process; None if the cluster needs none.

    Raises ResourceError if the library is missing or fails.
    """
    library = require_library(cluster, registry)
    if library is None:
        return None
    try:
        unique_id = library.unique_id()
    except RuntimeError as error:
        raise ResourceError(f"{error}; set cluster.collectives=none to run without {cluster.collectives}") from error
    return CommunicatorSetup(cluster.collectives, unique_id, tuple(map(peer_of, cluster.members)))
