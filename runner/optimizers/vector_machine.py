"""What a minimiser of many variables commands: arithmetic on named vectors that others hold. Only numbers come back."""

from __future__ import annotations

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
"""What is known of a command before a run; factors are told with each."""


class VectorMachine(Protocol):
    """Holds vectors of one length, among them the point "x" and the "gradient" of what is minimised."""

    def dot(self, a: str, b: str) -> float:
        """Return a'b."""
        ...

    def scale(self, into: str, factor: float, a: str) -> None:
        """Let into <- factor * a."""
        ...

    def add(self, into: str, a: str, factor: float, b: str) -> None:
        """Let into <- a + factor * b; ``into`` may be either of them."""
        ...

    def evaluate(self) -> float:
        """Return the objective at "x" and let "gradient" be its gradient there."""
        ...
