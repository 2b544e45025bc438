"""A command, such as ``srun``, that starts workers on the hosts of a cluster and reports their ends in its log."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from runner.engine.cluster.process_exit import REPORTED_BY_CHANCE
from runner.engine.cluster.processes import WorkerProcess
from runner.errors import ClusterError, WorkerLostError
from runner.system.text import printable

_REPORT = re.compile(rb"\w+: error: (.+?): tasks? (\d[-,\d]*): (.+)")
"""A report that tasks ended. Groups: the node, the numbers of the tasks such as ``0-2,5``, and how the tasks ended."""


class CommandProcess(WorkerProcess):
    """A command that runs until all of its tasks have ended. Each task is one worker or spare process.

    When a task fails, the command writes ``NAME: error: HOST: task NUMBER: REASON`` into its log, and goes on.
    """

    def __init__(
        self,
        name: str,
        argv: Sequence[str],
        log_path: Path,
        environment: Mapping[str, str],
        tasks: Sequence[str],
        nodes: Sequence[str] = (),
    ) -> None:
        """Start the command; raises the errors of :class:`WorkerProcess`.

        tasks: names of the processes, by number. nodes: their nodes, if the command was given nodes.
        """
        super().__init__(name, argv, log_path, environment, has_input=True)
        self._tasks = dict(enumerate(tasks))
        self._nodes = dict(enumerate(nodes))
        self._places = {name: number for number, name in enumerate(tasks)}
        self._count = len(tasks)
        self._read = self._log_begin
        self._reported: dict[int, tuple[str, str]] = {}
        self.has_replaced = False

    @property
    def tasks(self) -> list[str]:
        """Names of the processes that this command has started, without those that were given up."""
        return list(self._tasks.values())

    @property
    def nodes(self) -> dict[str, str]:
        """Process -> its node, for the :attr:`tasks` for which the command was given nodes."""
        return {name: self._nodes[number] for number, name in self._tasks.items() if number in self._nodes}

    def give_up(self, worker: str) -> None:
        """Ignore the process of ``worker`` from now on, because another process takes its place."""
        number = next(number for number, name in self._tasks.items() if name == worker)
        del self._tasks[number]
        self.has_replaced = True

    def add(self, worker: str) -> tuple[int, int]:
        """Return the number of a new task for a worker, and its place; the caller requests the task from the command.

        The place is that of the earlier tasks of the worker or, if there are none, the first unused place.
        """
        number, self._count = self._count, self._count + 1
        self._tasks[number] = worker
        return number, self._places.setdefault(worker, len(self._places))

    def rename(self, spare: str, worker: str) -> None:
        """Make the task of a spare process the task of a worker; the next spare process gets the worker's old place."""
        number = next(number for number, name in self._tasks.items() if name == spare)
        self._tasks[number], self.has_replaced = worker, True
        places = self._places
        if worker in places:
            places[spare], places[worker] = places[worker], places[spare]

    @property
    def ends(self) -> "Sequence[TaskEnd]":
        """The tasks that have ended, in the order of the reports; if the command has ended, then all tasks."""
        ended = self.poll() is not None  # before the log is read, which is then complete
        self._read_reports()
        known = [number for number in self._reported if number in self._tasks]
        others = sorted(self._tasks.keys() - self._reported.keys()) if ended else []
        return [TaskEnd(self, self._tasks[each], *self._reported.get(each, ("", ""))) for each in (*known, *others)]

    def _read_reports(self) -> None:
        """Read the complete lines that the log has received since the last call, if it has grown."""
        if self.log_path.stat().st_size == self._read:
            return
        with self.log_path.open("rb") as file:
            file.seek(self._read)
            lines = file.read().split(b"\n")[:-1]
        self._read += sum(len(line) + 1 for line in lines)
        for found in filter(None, map(_REPORT.match, lines)):
            node, numbers, how = (printable(group.decode("utf-8", "replace")) for group in found.groups())
            for number in _numbers(numbers, self._count):
                self._reported.setdefault(number, (node, how[:1].lower() + how[1:]))


def _numbers(text: str, count: int) -> list[int]:
    """Return the numbers below ``count`` of a text such as ``0-2,5``."""
    bounds = [part.split("-") for part in text.split(",") if re.fullmatch(r"\d+(-\d+)?", part)]
    return [number for each in bounds for number in range(int(each[0]), min(int(each[-1]) + 1, count))]


@dataclass(frozen=True)
class TaskEnd:
    """The end of one task of a command. host, cause: as reported; both are "" if the command itself has ended first."""

    command: CommandProcess
    name: str
    host: str
    cause: str
    rank: int = 0

    @property
    def ending(self) -> str:
        """How the task or its command ended."""
        return self.cause or f"ended with {self.command.name}, which {self.command.exit}"

    @property
    def has_crashed(self) -> bool:
        """Whether a signal has killed the process, according to the report."""
        return bool(self.cause) and not self.cause.startswith("exited")

    @property
    def is_regular(self) -> bool:
        """Whether the command has ended without a report of a failure of this task.

        The exit code of a command is that of a failed task, possibly of one that was replaced.
        """
        exit_ = self.command.exit
        return not self.cause and exit_ is not None and (exit_.code == 0 or self.command.has_replaced)

    def lost(self, later: Sequence[str]) -> ClusterError:
        """Return the error that this end causes. later: sentences about workers that ended later."""
        if not self.cause:
            assert self.command.exit is not None
            error = self.command.exit.error(self.command.name, self.command.report())
            if isinstance(error, WorkerLostError):
                error.by_chance = True  # the start of two replacements can fail in one step
            return error
        text = "\n".join([f"{self.name} on {self.host}: {self.cause}", self.command.report(), *later])
        by_chance, out_of_memory = self.cause in REPORTED_BY_CHANCE, self.cause.lower() == "out of memory"
        return WorkerLostError(self.name, self.cause, text, by_chance=by_chance, out_of_memory=out_of_memory)
