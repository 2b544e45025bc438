"""Draw images of 16x16 pixels with discs, squares and crosses into shapes.npz, the file that ``data=arrays`` reads."""

import numpy as np
from numpy.typing import NDArray

SIDE = 16
CLASSES = ("disc", "square", "cross")


def draw(label: int, rng: np.random.Generator) -> NDArray[np.uint8]:
    """Return one image (SIDE, SIDE) of a class, with random position, size and noise."""
    radius = rng.uniform(3, 5)
    row, column = rng.uniform(radius, SIDE - 1 - radius, size=2)
    down, right = (np.abs(np.arange(SIDE) - centre) for centre in (row, column))
    y, x = down[:, None], right[None, :]
    inside: dict[str, NDArray[np.bool_]] = {
        "disc": x**2 + y**2 <= radius**2,
        "square": np.maximum(x, y) <= radius * 0.9,
        "cross": (np.minimum(x, y) <= 1) & (np.maximum(x, y) <= radius),
    }
    pixels = 160.0 * inside[CLASSES[label]] + rng.uniform(0, 80, (SIDE, SIDE))
    return pixels.astype(np.uint8)


def split(count: int, rng: np.random.Generator) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return images (count, SIDE, SIDE) and labels (count,). The classes alternate."""
    labels = np.arange(count) % len(CLASSES)
    return np.stack([draw(int(label), rng) for label in labels]), labels


def main() -> None:
    """Write the file to the working directory."""
    rng = np.random.default_rng(0)
    x_train, y_train = split(900, rng)
    x_test, y_test = split(300, rng)
    np.savez(
        "shapes.npz",
        x_train=x_train,
        y_train=y_train,
        x_test=x_test,
        y_test=y_test,
        class_names=np.array(CLASSES),
    )


if __name__ == "__main__":
    main()
