"""Step drivers: which clients run for an update, and in which order: ``train`` alone, or several that overlap.

A step driver decides from the endings that the session reports, and from nothing else: it reads no clock. So the same
order of endings leads to the same decisions, on a cluster, on a virtual clock and in a repetition.
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
    """One step of a launched client that has finished on all its devices.

    turns: device -> number of runs of launched clients that the device began before this one.
    """

    client: str
    step: int
    fetches: Mapping[str, Array]
    turns: Mapping[str, int] = field(default_factory=dict)


class Clients(Protocol):
    """Runs the clients of a program, one by one or several at once."""

    def run(self, client: str, *, step: int = 0, feeds: Mapping[str, Any] | None = None) -> dict[str, Array]:
        """Run one step of a client and return its fetches by name.

        Raises RunnerError while launched clients are running.
        """

    def launch(self, client: str, *, step: int = 0, feeds: Mapping[str, Any] | None = None) -> None:
        """Begin one step of a deferred client and return. Several clients may run at once, but each only once.

        On every device runs begin in launch order, except that a run waits for all tensors that it receives and later
        ones may overtake it.
        """

    def finished(self) -> Finished:
        """Wait until the next launched client has finished on all its devices and return it.

        Raises RunnerError if no client is launched.
        """


class StepDriver(ABC):
    """Makes the updates of one program on one session, in order."""

    @abstractmethod
    def update(self, step: int, learning_rate: Array) -> Mapping[str, Array]:
        """Make update number ``step`` and return its "loss" and "accuracy", both ().

        learning_rate: () in the dtype of the variables.
        """

    @abstractmethod
    def synchronize(self) -> None:
        """Wait for all launched clients; afterwards variables may be evaluated, saved and restored."""

    def begin_again(self) -> None:
        """Synchronize and drop all state that no checkpoint holds.

        Called before each checkpoint, so that this run and a run that is resumed from the checkpoint end equally.
        """
        self.synchronize()

    def metrics(self) -> Mapping[str, float]:
        """Return metrics of the updates since the last call, by name, besides loss and accuracy."""
        return {}

    def decisions(self) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        """Return the decisions so far that no configuration states: name -> lines of plain data, each with its "step".

        Each name gets a file NAME.jsonl in the run directory.
        """
        return {}

    def record(self) -> Mapping[str, Any]:
        """Return counts of the race so far, as plain data of any form; empty if nothing races."""
        return {}


def number_of(step: int) -> Array:
    """Return the number of a step as clients are fed it: () int64."""
    return np.asarray(step, np.int64)


Made = TypeVar("Made", bound=Callable[..., StepDriver])

_DRIVERS: dict[type[DriverSettings], Callable[..., StepDriver]] = {}


def drives(settings: type[DriverSettings]) -> Callable[[Made], Made]:
    """Register the decorated class or function as the step driver of programs with these settings.

    It is called with the clients of a session and the settings.
    """

    def register(make: Made) -> Made:
        _DRIVERS[settings] = make
        return make

    return register


def bind(settings: DriverSettings, clients: Clients) -> StepDriver:
    """Return the step driver of a program on the clients of a session."""
    return _DRIVERS[type(settings)](clients, settings)


@drives(DriverSettings)
class Synchronous(StepDriver):
    """Every update is one step of the client ``train``."""

    def __init__(self, clients: Clients, settings: DriverSettings) -> None:
        self._clients = clients

    def update(self, step: int, learning_rate: Array) -> Mapping[str, Array]:
        """Run ``train``; see :class:`StepDriver`."""
        feeds = {"step": number_of(step), "learning_rate": learning_rate}
        return self._clients.run("train", step=step, feeds=feeds)

    def synchronize(self) -> None:
        """Return at once, because no client is launched."""


@dataclass(frozen=True)
class Rounds(DriverSettings):
    """Settings of a driver that runs ``train``, and ``client`` after every ``steps`` updates.

    ``client`` also ends a round early, before the network is evaluated or saved.
    """

    client: str
    steps: int


@drives(Rounds)
class InRounds(Synchronous):
    """Every update is one step of the client ``train``; see :class:`Rounds`."""

    def __init__(self, clients: Clients, settings: Rounds) -> None:
        super().__init__(clients, settings)
        self._rounds = settings
        self._in_round = False

    def update(self, step: int, learning_rate: Array) -> Mapping[str, Array]:
        """Run ``train``, and the client that ends a round if it is due; see :class:`StepDriver`."""
        found = super().update(step, learning_rate)
        self._in_round = True
        if (step + 1) % self._rounds.steps == 0:
            self.synchronize()
        return found

    def synchronize(self) -> None:
        """End the running round, if any."""
        if self._in_round:
            self._clients.run(self._rounds.client)
            self._in_round = False
