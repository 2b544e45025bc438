"""Draw flags of two and three stripes as PNG files: flags/train/CLASS/NUMBER.png and flags/test/CLASS/NUMBER.png."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

CLASSES = {"lying_two": (2, 0), "lying_three": (3, 0), "standing_two": (2, 1), "standing_three": (3, 1)}
"""Name -> number of stripes, and the image axis along which the stripes alternate."""


def draw(stripes: int, axis: int, rng: np.random.Generator) -> NDArray[np.uint8]:
    """Return one flag (H, W, 3) of random size, with stripes in random colours."""
    height, width = rng.integers(18, 30, size=2)
    colours = rng.integers(0, 256, (stripes, 3))
    place = np.arange((height, width)[axis]) * stripes // (height, width)[axis]
    line = colours[place]
    flag = line[:, None] if axis == 0 else line[None, :]
    return np.broadcast_to(flag, (height, width, 3)).astype(np.uint8)


def main() -> None:
    """Write the files to the working directory."""
    rng = np.random.default_rng(0)
    for split, count in (("train", 150), ("test", 40)):
        for name, (stripes, axis) in CLASSES.items():
            folder = Path("flags", split, name)
            folder.mkdir(parents=True, exist_ok=True)
            for number in range(count):
                Image.fromarray(draw(stripes, axis, rng)).save(folder / f"{number:03}.png")


if __name__ == "__main__":
    main()
