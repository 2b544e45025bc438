"""Who runs the clients that make an update, and in which order: ``train`` alone, or several that overlap.

A conductor decides from what it was told to have finished, and from nothing else: no clock, no arrival that the
session does not tell. So the same order of endings leads to the same decisions, whoever makes that order.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from numpy.typing import NDArray

Array = NDArray[Any]


@dataclass(frozen=True)
class Finished:
    """One step of a launched client that has come to its end on all its devices.

    turns: device -> how many runs of launched clients that device had begun before this one.
    """

    client: str
    step: int
    fetches: Mapping[str, Array]
    turns: Mapping[str, int] = field(default_factory=dict)


class Clients(Protocol):
    """What a conductor has at hand: the clients of its program, to be run one by one or several at once."""

    def run(self, client: str, *, step: int = 0, feeds: Mapping[str, Any] | None = None) -> dict[str, Array]:
        """Run one step of a client and return its fetches by name.

        Raises RunnerError while launched clients are under way.
        """
        ...

    def launch(self, client: str, *, step: int = 0, feeds: Mapping[str, Any] | None = None) -> None:
        """Begin one step of a deferred client and return. Several may be under way, each of them once.

        On every device runs begin in the order of their launches, but none before all that it receives is there; those
        behind it go first.
        """
        ...

    def finished(self) -> Finished:
        """Wait until one of the launched clients has come to its end; endings are told one by one, in their order.

        Raises RunnerError when nothing is under way.
        """
        ...


class Conductor(ABC):
    """Makes the updates of one program on one session, in order."""

    @abstractmethod
    def update(self, step: int, feeds: Mapping[str, Any]) -> Mapping[str, Array]:
        """Make update number ``step`` and return its "loss" and "accuracy", both ().

        feeds: "step", () int64, and "learning_rate", () in the dtype of the variables.
        """

    @abstractmethod
    def settle(self) -> None:
        """Let all that is under way come to its end: variables may be scored, saved and restored then."""

    def metrics(self) -> Mapping[str, float]:
        """What there is to log beside loss and accuracy, by name of the metric; of the updates since the last call."""
        return {}

    def decisions(self) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        """What was decided so far and no configuration says: name -> lines of plain data, each with its "step".

        A name gets a file of its own in the run directory.
        """
        return {}

    def record(self) -> Mapping[str, Any]:
        """What came of the race so far, as plain data of any form; empty where there is none."""
        return {}


class Synchronous(Conductor):
    """Every update is one step of the client ``train``."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients

    def update(self, step: int, feeds: Mapping[str, Any]) -> Mapping[str, Array]:
        """Run ``train``; see :class:`Conductor`."""
        return self._clients.run("train", step=step, feeds=feeds)

    def settle(self) -> None:
        """Nothing is ever under way."""
