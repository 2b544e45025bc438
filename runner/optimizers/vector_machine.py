"""Commands of a minimizer of many variables: arithmetic on named vectors in a machine, which returns only numbers."""

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Dot:
    """The number a'b."""

    a: str
    b: str

    def __str__(self) -> str:
        return f"dot {self.a} {self.b}"


@dataclass(frozen=True)
class Scale:
    """into <- factor * a."""

    into: str
    a: str

    def __str__(self) -> str:
        return f"scale {self.into} {self.a}"


@dataclass(frozen=True)
class Add:
    """into <- a + factor * b."""

    into: str
    a: str
    b: str

    def __str__(self) -> str:
        return f"add {self.into} {self.a} {self.b}"


Command = Dot | Scale | Add
"""The part of a command that is fixed before a run; factors are arguments of each call."""


class VectorMachine(Protocol):
    """A holder of vectors of one length, among them the point "x" and the "gradient" of the objective."""

    def dot(self, a: str, b: str) -> float:
        """Return a'b."""
        ...

    def scale(self, into: str, factor: float, a: str) -> None:
        """Set into <- factor * a."""
        ...

    def add(self, into: str, a: str, factor: float, b: str) -> None:
        """Set into <- a + factor * b; ``into`` may be either of them."""
        ...

    def evaluate(self) -> float:
        """Return the objective at "x" and set "gradient" to its gradient there."""
        ...
