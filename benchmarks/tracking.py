"""The cost of a locked or unavailable tracking store for training: step times with and without the store.

``python -m benchmarks tracking``: see its ``--help``. The command ``runner`` trains in a separate process and logs
every step; windows with an available store alternate with windows without one. The time of a step is the
time between two lines of metrics.jsonl, so that all costs of recording are included.
"""

import argparse
import itertools
import os
import signal
import socket
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.cells import command_line, document, listed, markdown, origin, publish
from benchmarks.process import SubjectError
from benchmarks.results import quartiles
from runner.commands.ui import HOST, SERVER_ENVIRONMENT
from runner.system.machine import usable_cores
from runner.tracking import read_metrics
from runner.tracking.spool import SPOOL_FILE

TRAINING = (
    *("model=cifar_convnet", "data=synthetic", "data.shape=[3,32,32]", "data.examples=640", "parallelism=single"),
    *("cluster.threads_per_worker=1", "train.epochs=1000000", "train.log_every=1", "train.eval_every=1000000000"),
)
"""Training uses one kernel thread, so that one of two cores is free for other processes."""

_METHOD = """`runner {training}`

Within one run, undisturbed and disturbed windows alternate. The store is available for all {seconds:g} s of an
undisturbed window. It is unavailable for the first {seconds:g} s of a disturbed window, which lasts until the spooled
records are replayed. A step is the time from one line of metrics.jsonl to the next. Ratio: median step of a disturbed
window divided by the median step of the undisturbed window before it; the table shows the median and quartiles of the
ratio over the pairs. Points: (metric, step) pairs in metrics.jsonl. Missing and repeated: points that the store lacks
after the run, and points that it has more than once."""

STARTING_S = 240.0
POLL_S = 0.05

Disturbance = Callable[[], AbstractContextManager[None]]


@dataclass(frozen=True)
class Window:
    """A part of a run, in seconds since 1970."""

    begin: float
    end: float


@dataclass
class Result:
    """The effect of one kind of failure.

    windows: alternately undisturbed and disturbed. medians, counts: median seconds of a step and number of steps per
    window. points: number of logged points. missing, repeated: numbers of points that the store lacks or repeats.
    """

    name: str
    windows: list[Window] = field(default_factory=list)
    medians: list[float] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    status: str = ""
    points: int = 0
    missing: int = 0
    repeated: int = 0

    def ratios(self) -> list[float]:
        """Return the median step of every disturbed window over the median of the undisturbed window before it."""
        pairs = zip(self.medians[0::2], self.medians[1::2], strict=True)
        return [disturbed / undisturbed for undisturbed, disturbed in pairs]


def measure(name: str, seconds: float, pairs: int) -> Result:
    """Train while the store is alternately available and unavailable. Raises SubjectError if the run ends too early."""
    result = Result(name)
    with tempfile.TemporaryDirectory(prefix="benchmark-tracking-") as place, ExitStack() as stack:
        folder = Path(place)
        uri, disturbance = _STORES[name](folder, stack)
        command = [sys.executable, "-m", "runner", *TRAINING, f"tracking.uri={uri}", "hydra.run.dir=run"]
        with (folder / "runner.log").open("w") as log:
            run = subprocess.Popen(command, cwd=folder, stdout=log, stderr=subprocess.STDOUT)
            try:
                _wait(lambda: _points(folder / "mlflow.db") > 0, run, "the first point in the store")
                for _ in range(pairs):
                    result.windows += [_undisturbed(seconds), _disturbed(seconds, disturbance, run, folder / "run")]
            finally:
                run.send_signal(signal.SIGINT)
                code = run.wait()
        # 130: the run was stopped by the signal.
        result.status = "stopped as requested" if code == 130 else f"failed with {code}"
        _read(result, folder)
    return result


def page(results: Sequence[Result], seconds: float, command: str) -> str:
    """Return the table and a description of the measurement."""
    header = ("store", "pairs", "steps", "undisturbed, ms", "disturbed, ms", "ratio", "quartiles")
    return document(
        "# A tracking store that is locked or unavailable",
        listed(origin(f"{usable_cores()} cores, one of them training", command=command)),
        _METHOD.format(training=" ".join(TRAINING), seconds=seconds),
        markdown((*header, "run", "points", "missing", "repeated"), [_row(result) for result in results]),
    )


