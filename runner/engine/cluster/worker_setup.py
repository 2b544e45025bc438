"""The setup of all workers, which the master sends once before any plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from runner.engine.cluster.communicator_setup import CommunicatorSetup
from runner.engine.cluster.links import Link
from runner.engine.graph.device import DEFAULT_GPU_OPTIONS, GpuOptions
from runner.errors import SecurityError

_MAX_GPU = 2**31 - 1
"""CUDA counts devices in a C int."""


@dataclass(frozen=True)
class WorkerSetup:
    """The setup document.

    source: plain description of an input source, or None. check_finite: refuse values that are not finite. link:
    emulated link to every other process, or None. gpus: GPU number by worker name. use: options of the GPUs.
    communicator: of the GPUs, None if no collective library is used.
    """

    source: Mapping[str, Any] | None
    check_finite: bool
    link: Link | None
    gpus: Mapping[str, int] = field(default_factory=dict)
    use: GpuOptions = DEFAULT_GPU_OPTIONS
    communicator: CommunicatorSetup | None = None

    def to_document(self) -> dict[str, Any]:
        """Return the setup as plain data."""
        link = None if self.link is None else self.link.to_document()
        return {
            "source": self.source,
            "check_finite": self.check_finite,
            "link": link,
            "gpus": dict(self.gpus),
            "use": self.use.to_document(),
            "communicator": None if self.communicator is None else self.communicator.to_document(),
        }

    @classmethod
    def from_document(cls, document: object) -> WorkerSetup:
        """Read a document of :meth:`to_document`; raises SecurityError if it is malformed."""
        if (
            not isinstance(document, Mapping)
            or set(document) != {"source", "check_finite", "link", "gpus", "use", "communicator"}
            or not isinstance(document["check_finite"], bool)
            or not isinstance(document["source"], Mapping | None)
            or not _are_gpus(document["gpus"])
        ):
            raise SecurityError(
                "setup refused: expected a map of 'source' (a map or None), 'check_finite' (a boolean), 'gpus' (a map "
                f"of workers to numbers from 0 to {_MAX_GPU}), 'use', 'link' and 'communicator'"
            )
        try:
            link = None if document["link"] is None else Link.from_document(document["link"])
            use = GpuOptions.from_document(document["use"])
            communicator = (
                None if document["communicator"] is None else CommunicatorSetup.from_document(document["communicator"])
            )
        except ValueError as error:
            raise SecurityError(f"setup refused: {error}") from error
        return cls(document["source"], document["check_finite"], link, document["gpus"], use, communicator)


def _are_gpus(value: object) -> bool:
    return isinstance(value, Mapping) and all(
        isinstance(name, str) and type(gpu) is int and 0 <= gpu <= _MAX_GPU for name, gpu in value.items()
    )
