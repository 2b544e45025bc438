"""Write pendulum.csv: measurements of damped pendulums, with noise. Usage: python make_table.py [FILE]"""

import csv
import sys
from pathlib import Path

import numpy as np

ROWS = 2000


def main(path: Path) -> None:
    """Write a row for each pendulum: length, gravity, damping, period and decay time in s, and 1 if it never swings."""
    rng = np.random.default_rng(0)
    length, gravity = rng.uniform(0.2, 2.0, ROWS), rng.uniform(3.0, 12.0, ROWS)
    damping = rng.uniform(0.1, 8.0, ROWS)
    square = gravity / length - damping**2 / 4
    swing = np.where(square > 0, 2 * np.pi / np.sqrt(np.abs(square)), 0.0).clip(max=4.0)
    decay = 2 / damping
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("length", "gravity", "damping", "swing", "decay", "creeps"))
        for row in zip(length, gravity, damping, swing, decay, square <= 0, strict=True):
            *numbers, creeps = row
            writer.writerow([f"{number + rng.normal(0, 0.01):.4f}" for number in numbers] + [int(creeps)])


if __name__ == "__main__":
    main(Path(*sys.argv[1:2]) if sys.argv[1:] else Path("pendulum.csv"))
