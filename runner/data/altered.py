"""Fixed changes of stored images that make one domain into another: another size, inverted intensities, and noise."""

import numpy as np
from numpy.typing import NDArray

from runner.kernels import philox

Images = NDArray[np.uint8]

_IMAGES_AT_ONCE = 1000
"""The number of images whose noise is drawn in one call, which bounds the working memory."""


def resized(images: Images, size: int) -> Images:
    """Return images (N, C, H, W) as (N, C, size, size), by bilinear interpolation, with antialiasing if they shrink."""
    if images.shape[2:] == (size, size):
        return images
    # Imported here, because most runs resize no images and need no Pillow.
    from PIL import Image

    flat = images.reshape(-1, *images.shape[2:])
    found = np.empty((len(flat), size, size), np.uint8)
    for place, image in zip(found, flat, strict=True):
        place[...] = np.asarray(Image.fromarray(image).resize((size, size), Image.Resampling.BILINEAR))
    return found.reshape(*images.shape[:2], size, size)


def noisy(images: Images, deviation: float, stream: str) -> Images:
    """Return images (N, ...) with independent normal noise, rounded and limited to 0..255.

    deviation: the standard deviation as a fraction of 255. The noise is a pure function of ``stream`` and position.
    """
    pixels = int(np.prod(images.shape[1:]))
    found, key = np.empty_like(images), philox.key(0, stream)
    for start in range(0, len(images), _IMAGES_AT_ONCE):
        part = images[start : start + _IMAGES_AT_ONCE]
        draws = philox.uniform(key, np.arange(start, start + len(part), dtype=np.int64), 2 * pixels)
        normal = np.sqrt(-2.0 * np.log1p(-draws[:, :pixels])) * np.cos(2.0 * np.pi * draws[:, pixels:])
        changed = part + (255.0 * deviation) * normal.reshape(part.shape)
        found[start : start + len(part)] = np.rint(changed).clip(0, 255)
    return found


def altered(images: Images, *, size: int | None, invert: bool, noise: float, stream: str) -> Images:
    """Return images (N, C, H, W) in another size, then inverted, then with noise; see :func:`noisy` for ``stream``."""
    if size is not None:
        images = resized(images, size)
    if invert:
        images = 255 - images
    return noisy(images, noise, stream) if noise else images
