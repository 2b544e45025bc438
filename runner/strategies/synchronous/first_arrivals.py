"""The step driver of training with backup workers: only the first shares of a batch to arrive count in each step."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from runner.engine.compile.program import DriverSettings
from runner.engine.run.session import scalar
from runner.engine.run.step_driver import Clients, Finished, StepDriver, drives, number_of
from runner.errors import ConfigError
from runner.records.decisions import read_decisions
from runner.strategies.clients import action_of, client_name, numbers_of

Array = NDArray[Any]

APPLY = "apply"
NORM = "norm"
CONTRIBUTORS = "contributors"
"""Name of the record with a line for each update: {"step", "contributors", "dropped": [{"worker", "examples"}, ...]}.

contributors: the workers whose shares (each the results for one part of the batch) were summed, in this order. dropped:
workers that started the step but had no share ready for the update. The other workers did not start the step: they were
still busy, or lost.
"""

Contributors = tuple[int, ...]


def worker_feed(position: int) -> str:
    """Return the name of the feed whose value is the number of the worker at this position of the sum."""
    return f"worker_{position}"


@dataclass(frozen=True)
class CountedShares(DriverSettings):
    """The settings of :class:`FirstArrivals`.

    batch: batch size. counted: number of shares that count in an update. examples: number of examples in each worker's
    share. dtype: dtype of the feed ``scale``. clips: whether the client ``norm`` runs before each ``apply``. replayed:
    step -> workers whose shares count; None if the first shares to arrive count.
    """

    batch: int
    counted: int
    examples: tuple[int, ...]
    dtype: str
    clips: bool = False
    replayed: Mapping[int, Contributors] | None = None

    @property
    def even(self) -> bool:
        """Whether all shares have the same size, so that any ``counted`` shares together have ``batch`` examples."""
        return set(self.examples) == {self.batch / self.counted}


@drives(CountedShares)
class FirstArrivals(StepDriver):
    """A step driver that applies the first shares to arrive and drops the later shares of the step.

    A late worker finishes its share, which is dropped, and then joins the current step. If a step ends before a worker
    has finished reading the variables, the worker skips its share of that step, and the share counts as dropped.

    A worker that was lost begins no share until its replacement is available. A replay waits for the replacement.
    """

    def __init__(self, clients: Clients, shares: CountedShares) -> None:
        self._clients = clients
        self._shares = shares
        self._running: set[str] = set()
        self._open: int | None = None
        self._wanted: Contributors = ()
        self._arrived: list[int] = []
        self._counted: dict[int, Contributors] = {}
        self._dropped: dict[int, list[int]] = {}
        self._since = {"comm/dropped_shares": 0, "comm/dropped_examples": 0, "comm/unseen_examples": 0}

    def update(self, step: int, learning_rate: Array) -> Mapping[str, Array]:
        """Wait for the shares that count and apply them; return the loss and metrics of these shares."""
        self._begin(step)
        while len(self._arrived) < self._shares.counted:
            self._take(self._finished())
        self._open = None
        contributors = tuple(sorted(self._arrived))
        self._counted[step] = contributors
        held = sum(self._shares.examples[k] for k in contributors)
        self._since["comm/unseen_examples"] += sum(self._shares.examples) - held
        chosen: dict[str, Any] = {worker_feed(i): scalar(k, "int64") for i, k in enumerate(contributors)}
        if not self._shares.even:
            chosen["scale"] = scalar(self._shares.batch / held, self._shares.dtype)
        clip_factor = self._run(NORM, step, chosen) if self._shares.clips else {}
        feeds = {"step": number_of(step), "learning_rate": learning_rate}
        return self._run(APPLY, step, {**feeds, **chosen, **clip_factor})

    def synchronize(self) -> None:
        """Wait for the shares of late workers, and drop them."""
        while self._running:
            self._take(self._finished())

    @property
    def is_synchronized(self) -> bool:
        """True, because no client changes saved variables between two updates."""
        return True

    def can_go_on(self) -> bool:
        """Return whether enough workers are available for an update; a replay needs the recorded workers."""
        return self._shares.replayed is None and len(self._available()) >= self._shares.counted

    def metrics(self) -> Mapping[str, float]:
        """Return, since the last call, the numbers of dropped shares, of their examples, and of all unused examples."""
        since = dict(self._since)
        self._since = dict.fromkeys(since, 0)
        return since

    def decisions(self) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        """Return the lines of contributors.jsonl for the updates so far; see ``CONTRIBUTORS``."""
        examples = self._shares.examples
        return {
            CONTRIBUTORS: [
                {
                    "step": step,
                    "contributors": list(contributors),
                    "dropped": [{"worker": k, "examples": examples[k]} for k in self._dropped.get(step, ())],
                }
                for step, contributors in self._counted.items()
            ]
        }

    def _begin(self, step: int) -> None:
        self._open, self._arrived = step, []
        replayed = self._shares.replayed
        self._wanted = self._available() if replayed is None else _of_step(replayed, step)
        busy = {worker for client in self._running for worker in numbers_of(client)}
        for worker in self._wanted:
            if worker not in busy:
                self._launch(client_name("read", worker), step)

    def _available(self) -> Contributors:
        """Return the available workers. A share uses all parameter servers, so without one no worker is available."""
        return tuple(
            worker
            for worker in range(len(self._shares.examples))
            if self._clients.is_available(client_name("share", worker))
        )

    def _take(self, ended: Finished) -> None:
        """Handle the end of a read or share client: count or drop the worker's share and launch its next client."""
        (worker,) = numbers_of(ended.client)
        if ended.step == self._open:
            if action_of(ended.client) == "share":
                self._arrived.append(worker)
            else:
                self._launch(client_name("share", worker), ended.step, {"step": number_of(ended.step)})
            return
        self._drop(ended.step, worker)
        if self._open is not None and worker in self._wanted:
            self._launch(client_name("read", worker), self._open)

    def _drop(self, step: int, worker: int) -> None:
        self._dropped.setdefault(step, []).append(worker)
        self._since["comm/dropped_shares"] += 1
        self._since["comm/dropped_examples"] += self._shares.examples[worker]

    def _run(self, client: str, step: int, feeds: Mapping[str, Any]) -> Mapping[str, Array]:
        """Run a client of the servers to its end; drop the shares that arrive in the meantime."""
        self._launch(client, step, feeds)
        while (ended := self._finished()).client != client:
            self._take(ended)
        return ended.fetches

    def _launch(self, client: str, step: int, feeds: Mapping[str, Any] | None = None) -> None:
        self._clients.launch(client, step=step, feeds=feeds)
        self._running.add(client)

    def _finished(self) -> Finished:
        ended = self._clients.finished()
        self._running.remove(ended.client)
        return ended


