"""An executor of L-BFGS vector commands in NumPy, and minimization problems with known solutions."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from runner.optimizers.lbfgs import GRADIENT, Add, Command, Dot, History, Iteration, Scale, X, iterate

Vector = NDArray[np.float64]
Objective = Callable[[Vector], tuple[float, Vector]]


class NumpyMachine:
    """An executor of L-BFGS vector commands on NumPy arrays, which records the commands."""

    def __init__(self, objective: Objective, x: Vector) -> None:
        self.objective = objective
        self.vectors: dict[str, Vector] = {X: x.copy()}
        self.commands: list[Command] = []
        self.values: list[float] = []

    def dot(self, a: str, b: str) -> float:
        self.commands.append(Dot(a, b))
        return float(self.vectors[a] @ self.vectors[b])

    def scale(self, into: str, factor: float, a: str) -> None:
        self.commands.append(Scale(into, a))
        self.vectors[into] = factor * self.vectors[a]

    def add(self, into: str, a: str, factor: float, b: str) -> None:
        self.commands.append(Add(into, a, b))
        self.vectors[into] = self.vectors[a] + factor * self.vectors[b]

    def evaluate(self) -> float:
        value, self.vectors[GRADIENT] = self.objective(self.vectors[X])
        self.values.append(value)
        return value


def minimised(machine: NumpyMachine, history: History) -> list[Iteration]:
    """Call ``iterate`` until no element of the gradient exceeds 1e-7, at most 200 times."""
    done = []
    while len(done) < 200:
        done.append(iterate(machine, history, longest=1.0, most=20))
        if np.abs(machine.vectors[GRADIENT]).max() < 1e-7:
            break
    return done


def rosenbrock(x: Vector) -> tuple[float, Vector]:
    """Rosenbrock's chained valley. The minimum is 0, where every element is 1."""
    ahead, behind = x[1:], x[:-1]
    gradient = np.zeros_like(x)
    gradient[:-1] = -400.0 * behind * (ahead - behind**2) - 2.0 * (1.0 - behind)
    gradient[1:] += 200.0 * (ahead - behind**2)
    return float((100.0 * (ahead - behind**2) ** 2 + (1.0 - behind) ** 2).sum()), gradient


def beale(x: Vector) -> tuple[float, Vector]:
    """Beale's function. The minimum is 0 at (3, 0.5)."""
    a, b = x
    powers = np.array([b, b**2, b**3])
    rest = np.array([1.5, 2.25, 2.625]) - a + a * powers
    by_b = a * np.array([1.0, 2.0 * b, 3.0 * b**2])
    return float(rest @ rest), np.array([2.0 * rest @ (powers - 1.0), 2.0 * rest @ by_b])


def booth(x: Vector) -> tuple[float, Vector]:
    """Booth's function. The minimum is 0 at (1, 3)."""
    matrix = np.array([[1.0, 2.0], [2.0, 1.0]])
    rest = matrix @ x - np.array([7.0, 5.0])
    return float(rest @ rest), 2.0 * matrix.T @ rest


class Quadratic:
    """The function x'Ax / 2 - b'x, where A is random with a given condition number. ``solution`` is the minimizer."""

    def __init__(self, size: int, condition: float, seed: int) -> None:
        generator = np.random.default_rng(seed)
        axes, _ = np.linalg.qr(generator.standard_normal((size, size)))
        self.matrix = axes @ np.diag(np.geomspace(1.0, condition, size)) @ axes.T
        self.b = generator.standard_normal(size)
        self.solution = np.linalg.solve(self.matrix, self.b)

    def __call__(self, x: Vector) -> tuple[float, Vector]:
        return float(0.5 * x @ self.matrix @ x - self.b @ x), self.matrix @ x - self.b
