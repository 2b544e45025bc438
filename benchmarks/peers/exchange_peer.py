"""Time collectives of another library: ``python -m benchmarks.peers.exchange_peer LIBRARY COLLECTIVE WORKERS``.

This process starts one process per rank and forwards requests over a socket, on which a rank waits without using a
core. A rank that waits inside its library would use a core during the turns of other libraries.
"""

import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TextIO

from benchmarks.exchange_protocol import Exchange, serve_exchanges

LIBRARIES = ("mpi", "gloo")

_JOIN_TIMEOUT_S = 120.0


class Ranks:
    """The processes of one library. Each process ends when its socket is closed."""

    def __init__(self, library: str, exchange: Exchange, stack: ExitStack) -> None:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="benchmark-ranks-")))
        listener = stack.enter_context(socket.socket(socket.AF_UNIX))
        listener.bind(str(folder / "driver"))
        listener.listen(exchange.processes)
        listener.settimeout(_JOIN_TIMEOUT_S)
        environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo"}
        for command in commands(library, exchange, folder):
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, env=environment)
            stack.callback(process.wait)
        self._ranks = [_joined(listener, stack) for _ in range(exchange.processes)]
        self.versions: Mapping[str, str] = json.loads(self._ranks[0].readline())
        for rank in self._ranks[1:]:
            rank.readline()

    def exchange(self, nbytes: int, times: int) -> tuple[list[float], float]:
        """See :class:`~benchmarks.exchange_protocol.ExchangeSubject`; an exchange ends when all ranks have finished."""
        for rank in self._ranks:
            print(json.dumps([nbytes, times]), file=rank, flush=True)
        answers: list[Mapping[str, Any]] = [json.loads(rank.readline()) for rank in self._ranks]
        each = zip(*(answer["seconds"] for answer in answers), strict=True)
        return [max(seconds) for seconds in each], max(answer["deviation"] for answer in answers)


def commands(library: str, exchange: Exchange, folder: Path) -> list[list[str]]:
    """Return the commands that start the ranks: one command if the library has a launcher, else one per rank."""
    rank = [sys.executable, "-m", f"benchmarks.peers.{library}_rank", *exchange.arguments, str(folder)]
    if library == "mpi":
        launcher = str(Path(sys.executable).parent / "mpiexec")
        return [[launcher, "-n", str(exchange.processes), *rank]]
    return [[*rank, str(number)] for number in range(exchange.processes)]


def _joined(listener: socket.socket, stack: ExitStack) -> TextIO:
    connection, _ = listener.accept()
    stack.enter_context(connection)
    return stack.enter_context(connection.makefile("rw", encoding="utf-8"))


def main(arguments: Sequence[str], stack: ExitStack) -> None:
    """Serve one library and exchange until the requests end."""
    library, *exchange = arguments
    if library not in LIBRARIES:
        raise ValueError(f"library {library!r}: expected one of {', '.join(LIBRARIES)}")
    serve_exchanges(Ranks(library, Exchange.of(exchange), stack))


if __name__ == "__main__":
    with ExitStack() as exit_stack:
        main(sys.argv[1:], exit_stack)
