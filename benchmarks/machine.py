"""Time kernels at the peak rates of the CPU cores: ``python -m benchmarks.machine THREADS PRECISION``.

The phases are "gemm", a large float32 matrix product by NumPy; "conv", a convolution by runner in PRECISION; and
"add", a += b over arrays far larger than the caches.
"""

import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks.protocol import Run, serve
from runner.engine.compile.program import Client, Program
from runner.engine.graph import Graph, local_cluster, ops, worker_task
from runner.engine.run.kernel_table import load_kernels
from runner.engine.run.local_session import LocalSession

GEMM_SIDE = 3072
GEMM_MULTIPLY_ADDS = GEMM_SIDE**3

IMAGES = (12, 256, 28, 28)
FILTERS = (256, 256, 5, 5)
"""Filters of 5x5, because a convolution with 3x3 filters takes fewer multiply-adds than its direct sum."""

CONV_MULTIPLY_ADDS = 12 * 256 * 28 * 28 * 256 * 5 * 5

ADDED = 48 << 20
ADD_BYTES = 3 * 4 * ADDED
"""Bytes that one addition moves: it reads two arrays and overwrites one of them."""


class Machine:
    """Kernels that run close to the peak rates of the machine."""

    versions: Mapping[str, str] = {"numpy": np.__version__}

    def __init__(self, threads: int, precision: str, stack: ExitStack) -> None:
        self._threads = threads
        self._precision = precision
        self._stack = stack

    def load(self) -> None:
        """Load the libraries and set their thread budget. The operands are created by :meth:`phase`."""
        self._registry = load_kernels()
        self._stack.enter_context(threadpool_limits(self._threads))

    def phase(self, name: str) -> Run:
        """Return a function that runs a phase once and returns 0 as its loss."""
        phases = {"gemm": self._gemm, "conv": self._conv, "add": self._add}
        return phases[name]()

    def _gemm(self) -> Run:
        a = np.ones((GEMM_SIDE, GEMM_SIDE), np.float32)
        b, c = np.ones_like(a), np.empty_like(a)
        return partial(_without_loss, partial(np.matmul, a, b, out=c))

    def _conv(self) -> Run:
        program = convolution(self._precision)
        session = LocalSession(program, local_cluster(program.workers), self._registry)
        self._stack.callback(session.close)
        session.run("init")
        return partial(_without_loss, partial(session.run, "train"))

    def _add(self) -> Run:
        a, b = np.ones(ADDED, np.float32), np.ones(ADDED, np.float32)
        pairs = list(zip(np.array_split(a, self._threads), np.array_split(b, self._threads), strict=True))
        pool = self._stack.enter_context(ThreadPoolExecutor(self._threads))

        def add() -> None:
            for done in [pool.submit(np.add, x, y, out=x) for x, y in pairs]:
                done.result()

        return partial(_without_loss, add)


def convolution(precision: str) -> Program:
    """Return a program with one convolution of two variables, so that runner can choose the layout of each operand."""
    graph = Graph()
    with graph.device(worker_task(0)):
        operands = [
            ops.variable(graph, shape, precision, name=name)
            for name, shape in (("images", IMAGES), ("filters", FILTERS))
        ]
        initial = [
            ops.assign(graph, operand, ops.fill(graph, 1.0, graph.spec(operand).shape, precision)).node
            for operand in operands
        ]
        y = ops.conv2d(graph, *operands, padding=(2, 2, 2, 2))
    clients = (Client("init", targets=tuple(initial)), Client("train", targets=(y.node,)))
    return Program(graph, {client.name: client for client in clients}, {}, workers=1)


def _without_loss(act: Callable[[], object]) -> float:
    act()
    return 0.0


if __name__ == "__main__":
    with ExitStack() as exit_stack:
        serve(Machine(int(sys.argv[1]), sys.argv[2], exit_stack))
