"""Small data files for tests of the datasets ``arrays`` and ``image_folder``."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

Array = NDArray[Any]


def small_arrays(shape: tuple[int, ...] = (6, 5), dtype: str = "uint8") -> dict[str, Array]:
    """Return eight train and four test images of ``shape`` in three classes."""
    rng = np.random.default_rng(0)
    return {
        "x_train": rng.integers(0, 256, (8, *shape)).astype(dtype),
        "y_train": np.arange(8) % 3,
        "x_test": rng.integers(0, 256, (4, *shape)).astype(dtype),
        "y_test": np.arange(4) % 2,
    }


def write_arrays(path: Path, **changes: Array | None) -> Path:
    """Write :func:`small_arrays` with ``changes`` to an .npz file and return its path; None leaves an array out."""
    arrays = small_arrays() | changes
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})
    return path


def write_images(folder: Path, side: int = 4) -> Path:
    """Write two classes, each with two train images and one test image, all uniform; return the folder."""
    for split, count in (("train", 2), ("test", 1)):
        for label, name in enumerate(("cat", "dog")):
            (folder / split / name).mkdir(parents=True)
            for number in range(count):
                pixels = np.full((side, side, 3), 100 * label + 10 * number, np.uint8)
                Image.fromarray(pixels).save(folder / split / name / f"{number}.png")
    return folder
