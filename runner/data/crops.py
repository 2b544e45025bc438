"""Random and fixed regions of images, computed from the size of an image and uniform draws."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

DRAWS_PER_ATTEMPT = 4


@dataclass(frozen=True)
class Region:
    """A rectangle of an image. The numbers are in pixels of the whole image and may be fractions of a pixel."""

    top: float
    left: float
    height: float
    width: float


@dataclass(frozen=True)
class ImageSize:
    """Height and width of an image in pixels."""

    height: int
    width: int

    @property
    def shorter(self) -> int:
        """The length of the shorter side."""
        return min(self.height, self.width)


def centred(image: ImageSize, height: float, width: float) -> Region:
    """Return the region of this height and width in the centre of an image."""
    return Region((image.height - height) / 2, (image.width - width) / 2, height, width)


def central_fraction(image: ImageSize, fraction: float) -> Region:
    """Return the centre of an image with this fraction of each side (the evaluation of Inception: 0.875)."""
    return centred(image, image.height * fraction, image.width * fraction)


def central_square(image: ImageSize, shorter_side: int, size: int) -> Region:
    """Return the central ``size`` x ``size`` pixels of the image whose shorter side is resized to ``shorter_side``."""
    side = size * image.shorter / shorter_side
    return centred(image, side, side)


def random_square(
    image: ImageSize, sides: tuple[int, int], size: int, draws: NDArray[np.float64], *, of_square: bool = False
) -> Region:
    """Return a random ``size`` x ``size`` square of the image after its shorter side was resized to a random length.

    sides: the shortest and the longest length; all integers from one to the other are equally likely. draws: (3,) for
    length, row and column. of_square: whether to crop the central square of the resized image first. Scale
    augmentation: Simonyan and Zisserman 2015, section 3.1; of_square: Krizhevsky et al. 2012, section 4.1.
    """
    shorter = sides[0] + int(draws[0] * (sides[1] - sides[0] + 1))
    scale = image.shorter / shorter
    height, width = (shorter,) * 2 if of_square else (round(side / scale) for side in (image.height, image.width))
    row, column = int(draws[1] * (height - size + 1)), int(draws[2] * (width - size + 1))
    # Rounding of a side can move a region out of the image by less than a pixel.
    top = (image.height - height * scale) / 2 if of_square else 0.0
    left = (image.width - width * scale) / 2 if of_square else 0.0
    side = size * scale
    top, left = min(top + row * scale, image.height - side), min(left + column * scale, image.width - side)
    return Region(top, left, side, side)


def random_area(
    image: ImageSize,
    area: tuple[float, float],
    aspect: tuple[float, float],
    draws: NDArray[np.float64],
    boxes: NDArray[np.float32] | None = None,
    covered: float = 0.0,
) -> Region | None:
    """Return a random region by area and aspect ratio; None if no attempt succeeds.

    area: smallest and largest fraction of the image's area. aspect: smallest and largest width / height. draws: (4 A,)
    for A attempts. boxes: (K, 4) as in :class:`~runner.data.dataset.EncodedImage`; None or K = 0 for the whole image.
    covered: the region must contain this fraction of at least one box of a pixel or more.

    Szegedy et al. 2015, section 6, with the procedure of TensorFlow's op SampleDistortedBoundingBox: the aspect ratio
    is uniform, then the height is uniform among the integers for which the area is allowed, then the place is uniform.
    """
    for attempt in draws.reshape(-1, DRAWS_PER_ATTEMPT):
        ratio = aspect[0] + attempt[0] * (aspect[1] - aspect[0])
        if (found := _of_area(image, area, ratio, attempt[1:])) is not None and _covers(found, image, boxes, covered):
            return found
    return None


def _of_area(image: ImageSize, area: tuple[float, float], ratio: float, draws: NDArray[np.float64]) -> Region | None:
    least, most = (fraction * image.height * image.width for fraction in area)
    low = round(math.sqrt(least / ratio))
    high = min(round(math.sqrt(most / ratio)), image.height, int((image.width + 0.5 - 1e-7) / ratio))
    height = high if low >= high else low + int(draws[0] * (high - low + 1))
    width = round(height * ratio)
    # Rounding can leave the area just outside of its bounds.
    if width * height < least:
        height += 1
    elif width * height > most:
        height -= 1
    width = round(height * ratio)
    if not (least <= width * height <= most and 0 < height <= image.height and 0 < width <= image.width):
        return None
    top, left = int(draws[1] * (image.height - height + 1)), int(draws[2] * (image.width - width + 1))
    return Region(top, left, height, width)


def _covers(region: Region, image: ImageSize, boxes: NDArray[np.float32] | None, covered: float) -> bool:
    if covered <= 0.0:
        return True
    given = np.array([[0.0, 0.0, 1.0, 1.0]]) if boxes is None or not len(boxes) else boxes.astype(np.float64)
    top, left, bottom, right = (given * [image.height, image.width, image.height, image.width]).T
    height = np.minimum(bottom, region.top + region.height) - np.maximum(top, region.top)
    width = np.minimum(right, region.left + region.width) - np.maximum(left, region.left)
    shared, areas = np.maximum(height, 0) * np.maximum(width, 0), (bottom - top) * (right - left)
    return bool(((areas >= 1.0) & (shared >= covered * areas)).any())


def ten_views(image: ImageSize, shorter_side: int, size: int) -> list[tuple[Region, bool]]:
    """Return (region, is mirrored) for each view of the 10-view test (Krizhevsky et al. 2012, section 4.1).

    The views are the four corners and the centre of the central square of ``shorter_side`` pixels, and their mirrors.
    """
    scale = image.shorter / shorter_side
    square = centred(image, image.shorter, image.shorter)
    last = shorter_side - size
    places = [(0, 0), (0, last), (last, 0), (last, last), (last / 2, last / 2)]
    regions = [
        Region(square.top + row * scale, square.left + column * scale, size * scale, size * scale)
        for row, column in places
    ]
    return [(region, mirrored) for mirrored in (False, True) for region in regions]