def _of_step(replayed: Mapping[int, Contributors], step: int) -> Contributors:
    if step not in replayed:
        raise ConfigError(
            f"parallelism.replay: the file has steps {min(replayed)} to {max(replayed)}, and the run has reached step "
            f"{step}; set train.steps to the number of recorded steps"
        )
    return replayed[step]


def contributors_of(path: Path, workers: int, backups: int) -> dict[int, Contributors]:
    """Return step -> workers whose shares counted, from ``contributors.jsonl`` of an earlier run.

    Raises ConfigError if the file cannot be read or its run had other numbers of workers or of backup workers.
    """
    try:
        lines = read_decisions(path)
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(
            f"parallelism.replay={path}: cannot be read ({error}); expected {CONTRIBUTORS}.jsonl of an earlier run"
        ) from error
    found = {}
    for line in lines:
        if not _is_of(line, workers, backups):
            raise ConfigError(
                f"parallelism.replay={path}: found {str(line)[:80]}; expected a step and {workers} different workers "
                f"of 0 to {workers + backups - 1} in rising order, for parallelism.workers={workers} and "
                f"parallelism.backup_workers={backups}"
            )
        found[line["step"]] = tuple(line[CONTRIBUTORS])
    if not found:
        raise ConfigError(f"parallelism.replay={path}: the file is empty; expected a line for every update")
    return found


def _is_of(line: dict[str, Any], workers: int, backups: int) -> bool:
    chosen = line.get(CONTRIBUTORS)
    return (
        type(line.get("step")) is int
        and isinstance(chosen, list)
        and len(chosen) == workers
        and all(type(k) is int and 0 <= k < workers + backups for k in chosen)
        and chosen == sorted(set(chosen))
    )