def main(arguments: Sequence[str]) -> int:
    """Measure, then print and write the document; return 1 if a run failed or the store lacks or repeats points."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks tracking", description="Measure the cost of a failing tracking store."
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="seconds with, and then without, the store")
    parser.add_argument("--pairs", type=int, default=4, help="pairs of windows for each kind of failure")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write the table to this file")
    given = parser.parse_args(arguments)
    results = []
    for name in _STORES:
        print(f"measuring {name}", file=sys.stderr, flush=True)
        results.append(measure(name, given.seconds, given.pairs))
    publish(page(results, given.seconds, command_line(parser, given)), given.output)
    return int(any(each.missing or each.repeated or each.status != "stopped as requested" for each in results))


def _undisturbed(seconds: float) -> Window:
    begin = time.time()
    time.sleep(seconds)
    return Window(begin, time.time())


def _disturbed(seconds: float, disturbance: Disturbance, run: subprocess.Popen[bytes], run_dir: Path) -> Window:
    begin = time.time()
    with disturbance():
        time.sleep(seconds)
    _wait(lambda: not (run_dir / SPOOL_FILE).exists(), run, "the end of the replay")
    return Window(begin, time.time())


def _database(folder: Path, stack: ExitStack) -> tuple[str, Disturbance]:
    """Return the URI of a SQLite file, and a disturbance in which this process locks the file."""
    uri = f"sqlite:///{folder / 'mlflow.db'}"

    @contextmanager
    def locked() -> Iterator[None]:
        with closing(sqlite3.connect(folder / "mlflow.db", isolation_level=None, timeout=60)) as connection:
            connection.execute("BEGIN EXCLUSIVE")
            yield
            connection.execute("ROLLBACK")

    return uri, locked


def _server(folder: Path, stack: ExitStack) -> tuple[str, Disturbance]:
    """Return the URI of an MLflow server, and a disturbance in which the server is stopped."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port = probe.getsockname()[1]
    running: list[subprocess.Popen[bytes]] = []

    def start() -> None:
        command = [sys.executable, "-m", "mlflow", "server", "--host", HOST, "--port", str(port), "--workers", "1"]
        environment = (
            os.environ | SERVER_ENVIRONMENT | {"MLFLOW_BACKEND_STORE_URI": f"sqlite:///{folder / 'mlflow.db'}"}
        )
        with (folder / "server.log").open("a") as log:
            running[:] = [subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log)]
        _wait(lambda: _answers(port), running[0], "a connection to the server")

    def end() -> None:
        for server in running:
            server.terminate()
            server.wait()

    @contextmanager
    def away() -> Iterator[None]:
        end()
        yield
        start()

    stack.callback(end)
    start()
    return f"http://{HOST}:{port}", away


_STORES: Mapping[str, Callable[[Path, ExitStack], tuple[str, Disturbance]]] = {
    "SQLite database, locked": _database,
    "MLflow server, stopped": _server,
}


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((HOST, port)) == 0


def _wait(condition: Callable[[], bool], process: subprocess.Popen[bytes], what: str) -> None:
    deadline = time.monotonic() + STARTING_S
    while not condition():
        if process.poll() is not None:
            raise SubjectError(f"the process ended with {process.returncode} before {what}")
        if time.monotonic() > deadline:
            raise SubjectError(f"waited {STARTING_S:g} s for {what}")
        time.sleep(POLL_S)


def _points(database: Path) -> int:
    """Return the number of points of all runs in a store; 0 before MLflow has created its tables."""
    if not database.exists():
        return 0
    with closing(sqlite3.connect(database)) as connection:
        try:
            return int(connection.execute("SELECT count(*) FROM metrics").fetchone()[0])
        except sqlite3.OperationalError:
            return 0


def _read(result: Result, folder: Path) -> None:
    """Add the step times to the result, and the differences between the store and metrics.jsonl."""
    logged = [record for record in read_metrics(folder / "run" / "metrics.jsonl") if "train/loss" in record.values]
    expected = {(name, record.step) for record in logged for name in record.values}
    with closing(sqlite3.connect(folder / "mlflow.db")) as connection:
        stored = connection.execute("SELECT key, step FROM metrics WHERE key NOT LIKE 'system/%'").fetchall()
    stored = [point for point in stored if point in expected or point[0].startswith("train/")]
    result.points = len(expected)
    result.missing = len(expected - set(stored))
    result.repeated = len(stored) - len(set(stored))
    for window in result.windows:
        times = [each.time_ms / 1000 for each in logged if window.begin <= each.time_ms / 1000 <= window.end]
        steps = [after - before for before, after in itertools.pairwise(times)]
        result.medians.append(statistics.median(steps))
        result.counts.append(len(steps))


def _row(result: Result) -> tuple[str, ...]:
    ratios = result.ratios()
    low, high = quartiles(ratios)
    undisturbed, disturbed = (statistics.median(result.medians[start::2]) * 1e3 for start in (0, 1))
    return (
        *(result.name, str(len(ratios)), f"{sum(result.counts):,}", f"{undisturbed:.2f}", f"{disturbed:.2f}"),
        *(f"{statistics.median(ratios):.3f}", f"{low:.3f}-{high:.3f}"),
        *(result.status, f"{result.points:,}", str(result.missing), str(result.repeated)),
    )
