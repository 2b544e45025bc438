"""Communicator setup: the GPUs of several processes join one communicator of a collective library."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from runner.engine.cluster.assignment import peer_of
from runner.engine.graph.device import COLLECTIVES, NO_LIBRARY, Cluster
from runner.errors import ResourceError
from runner.kernels.platform import CommunicatorLibrary
from runner.kernels.registry import Registry

_ID = re.compile(r"[0-9a-f]{256}")


@dataclass(frozen=True)
class CommunicatorSetup:
    """The data with which processes join one communicator.

    library: one of :data:`COLLECTIVES`, not "none". unique_id: 128 bytes that identify the communicator. members: names
    of the processes in the order of their ranks.
    """

    library: str
    unique_id: bytes
    members: tuple[str, ...]

    def to_document(self) -> dict[str, Any]:
        """Return the setup as plain data."""
        return {"library": self.library, "unique_id": self.unique_id.hex(), "members": list(self.members)}

    @classmethod
    def from_document(cls, document: object) -> CommunicatorSetup:
        """Read a document of :meth:`to_document`; raises ValueError if it is malformed."""
        if not isinstance(document, Mapping) or set(document) != {"library", "unique_id", "members"}:
            raise ValueError("communicator: expected a map of 'library', 'unique_id' and 'members'")
        library, unique_id, members = document["library"], document["unique_id"], document["members"]
        if library not in COLLECTIVES or library == NO_LIBRARY:
            raise ValueError(f"communicator: expected one of the libraries {', '.join(COLLECTIVES[1:])}")
        if not isinstance(unique_id, str) or not _ID.fullmatch(unique_id):
            raise ValueError("communicator: expected a unique_id of 256 hexadecimal digits")
        if not isinstance(members, list) or not all(isinstance(name, str) for name in members):
            raise ValueError("communicator: expected members as a list of worker names")
        if not 1 < len(members) == len(set(members)):
            raise ValueError(f"communicator: expected two or more different members, got {len(members)}")
        return cls(library, bytes.fromhex(unique_id), tuple(members))

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
