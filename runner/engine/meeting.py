"""How the cards of several processes find each other, for what a library computes on all of them together."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from runner.engine.assignment import peer_of
from runner.engine.device import COLLECTIVES, NO_LIBRARY, Cluster
from runner.errors import ResourceError
from runner.kernels.contract import MeetingLibrary
from runner.kernels.registry import Registry

_ID = re.compile(r"[0-9a-f]{256}")


@dataclass(frozen=True)
class Meeting:
    """library: one of :data:`COLLECTIVES` but "none". unique_id: 128 bytes, by which its processes find each other.
    members: names of the processes, in the order of their ranks."""

    library: str
    unique_id: bytes
    members: tuple[str, ...]

    def to_document(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {"library": self.library, "unique_id": self.unique_id.hex(), "members": list(self.members)}

    @classmethod
    def from_document(cls, document: object) -> Meeting:
        """Read what :meth:`to_document` made; raises ValueError for anything else."""
        if not isinstance(document, Mapping) or set(document) != {"library", "unique_id", "members"}:
            raise ValueError("meeting: expected a map of 'library', 'unique_id' and 'members'")
        library, unique_id, members = document["library"], document["unique_id"], document["members"]
        if library not in COLLECTIVES or library == NO_LIBRARY:
            raise ValueError(f"meeting: expected a library of {', '.join(COLLECTIVES[1:])}")
        if not isinstance(unique_id, str) or not _ID.fullmatch(unique_id):
            raise ValueError("meeting: expected a unique_id of 256 digits from 0 to f")
        if not isinstance(members, list) or not all(isinstance(name, str) for name in members):
            raise ValueError("meeting: expected members, names of workers")
        if not 1 < len(members) == len(set(members)):
            raise ValueError(f"meeting: expected two members or more, none twice; came {len(members)}")
        return cls(library, bytes.fromhex(unique_id), tuple(members))

    def join(self, registry: Registry, name: str) -> bool:
        """Let the device that the thread uses join as process ``name``; whether that is one of the members.

        Returns when all have joined. Raises ResourceError where the library is not there, or cannot.
        """
        if name not in self.members:
            return False
        if self.library not in registry.meetings:
            raise ResourceError(
                f"{self.library} is not here, and the master has it; expected the same libraries in all processes"
            )
        try:
            registry.meetings[self.library].join(self.unique_id, self.members.index(name), len(self.members))
        except RuntimeError as error:
            raise ResourceError(f"{error}; cluster.collectives=none does without {self.library}") from error
        return True


def require_library(cluster: Cluster, registry: Registry) -> MeetingLibrary | None:
    """The library that computes on all members of a cluster, None where there are none.

    Raises ResourceError where it is not there.
    """
    if not cluster.members:
        return None
    library = registry.meetings.get(cluster.collectives)
    if library is None:
        raise ResourceError(
            f"cluster.collectives={cluster.collectives}: expected it beside CuPy, and it is not there; `runner doctor` "
            "says what is, cluster.collectives=none does without"
        )
    return library


def meeting_of(cluster: Cluster, registry: Registry) -> Meeting | None:
    """The meeting of a cluster's members, which this process waits for from now on; None where they need none.

    Raises ResourceError where the library is not there, or cannot.
    """
    library = require_library(cluster, registry)
    if library is None:
        return None
    try:
        unique_id = library.unique_id()
    except RuntimeError as error:
        raise ResourceError(f"{error}; cluster.collectives=none does without {cluster.collectives}") from error
    return Meeting(cluster.collectives, unique_id, tuple(map(peer_of, cluster.members)))
