"""Functions shared by the ranks of other libraries: waiting for requests, timing exchanges, checking sums."""

import json
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from benchmarks.exchange_protocol import PUSH_PULL, Exchange, Vector, deviation, given


class Library(Protocol):
    """One rank of a library. The server of a push-pull is the last rank."""

    @property
    def versions(self) -> Mapping[str, str]:
        """Return the versions of the library and its dependencies."""

    @property
    def rank(self) -> int:
        """Return the rank of this process."""

    def barrier(self) -> None:
        """Wait until every rank has called this method."""

    def all_reduce(self, vector: Vector) -> None:
        """Sum the vectors of all ranks, in place."""

    def push_pull(self, vector: Vector) -> None:
        """As a worker: send the vector to the last rank and receive the sum in the same memory."""

    def serve(self, received: list[Vector], total: Vector) -> None:
        """As the last rank: receive every worker's vector, add them in worker order and send the sum to all workers."""


def run_rank(library: Library, exchange: Exchange, folder: str) -> None:
    """Answer requests that arrive over the socket in ``folder`` until the connection is closed."""
    with socket.socket(socket.AF_UNIX) as driver:
        driver.connect(str(Path(folder) / "driver"))
        with driver.makefile("rw", encoding="utf-8") as requests:
            print(json.dumps(dict(library.versions)), file=requests, flush=True)
            for line in requests:
                nbytes, times = json.loads(line)
                seconds, off = _exchange(library, exchange, nbytes, times)
                print(json.dumps({"seconds": seconds, "deviation": off}), file=requests, flush=True)


def _exchange(library: Library, exchange: Exchange, nbytes: int, times: int) -> tuple[list[float], float]:
    """Time some exchanges, each of which sums the results of the previous one; then check one more exchange."""
    vector = given(library.rank, nbytes)
    received = [given(k, nbytes) for k in range(exchange.workers)] if _serves(library, exchange) else []
    seconds = []
    for _ in range(times):
        library.barrier()
        begin = time.perf_counter()
        _once(library, exchange, vector, received)
        seconds.append(time.perf_counter() - begin)
    vector[:] = given(library.rank, nbytes)
    _once(library, exchange, vector, received)
    return seconds, deviation(vector, exchange.workers)


def _once(library: Library, exchange: Exchange, vector: Vector, received: list[Vector]) -> None:
    if exchange.collective != PUSH_PULL:
        library.all_reduce(vector)
    elif _serves(library, exchange):
        library.serve(received, vector)
    else:
        library.push_pull(vector)


def _serves(library: Library, exchange: Exchange) -> bool:
    return exchange.collective == PUSH_PULL and library.rank == exchange.workers
