"""Random crops and mirror images for the train split."""

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from runner.bounds import Bounds

DRAWS_PER_IMAGE = 3


@dataclass
class Augment:
    """Random changes of each train image.

    crop_padding: width of a black border, stored value 0, added to the image before it is cropped to its size at a
    random place; 0: no crop. flip: mirror each image left to right with probability 1/2.
    """

    crop_padding: Annotated[int, Bounds(0, 65_536)] = 0
    flip: bool = False

    @property
    def active(self) -> bool:
        """Whether images are changed."""
        return self.crop_padding > 0 or self.flip

    def apply(self, images: NDArray[Any], draws: NDArray[np.float64]) -> NDArray[Any]:
        """Return ``images`` (S, C, H, W) changed by ``draws`` (S, 3) in [0, 1): row, column, mirror."""
        if self.crop_padding:
            images = _crop(images, self.crop_padding, draws[:, :2])
        if self.flip:
            images = np.where(draws[:, 2, None, None, None] < 0.5, images[..., ::-1], images)
        return images


def _crop(images: NDArray[Any], padding: int, draws: NDArray[np.float64]) -> NDArray[Any]:
    height, width = images.shape[2:]
    border = (padding, padding)
    padded = np.pad(images, ((0, 0), (0, 0), border, border))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (height, width), axis=(2, 3))
    row, column = (draws * (2 * padding + 1)).astype(np.int64).T
    return windows[np.arange(len(images)), :, row, column]
