"""One rank of MPI: ``mpiexec -n N python -m benchmarks.peers.mpi_rank COLLECTIVE WORKERS FOLDER``."""

import sys
from collections.abc import Mapping

import mpi4py
import numpy as np
from mpi4py import MPI

from benchmarks.exchange_protocol import Exchange, Vector
from benchmarks.peers.rank import run_rank


class Mpi:
    """MPI with default settings."""

    def __init__(self) -> None:
        self._all = MPI.COMM_WORLD
        self.rank: int = self._all.Get_rank()
        name, version = MPI.get_vendor()
        self.versions: Mapping[str, str] = {"mpi4py": mpi4py.__version__, name: ".".join(map(str, version))}

    def barrier(self) -> None:
        self._all.Barrier()

    def all_reduce(self, vector: Vector) -> None:
        self._all.Allreduce(MPI.IN_PLACE, vector)

    def push_pull(self, vector: Vector) -> None:
        server = self._all.Get_size() - 1
        self._all.Send(vector, server)
        self._all.Recv(vector, server)

    def serve(self, received: list[Vector], total: Vector) -> None:
        MPI.Request.Waitall([self._all.Irecv(each, k) for k, each in enumerate(received)])
        np.add(received[0], received[1], out=total)
        for each in received[2:]:
            np.add(total, each, out=total)
        MPI.Request.Waitall([self._all.Isend(total, k) for k in range(len(received))])


if __name__ == "__main__":
    collective, workers, folder = sys.argv[1:]
    run_rank(Mpi(), Exchange.of((collective, workers)), folder)
