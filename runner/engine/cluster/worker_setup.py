"""The setup of all workers, which the master sends once before any plan."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from runner.engine.cluster.communicator_setup import ID_BYTES, CommunicatorSetup
from runner.engine.cluster.emulation import Link
from runner.engine.graph.device import COLLECTIVES, DEFAULT_GPU_OPTIONS, NO_LIBRARY, GpuOptions
from runner.system.schema import (
    AnyMap,
    Bytes,
    Flag,
    Integer,
    ListOf,
    MapOf,
    Maybe,
    Number,
    OneOf,
    Record,
    Text,
    read_untrusted,
)

_MAX_GPU = 2**31 - 1
"""CUDA counts devices in a C int."""

_MAX_WORKERS = 2**20
_PEER = Text(32)


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
        return _SETUP.write(self, "setup")

    @classmethod
    def from_document(cls, document: object) -> "WorkerSetup":
        """Read a document of :meth:`to_document`; raises SecurityError if it is malformed."""
        setup: WorkerSetup = read_untrusted(_SETUP, document, "setup")
        return setup


_SETUP = Record(
    WorkerSetup,
    source=Maybe(AnyMap()),
    check_finite=Flag(),
    link=Maybe(Record(Link, latency_s=Number(), bytes_per_s=Maybe(Number()))),
    gpus=MapOf(_PEER, Integer(high=_MAX_GPU), _MAX_WORKERS),
    use=Record(GpuOptions, tf32=Flag(), compare_plans=Flag(), code_folder=Text(4096)),
    communicator=Maybe(
        Record(
            CommunicatorSetup,
            library=OneOf(tuple(library for library in COLLECTIVES if library != NO_LIBRARY)),
            unique_id=Bytes(ID_BYTES),
            members=ListOf(_PEER, _MAX_WORKERS),
        )
    ),
)
