"""Reading one image file, which others may have written, as an array of one shape."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from runner.errors import DataError
from runner.system.files import open_regular

MOST_PIXELS = 1 << 26
"""Pixels of the largest file that is decoded: 64 megapixels, 256 MiB as RGBA."""

_FORMATS = ("PNG", "JPEG")
_MODES = {1: "L", 3: "RGB"}
"""Channels -> Pillow's mode of such images."""
# Others hold more than 8 bits of a colour, or inks.
_READABLE = ("1", "L", "LA", "P", "RGB", "RGBA")
_LOSSLESS = {"L": ("1", "L"), "RGB": ("1", "L", "P", "RGB")}
"""Mode -> those that become it without loss."""
_DAMAGE = (OSError, SyntaxError, ValueError, EOFError, struct.error, Image.DecompressionBombError)


def read_image(path: Path, shape: tuple[int, int, int], *, fit: bool = True) -> NDArray[np.uint8]:
    """Return a PNG or JPEG file as ``shape`` (C, H, W), of 3 channels for RGB or 1 for grey (ITU-R 601-2 luma).

    It is turned upright as its EXIF data say, cut to its largest centred part of that shape and resized (bilinear, with
    antialiasing where it shrinks; not at all where it has that size). Opacity is dropped.
    fit: False to refuse an image that is cut, resized or loses colours or opacity on the way.
    Raises DataError, naming the file, for one that is damaged, too large or of more than 8 bits a colour.
    """
    channels, height, width = shape
    mode = _MODES[channels]
    try:
        with open_regular(path) as file, Image.open(file, formats=_FORMATS) as image:
            # Only the header is read yet.
            _require_readable(path, image)
            upright = ImageOps.exif_transpose(image)
            if not fit:
                _require_fitting(path, upright, mode, (width, height))
            fitted = ImageOps.fit(upright.convert(mode), (width, height), Image.Resampling.BILINEAR)
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except _DAMAGE as error:
        raise DataError(f"{path} cannot be decoded: {error}; replace it, or take it out") from error
    return np.asarray(fitted, np.uint8).reshape(height, width, channels).transpose(2, 0, 1)


def _require_readable(path: Path, image: Image.Image) -> None:
    if image.mode not in _READABLE or image.width * image.height > MOST_PIXELS:
        raise DataError(
            f"{path} is {image.mode} of {image.width}x{image.height} pixels; expected {', '.join(_READABLE)} of at "
            f"most {MOST_PIXELS:,} pixels; convert it, or take it out"
        )


def _require_fitting(path: Path, image: Image.Image, mode: str, size: tuple[int, int]) -> None:
    """Raise DataError for an image that is not of the size (width, height), or loses something in the mode."""
    faults = []
    if image.size != size:
        faults.append(f"it is {image.width} x {image.height} pixels, the network takes {size[0]} x {size[1]}")
    if image.mode not in _LOSSLESS[mode]:
        faults.append(f"its pixels are {image.mode}, the network takes {mode}")
    if faults:
        raise DataError(f"{path}: {'; '.join(faults)}. Bring it to that with --resize, or beforehand")
