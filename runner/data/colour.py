"""Random distortions of the colours of an image, each computed from uniform draws.

An image is (3, H, W), float32 of 0 to 1 or uint8 of 0 to 255. The result is float32 of 0 to 1.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from runner.data.compiled import can_compile

Pixels: TypeAlias = NDArray[np.float32]
Image: TypeAlias = NDArray[np.float32] | NDArray[np.uint8]
Draws: TypeAlias = NDArray[np.float64]

_BRIGHTNESS = 32 / 255
# Eigenvalues and eigenvectors (columns) of the covariance of the RGB values of ImageNet's pixels, scaled to 0 to 1.
_EIGENVALUES = np.array([0.2175, 0.0188, 0.0045])
_EIGENVECTORS = np.array([[-0.5675, 0.7192, 0.4009], [-0.5808, -0.0045, -0.8140], [-0.5836, -0.6948, 0.4203]])
_PCA_SCALE = 0.1


def _between(low: float, high: float, draw: float) -> float:
    """Return a number from low to high, rounded to float32."""
    return float(np.float32(low + (high - low) * draw))


def _shift(pixels: Pixels, *amounts: np.float32) -> Pixels:
    return pixels + np.reshape(amounts, (3, 1, 1))


def _contrast(pixels: Pixels, factor: np.float32) -> Pixels:
    mean = pixels.mean(axis=(1, 2), keepdims=True, dtype=np.float64).astype(np.float32)
    changed: Pixels = (pixels - mean) * factor + mean
    return changed


def _saturation(pixels: Pixels, factor: np.float32) -> Pixels:
    """Multiply the saturation of the HSV model. Only distances from the largest channel change."""
    red, green, blue = pixels
    largest = np.maximum(np.maximum(red, green), blue)
    spread = largest - np.minimum(np.minimum(red, green), blue)
    # A saturation, spread / largest, cannot exceed 1.
    possible = largest / np.maximum(spread, np.float32(1e-30))
    changed: Pixels = pixels - largest
    changed *= np.minimum(factor, possible)
    changed += largest
    return changed


def _hue(pixels: Pixels, sixths: np.float32) -> Pixels:
    """Rotate the hue of the HSV model by a number of sixths of the circle."""
    red, green, blue = pixels
    largest = np.maximum(np.maximum(red, green), blue)
    smallest = np.minimum(np.minimum(red, green), blue)
    spread = largest - smallest
    # The hue in sixths of the circle, before it is rotated; 0 for grey pixels, whose spread is 0.
    is_red, is_green = largest == red, largest == green
    sixth = np.where(is_red, green - blue, np.where(is_green, blue - red, red - green))
    sixth /= np.maximum(spread, np.float32(1e-30))
    sixth += np.where(is_red, np.float32(0), np.where(is_green, np.float32(2), np.float32(4)))
    sixth += sixths
    sixth -= 6 * np.floor(sixth / 6)
    changed = np.empty_like(pixels)
    for channel, centre, sign, offset in ((0, 3, 1, -1), (1, 2, -1, 2), (2, 4, -1, 2)):
        # The part of the spread that is added to the smallest channel: a trapezium over the circle.
        part = np.abs(sixth - np.float32(centre), out=changed[channel])
        part *= sign
        part += offset
        np.clip(part, 0, 1, out=part)
        part *= spread
        part += smallest
    return changed


_CHANGES: Mapping[str, Callable[..., Pixels]] = {
    "shift": _shift,
    "saturation": _saturation,
    "hue": _hue,
    "contrast": _contrast,
}
"""Name of a change, the same as in the machine code -> function of pixels and amounts."""
_ORDERS = (
    ("brightness", "saturation", "hue", "contrast"),
    ("saturation", "brightness", "contrast", "hue"),
    ("contrast", "hue", "brightness", "saturation"),
    ("hue", "saturation", "contrast", "brightness"),
)


def full(image: Image, draws: Draws) -> Pixels:
    """Change brightness, saturation, hue and contrast, and clip. draws: (5,); the first one selects one of four orders.

    Preprocessing of Inception in TensorFlow's models: brightness by up to 32/255, saturation and contrast by factors of
    0.5 to 1.5, hue by up to 0.2 of the circle.
    """
    order = _ORDERS[int(4 * draws[0])]
    return _changed(image, [_amounts(name, draw) for name, draw in zip(order, draws[1:], strict=True)])


def _scaled(image: Image) -> Pixels:
    """Return an image as float32 of 0 to 1."""
    if image.dtype == np.uint8:
        return np.multiply(image, np.float32(1 / 255), order="C")
    return image.astype(np.float32, copy=False)


def _amounts(name: str, draw: float) -> tuple[str, tuple[float, ...]]:
    """Return a change of the distortion "full" as a name in ``_CHANGES`` and its amounts."""
    if name == "brightness":
        return "shift", (_between(-_BRIGHTNESS, _BRIGHTNESS, draw),) * 3
    return name, (6 * _between(-0.2, 0.2, draw) if name == "hue" else _between(0.5, 1.5, draw),)


def _changed(image: Image, changes: Sequence[tuple[str, tuple[float, ...]]]) -> Pixels:
    """Return an image after all changes, clipped to 0 to 1."""
    if can_compile():
        from runner.kernels.cpu.machine_code import colours

        return colours.changed(image, changes)
    pixels = _scaled(image)
    for name, amounts in changes:
        pixels = _CHANGES[name](pixels, *map(np.float32, amounts))
    clipped: Pixels = np.clip(pixels, 0, 1)
    return clipped


def fast(image: Image, draws: Draws) -> Pixels:
    """Shift brightness and the two colour differences of YCbCr, and clip. draws: (3,).

    The fast distortion of the guide to Inception v3 on Cloud TPU: Cb and Cr by up to 0.1, brightness by up to 32/255.
    """
    brightness = _between(-_BRIGHTNESS, _BRIGHTNESS, draws[0])
    blue, red = (_between(-0.1, 0.1, draw) for draw in draws[1:])
    shift = np.array([1.402 * red, -0.344136 * blue - 0.714136 * red, 1.772 * blue]) + brightness
    return _changed(image, [("shift", tuple(shift.tolist()))])


def pca(image: Image, draws: Draws) -> Pixels:
    """Add normal noise along the principal components of colours. draws: (4,).

    The standard deviations are 0.1 times the eigenvalues (Krizhevsky et al. 2012, section 4.1). Nothing is clipped.
    """
    radius, angle = np.sqrt(-2 * np.log1p(-draws[:2])), 2 * np.pi * draws[2:]
    normal = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:3]
    shift = _EIGENVECTORS @ (_PCA_SCALE * normal * _EIGENVALUES)
    return _shift(_scaled(image), *shift.astype(np.float32))


@dataclass(frozen=True)
class Distortion:
    """A distortion of colours. draws: the number of draws that it needs for an image."""

    draws: int
    apply: Callable[[Image, Draws], Pixels]


DISTORTIONS = {"full": Distortion(5, full), "fast": Distortion(3, fast), "pca": Distortion(4, pca)}
"""Distortions by their names in the configuration."""
