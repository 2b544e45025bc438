"""Where our side runs: on a card or, to try all of this without one, on processors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from benchmarks.protocol import peak_memory_mib
from runner.engine.device import Cluster, local_cluster, worker_device
from runner.engine.kernel_table import load_kernels
from runner.engine.local_session import LocalSession
from runner.engine.program import Program
from runner.engine.session import Session
from runner.kernels.registry import Registry


@dataclass(frozen=True)
class Engine:
    """What a session is opened with. device: full name of the one device. memory_mib: the most that was taken."""

    device: str
    cluster: Cluster
    registry: Registry
    versions: Mapping[str, str] = field(default_factory=dict)
    memory_mib: Callable[[], float] = peak_memory_mib

    @contextmanager
    def opened(self, program: Program) -> Iterator[Session]:
        """A session of this process."""
        session = LocalSession(program, self.cluster, self.registry)
        try:
            yield session
        finally:
            session.close()


def engine_on(device: str, precision: str) -> Engine:
    """The engine on "cuda" or on "cpu", for a precision of :data:`~benchmarks.gpu.networks.PRECISIONS`."""
    if device == "cpu":
        return Engine(worker_device(0), local_cluster(1), load_kernels())
    raise ValueError(f"device {device!r}: expected cuda or cpu")
