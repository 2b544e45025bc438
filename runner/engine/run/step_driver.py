"""Step drivers, which make each update with the client ``train``, or with several clients that overlap.

A step driver bases its decisions only on the clients that the session reports as finished or as available, and reads no
clock. If clients finish in the same order and are all available, the decisions are therefore the same on a cluster, on
a virtual clock and in a repeated run.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import numpy as np

from runner.engine.compile.program import DriverSettings
from runner.kernels.contract import Array


@dataclass(frozen=True)
class Finished:
    """A finished step of a launched client. turns: device -> number of launched runs that the device began earlier."""

    client: str
    step: int
    fetches: Mapping[str, Array]
    turns: Mapping[str, int] = field(default_factory=dict)


class Clients(Protocol):
    """An object that runs the clients of a program, one by one or concurrently."""

    def run(self, client: str, *, step: int = 0, feeds: Mapping[str, Any] | None = None) -> dict[str, Array]:
        """Run one step of a client and return its fetches by name.

        Raises RunnerError while launched clients run, unless the client is "save", which only reads variables. On each
        device, it then runs between two launched runs, and is not counted in :attr:`Finished.turns`.
        """

    @property
    def longest_series(self) -> int:
        """The largest number of steps for which :meth:`run_series` is faster than single steps."""
        return 1

    def run_series(self, client: str, first: int, feeds: Sequence[Mapping[str, Any]]) -> list[dict[str, Array]]:
        """Run consecutive steps of a client, one for each of ``feeds``, and return the fetches of each."""
        return [self.run(client, step=step, feeds=each) for step, each in enumerate(feeds, first)]

    @property
    def computes(self) -> bool:
        """Whether fetches have the values of their tensors; they are zeros in a simulation."""
        return True

    def is_available(self, client: str) -> bool:
        """Return whether a client can be launched without waiting for a lost process to be restarted."""
        return True

    def launch(self, client: str, *, step: int = 0, feeds: Mapping[str, Any] | None = None) -> None:
        """Begin one step of a client whose ``deferred`` is true, and return without waiting for the end of the step.

        Several clients may run concurrently, but only one step of each. On every device, runs begin in launch order.
        While a run waits for tensors, later runs may begin.
        """

    def finished(self) -> Finished:
        """Wait until the next launched client has finished everywhere; raises RunnerError if no client is launched."""


class StepDriver(ABC):
    """A driver that makes the updates of one program on one session, in order."""

    @abstractmethod
    def update(self, step: int, learning_rate: Array) -> Mapping[str, Array]:
        """Make update number ``step`` and return its loss and metrics by name, each of shape ().

        learning_rate: shape (), or (n,) if rules of the optimizer have schedules, in the dtype of the variables.
        """

    def longest_series(self, step: int) -> int:
        """Return the largest number of updates, from ``step`` on, that one call of :meth:`updates` makes faster."""
        return 1

    def updates(self, first: int, learning_rates: Sequence[Array]) -> Sequence[Mapping[str, Array]]:
        """Make consecutive updates, one for each learning rate; see :meth:`update`."""
        return [self.update(step, rate) for step, rate in enumerate(learning_rates, first)]

    @property
    def passes(self) -> int:
        """Number of times that the latest update computed its batch; more than 1 in a line search."""
        return 1

    @property
    def warm_up(self) -> int:
        """Number of updates at the start during which fewer clients overlap than later."""
        return 1

    @abstractmethod
    def synchronize(self) -> None:
        """Wait for all launched clients; afterwards variables may be evaluated, saved and restored."""

    @property
    def is_synchronized(self) -> bool:
        """Whether the variables can be saved now without waiting and without affecting later updates."""
        return False

    @property
    def keeps_valid_variables(self) -> bool:
        """Whether updates can continue from the saved variables after clients were dropped at any time."""
        return False

    def can_go_on(self) -> bool:
        """Return whether updates can be made now, although not all clients are available."""
        return False

    def begin_again(self) -> None:
        """Synchronize and drop all state that no checkpoint holds.

        Called before each checkpoint, so that this run and a run resumed from the checkpoint give equal results.
        """
        self.synchronize()

    def metrics(self) -> Mapping[str, float]:
        """Return additional metrics by name, for the updates since the last call."""
        return {}

    def decisions(self) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        """Return the decisions made at run time so far: name -> lines of plain data, each with its "step".

        The lines of each name are written to the file NAME.jsonl in the run directory.
        """
        return {}

    def record(self) -> Mapping[str, Any]:
        """Return counts to store in the run's record, as plain data; empty if clients do not overlap."""
        return {}


def number_of(step: int) -> Array:
    """Return a step number as an array to feed to clients: shape (), int64."""
    return np.asarray(step, np.int64)


Maker = TypeVar("Maker", bound=Callable[..., StepDriver])
_DRIVERS: dict[type[DriverSettings], Callable[..., StepDriver]] = {}


def drives(settings: type[DriverSettings]) -> Callable[[Maker], Maker]:
    """Register the decorated class or function (clients, settings) -> driver for settings of this type."""

    def register(make: Maker) -> Maker:
        _DRIVERS[settings] = make
        return make

    return register


def bind(settings: DriverSettings, clients: Clients) -> StepDriver:
    """Return a step driver for a program's settings that runs the clients of a session."""
    return _DRIVERS[type(settings)](clients, settings)


@drives(DriverSettings)
class Synchronous(StepDriver):
    """A driver that makes every update with one step of the client ``train``."""

    def __init__(self, clients: Clients, settings: DriverSettings) -> None:
        self._clients = clients

    def update(self, step: int, learning_rate: Array) -> Mapping[str, Array]:
        return self.updates(step, [learning_rate])[0]

    def longest_series(self, step: int) -> int:
        return self._clients.longest_series

    def updates(self, first: int, learning_rates: Sequence[Array]) -> Sequence[Mapping[str, Array]]:
        feeds = [{"step": number_of(step), "learning_rate": rate} for step, rate in enumerate(learning_rates, first)]
        return self._clients.run_series("train", first, feeds)

    def synchronize(self) -> None:
        """Return immediately, because no client is launched."""

    @property
    def is_synchronized(self) -> bool:
        return True


@dataclass(frozen=True)
class Rounds(DriverSettings):
    """Settings of a driver that runs ``train`` in every update, and ``client`` after each round of ``steps`` updates.

    The driver also runs ``client`` to end an incomplete round before the network is evaluated or saved.
    """

    client: str
    steps: int


@drives(Rounds)
class InRounds(Synchronous):
    """A driver that also runs a client at the end of every round; see :class:`Rounds`."""

    def __init__(self, clients: Clients, settings: Rounds) -> None:
        super().__init__(clients, settings)
        self._rounds = settings
        self._in_round = False

    def longest_series(self, step: int) -> int:
        """Return the longest series of the session, but at most the number of updates to the end of the round."""
        return min(super().longest_series(step), self._rounds.steps - step % self._rounds.steps)

    def updates(self, first: int, learning_rates: Sequence[Array]) -> Sequence[Mapping[str, Array]]:
        """Run ``train`` and, if a round is complete, the client that ends it. No round may end within the series."""
        found = super().updates(first, learning_rates)
        self._in_round = True
        if (first + len(learning_rates)) % self._rounds.steps == 0:
            self.synchronize()
        return found

    @property
    def is_synchronized(self) -> bool:
        return not self._in_round

    def synchronize(self) -> None:
        if self._in_round:
            self._clients.run(self._rounds.client)
            self._in_round = False
