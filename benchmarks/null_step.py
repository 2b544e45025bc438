"""``python -m benchmarks null_step``: steps that read and update a few random rows of tables of several sizes.

The sparse curve of the null step in TensorFlow (OSDI 2016, section 6.1): a worker looks up 32 random rows of 4 KB,
computes nearly nothing, and updates these rows. Each parameter server holds some columns of the table. The tables take
turns. All devices are in one process, so the times are those of the engine, without a network.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runner import nn
from runner.engine.graph import Constant, NetworkBuilder, NetworkFunction, Outputs, Tensor, local_cluster, ops
from runner.engine.run.kernel_table import load_kernels
from runner.engine.run.local_session import LocalSession
from runner.engine.run.session import scalar
from runner.engine.run.step_driver import bind
from runner.fields import Field
from runner.optimizers import Sgd
from runner.strategies import Workload
from runner.strategies.sync_data import SyncData
from runner.tasks.regression import Regression

FEATURES, IDS, WARM_UP = 1024, 32, 20
ROW_BYTES = 4 * FEATURES


@dataclass(frozen=True)
class RandomIds:
    """An endless source of random rows of a table with ``entries`` rows."""

    entries: int

    def read(self, split: str, step: int, lo: int, hi: int) -> dict[str, NDArray[Any]]:
        """Return examples lo..hi-1, with a random row each."""
        count = hi - lo
        ids = np.random.default_rng(step).integers(0, self.entries, (count, 1))
        whole = np.ones(count, np.float32)
        return {"x": ids, "y": whole[:, None], "index": np.arange(lo, hi), "mask": whole}


def network_of(entries: int) -> NetworkFunction:
    """Return a network that adds the numbers of a row of a table."""

    def network(net: NetworkBuilder, batch: Mapping[str, Tensor]) -> Outputs:
        rows = nn.embedding(net, batch["x"], entries, FEATURES, name="table", initializer=Constant(0.0))
        return Regression().score(net, ops.reduce_sum(net.graph, rows, axes=(2,)), batch)

    return network


def updates_of(gib: float, servers: int, stack: ExitStack) -> Callable[[int], object]:
    """Return a function that runs a step on a table of a size on a number of servers; ``stack`` closes the session."""
    entries = int(gib * (1 << 30)) // ROW_BYTES
    fields = {"x": Field((1,), "int64"), "y": Field((1,))}
    workload = Workload(network_of(entries), Sgd(), fields, "float32", 0, IDS, IDS)
    program = SyncData(workers=1, combine="parameter_server", servers=servers).build(workload)
    session = LocalSession(program, local_cluster(1, servers), load_kernels(), RandomIds(entries))
    stack.enter_context(closing(session))
    session.run("init")
    driver, rate = bind(program.step_driver, session), scalar(1e-6, "float32")
    return lambda step: driver.update(step, rate)


def measure(sizes: Sequence[float], servers: int, steps: int) -> list[list[float]]:
    """Return the seconds of each step for tables of these sizes in GiB; the tables take turns, step by step."""
    with ExitStack() as stack:
        tables = [updates_of(gib, servers, stack) for gib in sizes]
        seconds: list[list[float]] = [[] for _ in tables]
        for step in range(WARM_UP + steps):
            for update, times in zip(tables, seconds, strict=True):
                begin = time.perf_counter()
                update(step)
                times.append(time.perf_counter() - begin)
    return [times[WARM_UP:] for times in seconds]


def main(arguments: Sequence[str]) -> int:
    """Print the median, the first and the last decile of the steps for each size."""
    parser = argparse.ArgumentParser("python -m benchmarks null_step", description=__doc__)
    parser.add_argument("--gib", type=float, nargs="+", default=[1.0, 4.0], help="sizes of the table")
    parser.add_argument("--servers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=200)
    options = parser.parse_args(arguments)
    print("table, GiB  servers  median, ms  10%, ms  90%, ms")
    for gib, seconds in zip(options.gib, measure(options.gib, options.servers, options.steps), strict=True):
        found = [1e3 * each for each in seconds]
        low, *_, high = statistics.quantiles(found, n=10)
        print(f"{gib:10g}  {options.servers:7}  {statistics.median(found):10.2f}  {low:7.2f}  {high:7.2f}")
    return 0
