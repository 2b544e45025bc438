"""Decoding of a region of an encoded image to a given size, by libjpeg-turbo if possible."""

import io
import logging
import math
from functools import lru_cache

import numpy as np
import simplejpeg
from numpy.typing import NDArray
from PIL import Image

from runner.data.crops import ImageSize, Region
from runner.data.dataset import EncodedImage, UndecodableImageError
from runner.data.pictures import MODES, MOST_PIXELS, upright_image
from runner.data.resizing import Box, resized

log = logging.getLogger(__name__)

RGB = 3
_JPEG_COLOURS = {1: "GRAY", RGB: "RGBX"}
_LEAST_REDUCTION = 2
"""The smallest reduction of both sides with which libjpeg-turbo decodes faster than at full size."""
_EXIF = b"Exif\x00\x00"


class OpenedImage:
    """An encoded image whose size is known, and whose regions can be decoded.

    A JPEG image is decoded by libjpeg-turbo. If the region is resized to few enough pixels, the image is decoded at
    half of its size or less. This reduction is part of the inverse cosine transform and saves most of the work.
    Reductions to 5/8, 6/8 and 7/8 take longer than decoding at full size, because libjpeg-turbo has no vector
    instructions for them. The whole image is decoded, because simplejpeg cannot decode a part. Pillow decodes other
    files, CMYK images, and images with EXIF data, which may be rotated.
    """

    def __init__(self, image: EncodedImage, channels: int) -> None:
        """Read the header. channels: 3 for RGB or 1 for grey. Raises UndecodableImageError."""
        self._image = image
        self._channels = channels
        self._pillow: Image.Image | None = None
        content = image.content
        if content[:2] == b"\xff\xd8" and _EXIF not in content:
            try:
                height, width, colours, _ = simplejpeg.decode_jpeg_header(content)
            except ValueError as error:
                raise self._damaged(error) from error
            if height * width > MOST_PIXELS:
                expected = f"at most {MOST_PIXELS:,} pixels; remove it"
                raise UndecodableImageError(f"{image.where} is of {width}x{height} pixels; expected {expected}")
            if colours in ("Gray", "YCbCr", "RGB"):
                self.size = ImageSize(height, width)
                return
            _log_once(image.where, colours)
        self._pillow = upright_image(io.BytesIO(content), image.where, inks=True).convert(MODES[channels])
        self.size = ImageSize(self._pillow.height, self._pillow.width)

    def region(self, region: Region, height: int, width: int, *, mirrored: bool = False) -> NDArray[np.uint8]:
        """Return a region, resized by antialiased bilinear interpolation, as (C, height, width).

        mirrored: whether to exchange left and right.
        """
        if self._pillow is not None:
            whole = self._pillow
        else:
            pixels = self._decoded(height / region.height, width / region.width)
            if self._channels == RGB:
                box = self._box(region, *pixels.shape[:2])
                return resized(pixels, box, height, width, mirrored=mirrored)[:, :, :RGB].transpose(2, 0, 1)
            whole = Image.fromarray(pixels[:, :, 0])
        box = self._box(region, whole.height, whole.width)
        image = whole.resize((width, height), Image.Resampling.BILINEAR, box)
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if mirrored else image
        return np.asarray(image, np.uint8).reshape(height, width, self._channels).transpose(2, 0, 1)

    def _box(self, region: Region, height: int, width: int) -> Box:
        """Return a region in pixels of the image after its reduction to ``height`` and ``width``."""
        down, across = height / self.size.height, width / self.size.width
        top, left = max(region.top * down, 0.0), max(region.left * across, 0.0)
        bottom, right = (region.top + region.height) * down, (region.left + region.width) * across
        return left, top, min(right, width), min(bottom, height)

    def _decoded(self, down: float, across: float) -> NDArray[np.uint8]:
        """Return the whole image (H, W, 4) or, if it is grey, (H, W, 1).

        The image may be reduced, but not below ``down`` times its full height and ``across`` times its full width.
        """
        least_height, least_width = (
            min(math.ceil(side * min(factor, 1.0)), side)
            for side, factor in ((self.size.height, down), (self.size.width, across))
        )
        try:
            pixels: NDArray[np.uint8] = simplejpeg.decode_jpeg(
                self._image.content,
                _JPEG_COLOURS[self._channels],
                min_height=least_height,
                min_width=least_width,
                min_factor=_LEAST_REDUCTION,
            )
        except ValueError as error:
            raise self._damaged(error) from error
        return pixels

    def _damaged(self, error: ValueError) -> UndecodableImageError:
        return UndecodableImageError(f"{self._image.where} cannot be decoded: {error}; replace or remove it")


@lru_cache(maxsize=1024)
def _log_once(where: str, colours: str) -> None:
    log.info("%s: its colours are %s, so it is decoded by Pillow", where, colours)
