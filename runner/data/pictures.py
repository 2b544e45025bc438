"""Images of the user's own, from files, as a network takes them: PNG, JPEG, and NumPy arrays."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from runner.data.dataset import Normalisation
from runner.errors import DataError

IMAGES = (".png", ".jpg", ".jpeg")
ARRAYS = (".npy",)
_MODES = {1: "L", 3: "RGB"}
"""Channels of the network -> Pillow's mode of its images."""
_LOSSLESS = {"L": ("1", "L"), "RGB": ("1", "L", "P", "RGB")}
"""Mode -> those that become it without loss."""
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
    paths: Sequence[Path], shape: tuple[int, int, int], normalisation: Normalisation, *, resize: bool
) -> list[Picture]:
    """Read images of ``shape`` (C, H, W); ``normalisation`` is that of the network's dataset.

    Images from PNG and JPEG have 0 to 255 as their range. Arrays have that of the dataset: (H, W) for one channel,
    (C, H, W) or (N, C, H, W). resize: bring images, not arrays, to the size and the channels that are wanted.

    Raises DataError, with the reason, for a file that cannot be read or does not fit.
    """
    return [picture for path in paths for picture in _read(path, shape, normalisation.scale, resize)]


def _read(path: Path, shape: tuple[int, int, int], scale: float, resize: bool) -> Iterator[Picture]:
    suffix = path.suffix.lower()
    if suffix in IMAGES:
        yield Picture(str(path), _image(path, shape, resize) * (scale / _LARGEST_BYTE))
    elif suffix in ARRAYS:
        images = _array(path, shape, scale)
        for number, pixels in enumerate(images):
            yield Picture(f"{path}[{number}]" if len(images) > 1 else str(path), pixels)
    else:
        raise DataError(f"{path}: expected a file that ends in {', '.join(IMAGES + ARRAYS)}")


def _image(path: Path, shape: tuple[int, int, int], resize: bool) -> NDArray[Any]:
    """Return the pixels (C, H, W), 0 to 255, of an image file."""
    channels, height, width = shape
    if channels not in _MODES:
        raise DataError(f"{path}: the network takes {channels} channels, an image has 1 or 3; give it arrays (.npy)")
    try:
        with Image.open(path, formats=("PNG", "JPEG")) as opened:
            image = _fitted(path, opened, _MODES[channels], (width, height), resize)
            pixels = np.asarray(image)
    except (OSError, UnidentifiedImageError, SyntaxError, Image.DecompressionBombError) as error:
        raise DataError(f"{path}: cannot be read as PNG or JPEG: {error}") from error
    return pixels.reshape(height, width, channels).transpose(2, 0, 1)


def _fitted(path: Path, image: Image.Image, mode: str, size: tuple[int, int], resize: bool) -> Image.Image:
    """Return the image in the mode and size (width, height) that are wanted."""
    faults = []
    if image.size != size:
        faults.append(f"it is {image.width} x {image.height} pixels, the network takes {size[0]} x {size[1]}")
    if image.mode not in _LOSSLESS[mode]:
        faults.append(f"its pixels are {image.mode}, the network takes {mode}")
    if faults and not resize:
        raise DataError(f"{path}: {'; '.join(faults)}. Bring it to that with --resize, or beforehand")
    converted = image.convert(mode)
    return converted if image.size == size else converted.resize(size)


def _array(path: Path, shape: tuple[int, int, int], scale: float) -> NDArray[Any]:
    """Return the images (N, C, H, W) of an array file. No pickles: an object array is refused."""
    try:
        array = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"{path}: cannot be read as a NumPy array: {error}") from error
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "uif":
        raise DataError(f"{path}: expected one array of numbers, found {getattr(array, 'dtype', 'several arrays')}")
    images = array[np.newaxis] if array.ndim == 3 else array
    if array.ndim == 2 and shape[0] == 1:
        images = array[np.newaxis, np.newaxis]
    if images.ndim != 4 or images.shape[1:] != shape or not len(images):
        raise DataError(f"{path}: its shape is {array.shape}, expected {shape}, or (N, {', '.join(map(str, shape))})")
    low, high = float(images.min()), float(images.max())
    # Also false where a value is not a number.
    if not 0.0 <= low <= high <= scale:
        raise DataError(
            f"{path}: its values are {low:g} to {high:g}; expected pixels as the dataset has them, 0 to {scale:g}, "
            "not normalised yet"
        )
    return images
