"""Images for tests of colours."""

import numpy as np
from numpy.typing import NDArray


def random_pixels(seed: int, height: int, width: int) -> NDArray[np.float32]:
    """Return an image (3, height, width) of 0 to 1, in which some pixels have equal or extreme channels."""
    rng = np.random.default_rng(seed)
    found = rng.integers(0, 256, (3, height, width), np.uint8)
    found[1] = np.where(rng.random((height, width)) < 0.2, found[0], found[1])
    found[2] = np.where(rng.random((height, width)) < 0.2, found[1], found[2])
    extremes = rng.choice(np.array([0, 255], np.uint8), (height, width))
    return np.where(rng.random((height, width)) < 0.1, extremes, found) * np.float32(1 / 255)
