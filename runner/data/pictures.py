"""The user's image files (PNG, JPEG and NumPy arrays), read as arrays of one shape."""

import struct
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from runner.data.dataset import Normalisation, UndecodableImageError
from runner.data.npz import DAMAGE
from runner.errors import DataError
from runner.system.files import open_regular

MOST_PIXELS = 1 << 26
"""Largest accepted number of pixels of an image: 64 megapixels, 256 MiB as RGBA."""

_FORMATS = ("PNG", "JPEG")
MODES = {1: "L", 3: "RGB"}
"""Channels -> Pillow's mode."""
# The accepted Pillow modes. Other modes have more than 8 bits per colour, or other channels, such as the inks of CMYK.
_READABLE = ("1", "L", "LA", "P", "RGB", "RGBA")
_LOSSLESS = {"L": ("1", "L"), "RGB": ("1", "L", "P", "RGB")}
"""Mode -> the modes from which Pillow converts to it without loss."""
_DAMAGE = (OSError, SyntaxError, ValueError, EOFError, struct.error, Image.DecompressionBombError)


def read_image(path: Path, shape: tuple[int, int, int], *, fit: bool = True) -> NDArray[np.uint8]:
    """Return a PNG or JPEG image in ``shape`` (C, H, W), where C is 3 for RGB or 1 for grey (ITU-R 601-2 luma).

    The image is rotated according to its EXIF data, cropped to the largest centred part with the requested aspect ratio
    and resized, if necessary, by bilinear interpolation, with antialiasing if it shrinks. An alpha channel is dropped.
    fit: False to refuse an image that would be cropped or resized, or would lose colours or alpha.
    Raises DataError, naming the file, if the image is damaged, too large or has more than 8 bits per colour.
    """
    try:
        with open_regular(path) as file:
            return fitted_image(file, str(path), shape, fit=fit)
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except OSError as error:
        raise DataError(f"{path} cannot be decoded: {error}; replace or remove it") from error


def fitted_image(
    file: BinaryIO, where: str, shape: tuple[int, int, int], *, fit: bool = True, inks: bool = False
) -> NDArray[np.uint8]:
    """Return the image in an open file like :func:`read_image`. where, inks: see :func:`upright_image`."""
    channels, height, width = shape
    mode = MODES[channels]
    upright = upright_image(file, where, inks=inks)
    if not fit:
        _require_fitting(where, upright, mode, (width, height))
    fitted = ImageOps.fit(upright.convert(mode), (width, height), Image.Resampling.BILINEAR)
    return np.asarray(fitted, np.uint8).reshape(height, width, channels).transpose(2, 0, 1)


def upright_image(file: BinaryIO, where: str, *, inks: bool = False) -> Image.Image:
    """Return a decoded PNG or JPEG image, rotated according to its EXIF data. where: its name, for messages.

    inks: whether to accept CMYK images, which lose accuracy if they are converted to RGB without a colour profile.
    Raises UndecodableImageError if it is damaged, too large or has more than 8 bits per colour.
    """
    try:
        with Image.open(file, formats=_FORMATS) as image:
            # Up to here, Pillow has read only the header.
            _require_readable(where, image, (*_READABLE, "CMYK") if inks else _READABLE)
            upright = ImageOps.exif_transpose(image)
            upright.load()
            return upright
    except UnidentifiedImageError:
        fault = f"cannot identify image file, expected {' or '.join(_FORMATS)}; replace it"
        raise UndecodableImageError(f"{where} cannot be decoded: {fault}") from None
    except _DAMAGE as error:
        raise UndecodableImageError(f"{where} cannot be decoded: {error}; replace or remove it") from error


def _require_readable(where: str, image: Image.Image, modes: tuple[str, ...]) -> None:
    if image.mode not in modes or image.width * image.height > MOST_PIXELS:
        advice = f"expected mode {', '.join(modes)} and at most {MOST_PIXELS:,} pixels; convert or remove it"
        raise UndecodableImageError(f"{where} is a {image.mode} image of {image.width}x{image.height} pixels; {advice}")


def _require_fitting(where: str, image: Image.Image, mode: str, size: tuple[int, int]) -> None:
    """Raise DataError if an image is not of ``size`` (width, height), or if conversion to ``mode`` would change it."""
    faults = []
    if image.size != size:
        faults.append(f"it is {image.width} x {image.height} pixels, the network takes {size[0]} x {size[1]}")
    if image.mode not in _LOSSLESS[mode]:
        faults.append(f"its pixels are {image.mode}, the network takes {mode}")
    if faults:
        raise DataError(f"{where}: {'; '.join(faults)}. Convert it with --resize, or beforehand")


