"""Images of the user's own, from files, as a network takes them: PNG, JPEG, and NumPy arrays."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runner.data.dataset import Normalisation
from runner.data.image_file import read_image
from runner.data.npz import DAMAGE
from runner.errors import DataError
from runner.system.files import open_regular

IMAGES = (".png", ".jpg", ".jpeg")
ARRAYS = (".npy",)
_CHANNELS = (1, 3)
"""Channels that images can have."""
_LARGEST_BYTE = 255.0


@dataclass(frozen=True)
class Picture:
    """One image.

    label: the file it is from, with its number where that holds several. pixels: (C, H, W), of any type of numbers, in
    the range of the dataset's pixels.
    """

    label: str
    pixels: NDArray[Any]


def read_pictures(
    paths: Sequence[Path], shape: tuple[int, int, int], normalisation: Normalisation, *, fit: bool
) -> list[Picture]:
    """Read images of ``shape`` (C, H, W); ``normalisation`` is that of the network's dataset.

    Images from PNG and JPEG have 0 to 255 as their range; a network of numbers of any range takes arrays only. Arrays
    have the range of the dataset: (C, H, W) or (N, C, H, W), and for one channel (H, W) or (N, H, W).
    fit: bring images, not arrays, to the size and the channels that are wanted, as
    :func:`~runner.data.image_file.read_image` says; without it those that have others are refused.

    Raises DataError, with the reason, for a file that cannot be read or does not fit.
    """
    return [picture for path in paths for picture in _read(path, shape, normalisation, fit)]


def _read(path: Path, shape: tuple[int, int, int], normalisation: Normalisation, fit: bool) -> Iterator[Picture]:
    suffix = path.suffix.lower()
    if suffix in IMAGES:
        _require_images(path, shape[0], normalisation)
        yield Picture(str(path), read_image(path, shape, fit=fit) * (normalisation.scale / _LARGEST_BYTE))
    elif suffix in ARRAYS:
        images = _array(path, shape)
        _require_range(path, images, normalisation)
        for number, pixels in enumerate(images):
            yield Picture(f"{path}[{number}]" if len(images) > 1 else str(path), pixels)
    else:
        raise DataError(f"{path}: expected a file that ends in {', '.join(IMAGES + ARRAYS)}")


def _require_images(path: Path, channels: int, normalisation: Normalisation) -> None:
    """Raise DataError where a network can make nothing of image files."""
    if channels not in _CHANNELS:
        raise DataError(f"{path}: the network takes {channels} channels, an image has 1 or 3; give it arrays (.npy)")
    if not normalisation.bounded:
        raise DataError(
            f"{path}: an image has pixels of 0 to 255, the network was trained on numbers that may have any range; "
            "give it arrays (.npy) that were made as its training data were"
        )


def _array(path: Path, shape: tuple[int, int, int]) -> NDArray[Any]:
    """Return the images (N, C, H, W) of an array file. No pickles: an object array is refused."""
    try:
        with open_regular(path) as file:
            array = np.load(file, allow_pickle=False)
    except DAMAGE as error:
        raise DataError(f"{path}: cannot be read as a NumPy array: {error}") from error
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "uif":
        raise DataError(f"{path}: expected one array of numbers, found {getattr(array, 'dtype', 'several arrays')}")
    one_channel = shape[0] == 1 and array.shape[-2:] == shape[1:]
    if array.ndim in (2, 3) and one_channel:
        images = array.reshape(-1, *shape)
    else:
        images = array[np.newaxis] if array.ndim == 3 else array
    if images.ndim != 4 or images.shape[1:] != shape or not len(images):
        raise DataError(f"{path}: its shape is {array.shape}, expected {shape}, or (N, {', '.join(map(str, shape))})")
    return images


def _require_range(path: Path, images: NDArray[Any], normalisation: Normalisation) -> None:
    """Raise DataError for pixels that no example of the dataset can have."""
    low, high = float(images.min()), float(images.max())
    least, most = (0.0, normalisation.scale) if normalisation.bounded else (-sys.float_info.max, sys.float_info.max)
    # Also false where a value is not a number.
    if not least <= low <= high <= most:
        expected = f"0 to {most:g}" if normalisation.bounded else "finite"
        raise DataError(
            f"{path}: its values are {low:g} to {high:g}; expected pixels as the dataset has them, {expected}, "
            "not normalised yet"
        )
