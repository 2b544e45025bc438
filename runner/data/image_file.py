"""Reading one image file, which others may have written, as an array of one size."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from runner.errors import DataError

MOST_PIXELS = 1 << 26
"""Pixels of the largest file that is decoded: 64 megapixels, 256 MiB as RGBA."""

_FORMATS = ("PNG", "JPEG")
_MODES = {1: "L", 3: "RGB"}
# Others hold more than 8 bits of a colour, or inks.
_READABLE = ("1", "L", "LA", "P", "RGB", "RGBA")
_DAMAGE = (OSError, SyntaxError, ValueError, EOFError, struct.error, Image.DecompressionBombError)


def read_image(path: Path, channels: int, size: int) -> NDArray[np.uint8]:
    """Return a PNG or JPEG file as (channels, size, size); channels: 3 for RGB, 1 for grey (ITU-R 601-2 luma).

    It is turned upright as its EXIF data say, cut to its largest centred square and resized (bilinear, with
    antialiasing where it shrinks; not at all where it has that size). Opacity is dropped.
    Raises DataError, naming the file, for one that is damaged, too large or of more than 8 bits a colour.
    """
    try:
        with Image.open(path, formats=_FORMATS) as image:
            # Only the header is read yet.
            width, height = image.size
            if image.mode not in _READABLE or width * height > MOST_PIXELS:
                raise DataError(
                    f"{path} is {image.mode} of {width}x{height} pixels; expected {', '.join(_READABLE)} of at most "
                    f"{MOST_PIXELS:,} pixels; convert it, or take it out"
                )
            upright = ImageOps.exif_transpose(image).convert(_MODES[channels])
            fitted = ImageOps.fit(upright, (size, size), Image.Resampling.BILINEAR)
    except _DAMAGE as error:
        raise DataError(f"{path} cannot be decoded: {error}; replace it, or take it out") from error
    pixels = np.asarray(fitted, np.uint8)
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