IMAGES = (".png", ".jpg", ".jpeg")
ARRAYS = (".npy",)


@dataclass(frozen=True)
class Picture:
    """One image.

    label: the path of the file, followed by the image's index if the file has several images. pixels: (C, H, W), of any
    numeric dtype, in the range of the dataset's pixels (see :func:`read_pictures`); or one input that is not an image.
    """

    label: str
    pixels: NDArray[Any]


def read_pictures(
    paths: Sequence[Path], shape: tuple[int, ...], normalisation: Normalisation, *, fit: bool
) -> list[Picture]:
    """Read inputs of ``shape``, such as images (C, H, W), for a network whose dataset has this ``normalisation``.

    Pixels of PNG and JPEG files are scaled to the range of the dataset's pixels, 0 to ``normalisation.scale``; if the
    dataset's pixels have no bounds, only arrays are accepted. An array must have values in this range, and the shape
    (C, H, W) or (N, C, H, W), or, for one channel, (H, W) or (N, H, W). Inputs other than images are read from arrays
    only. fit: whether to convert PNG and JPEG files to the given size and channels, or to refuse others.

    Raises DataError, with the reason, for a file that cannot be read or does not fit.
    """
    return [picture for path in paths for picture in _read(path, shape, normalisation, fit)]


def _read(path: Path, shape: tuple[int, ...], normalisation: Normalisation, fit: bool) -> Iterator[Picture]:
    suffix = path.suffix.lower()
    if suffix in IMAGES:
        image = _image_shape(path, shape, normalisation)
        yield Picture(str(path), read_image(path, image, fit=fit) * (normalisation.scale / 255.0))
    elif suffix in ARRAYS:
        images = _array(path, shape)
        _require_range(path, images, normalisation)
        for number, pixels in enumerate(images):
            yield Picture(f"{path}[{number}]" if len(images) > 1 else str(path), pixels)
    else:
        raise DataError(f"{path}: expected a file that ends in {', '.join(IMAGES + ARRAYS)}")


def _image_shape(path: Path, shape: tuple[int, ...], normalisation: Normalisation) -> tuple[int, int, int]:
    """Return (C, H, W). Raises DataError if no PNG or JPEG file can be an input of the network."""
    if len(shape) != 3:
        raise DataError(f"{path}: the network takes inputs of shape {shape}, which are not images; use arrays (.npy)")
    channels, height, width = shape
    if channels not in MODES:
        raise DataError(f"{path}: the network takes {channels} channels, an image has 1 or 3; use arrays (.npy)")
    if not normalisation.bounded:
        fault = "an image has pixels of 0 to 255, the network was trained on numbers of any range"
        raise DataError(f"{path}: {fault}; use arrays (.npy) like its training data")
    return channels, height, width


def _array(path: Path, shape: tuple[int, ...]) -> NDArray[Any]:
    """Return the inputs (N, ...) of an array file. Arrays of objects, which are pickles, are refused."""
    try:
        with open_regular(path) as file:
            array = np.load(file, allow_pickle=False)
    except DAMAGE as error:
        raise DataError(f"{path}: cannot be read as a NumPy array: {error}") from error
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "uif":
        raise DataError(f"{path}: expected one array of numbers, found {getattr(array, 'dtype', 'several arrays')}")
    one_channel = len(shape) == 3 and shape[0] == 1 and array.shape[-2:] == shape[1:]
    if array.ndim in (2, 3) and one_channel:
        images = array.reshape(-1, *shape)
    else:
        images = array[np.newaxis] if array.ndim == len(shape) else array
    if images.shape[1:] != shape or not len(images):
        raise DataError(f"{path}: its shape is {array.shape}, expected {shape}, or (N, {', '.join(map(str, shape))})")
    return images


def _require_range(path: Path, images: NDArray[Any], normalisation: Normalisation) -> None:
    """Raise DataError for pixels outside the range of the dataset's pixels."""
    low, high = float(images.min()), float(images.max())
    least, most = (0.0, normalisation.scale) if normalisation.bounded else (-sys.float_info.max, sys.float_info.max)
    # NaN fails this comparison too.
    if not least <= low <= high <= most:
        expected = f"0 to {most:g}" if normalisation.bounded else "finite"
        advice = f"expected pixels as in the dataset, {expected}, not normalised"
        raise DataError(f"{path}: its values are {low:g} to {high:g}; {advice}")
