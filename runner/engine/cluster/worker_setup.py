"""The setup of all workers, which the master sends once before any plan, with the data of their communicator."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from runner.engine.cluster.assignment import peer_of
from runner.engine.cluster.emulation import EmulatedLink
from runner.engine.graph.device import COLLECTIVES, DEFAULT_GPU_OPTIONS, NO_LIBRARY, Cluster, GpuOptions
from runner.errors import ResourceError
from runner.kernels.platform import CommunicatorLibrary
from runner.kernels.registry import Registry
from runner.system import schema
from runner.system.schema import FLAG, AnyMap, Bytes, Integer, ListOf, MapOf, Maybe, Number, OneOf, Record, Text

ID_BYTES = 128

_MAX_WORKERS = 2**20
_PEER = Text(32)
_GPU = Integer(high=2**31 - 1)  # CUDA numbers devices with a C int
_GPU_OPTIONS = Record(GpuOptions, tf32=FLAG, compare_plans=FLAG, code_folder=Text(4096))


@dataclass(frozen=True)
class CommunicatorSetup:
    """The data with which processes join one communicator.

    library: one of :data:`~runner.engine.graph.device.COLLECTIVES`, not "none". unique_id: ``ID_BYTES`` bytes that
    identify the communicator. members: process names by rank. Raises ValueError for fewer than two or equal members.
    """

    library: Annotated[str, OneOf(tuple(library for library in COLLECTIVES if library != NO_LIBRARY))]
    unique_id: Annotated[bytes, Bytes(ID_BYTES)]
    members: Annotated[tuple[str, ...], ListOf(_PEER, _MAX_WORKERS)]

    def __post_init__(self) -> None:
        if not 1 < len(self.members) == len(set(self.members)):
            raise ValueError(f"communicator of {list(self.members)}: expected two or more different members")

    def join(self, registry: Registry, name: str) -> bool:
        """If ``name`` is a member, join the communicator with this thread's GPU and return True; else return False.

        Returns after all members have joined. Raises ResourceError if the library is missing or fails.
        """
        if name not in self.members:
            return False
        if self.library not in registry.communicators:
            raise ResourceError(
                f"{self.library} is available to the master but not to {name}; install it on the host of {name}"
            )
        try:
            registry.communicators[self.library].join(self.unique_id, self.members.index(name), len(self.members))
        except RuntimeError as error:
            raise ResourceError(f"{error}; set cluster.collectives=none to run without {self.library}") from error
        return True


def require_library(cluster: Cluster, registry: Registry) -> CommunicatorLibrary | None:
    """Return a cluster's collective library; None if no device needs one. Raises ResourceError if it is missing."""
    if not cluster.members:
        return None
    library = registry.communicators.get(cluster.collectives)
    if library is None:
        raise ResourceError(
            f"cluster.collectives={cluster.collectives}: the library is not available through CuPy; see "
            "`runner doctor`, or set cluster.collectives=none"
        )
    return library


def new_communicator_setup(cluster: Cluster, registry: Registry) -> CommunicatorSetup | None:
    """Return a new communicator's setup; None if none is needed. Raises ResourceError without a working library."""
    library = require_library(cluster, registry)
    if library is None:
        return None
    try:
        unique_id = library.unique_id()
    except RuntimeError as error:
        raise ResourceError(f"{error}; set cluster.collectives=none to run without {cluster.collectives}") from error
    return CommunicatorSetup(cluster.collectives, unique_id, tuple(map(peer_of, cluster.members)))


@dataclass(frozen=True)
class WorkerSetup:
    """The content of the setup document.

    source: plain data that describes an input source, or None. check_finite: reject values that are not finite. link:
    emulated link to every other process, or None. gpus: worker name -> GPU number. use: options of the GPUs.
    communicator: setup of the GPUs' communicator, or None if no collective library is used. addresses: process name ->
    inbox address; a process without an entry has its inbox in the directory of the master's inbox.
    """

    source: Annotated[Mapping[str, Any] | None, Maybe(AnyMap())]
    check_finite: bool
    link: Annotated[EmulatedLink | None, Maybe(Record(EmulatedLink, latency_s=Number(), bytes_per_s=Maybe(Number())))]
    gpus: Annotated[Mapping[str, int], MapOf(_PEER, _GPU, _MAX_WORKERS)] = field(default_factory=dict)
    use: Annotated[GpuOptions, _GPU_OPTIONS] = DEFAULT_GPU_OPTIONS
    communicator: CommunicatorSetup | None = None
    addresses: Annotated[Mapping[str, str], MapOf(_PEER, Text(256), _MAX_WORKERS)] = field(default_factory=dict)

    def to_document(self) -> dict[str, Any]:
        """Return the setup as plain data."""
        return _SETUP.write(self, "setup")

    @classmethod
    def from_document(cls, document: object) -> "WorkerSetup":
        """Read a document of :meth:`to_document`; raises SecurityError if it is malformed."""
        setup: WorkerSetup = schema.read_untrusted(_SETUP, document, "setup")
        return setup


_SETUP = Record(WorkerSetup)
