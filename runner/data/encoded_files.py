"""The base class of datasets whose images are decoded when a batch needs them."""

import logging
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from runner.bounds import Bounds, CountOrZero
from runner.data.dataset import Examples, Normalisation
from runner.data.decoder import Decoder
from runner.data.own_files import NormalisedFiles
from runner.data.preprocessing import ImagePreprocessing, PreprocessingSettings
from runner.errors import require

log = logging.getLogger(__name__)

MOST_MEASURED = 10_000
"""Largest number of train examples from which mean and standard deviation are computed, if they are not known."""


@dataclass
class EncodedFiles(NormalisedFiles):
    """Settings of images that are stored as JPEG or PNG files, or in records.

    size: side, in pixels, of the square images of a batch. channels: 3 for RGB, 1 for grey. preprocessing: conversion
    of images to this size. skip_errors: largest number of faulty records or undecodable images to skip with a warning.
    """

    size: Annotated[int, Bounds(1, 65_536)] = 32
    channels: Annotated[int, Bounds(1, 3)] = 3
    preprocessing: PreprocessingSettings = field(default_factory=PreprocessingSettings)
    skip_errors: CountOrZero = 0

    def __post_init__(self) -> None:
        require(self.channels in (1, 3), "data.channels", self.channels, "3 for colour or 1 for grey")
        self.image_preprocessing()
        super().__post_init__()

    @property
    def fits_images(self) -> bool:
        return True

    def image_preprocessing(self) -> ImagePreprocessing:
        """Return the preprocessing of encoded images. Raises ConfigError for invalid settings."""
        return ImagePreprocessing(self.preprocessing.recipe(self.size, self.channels))

    def known_normalisation(self) -> Normalisation | None:
        """Return the normalisation of the settings or of the preprocessing; None if both are unset."""
        return super().known_normalisation() or self.image_preprocessing().recipe.normalisation

    def normalisation_of_examples(self, train: Examples, preprocessing: ImagePreprocessing | None) -> Normalisation:
        """Return the known normalisation; without one, compute it so that train examples have mean 0 and std 1.

        At most ``MOST_MEASURED`` examples are read, spread evenly over the split, preprocessed as in evaluations.
        Raises DataError if an example cannot be read, too many images cannot be decoded, or a channel is constant.
        """
        if (known := self.known_normalisation()) is not None:
            return known
        count = min(len(train), MOST_MEASURED)
        measured = np.arange(count, dtype=np.int64) * len(train) // count
        advice = "data.mean and data.std avoid this"
        log.info("computing mean and deviation from %d of %d train examples; %s", count, len(train), advice)
        decoder = None if preprocessing is None else Decoder(preprocessing, self.skip_errors)

        def read(lo: int, hi: int) -> NDArray[Any]:
            found = train.take(measured[lo:hi])
            if decoder is None:
                return found["x"]
            images, decoded = decoder.evaluate(found)
            return images["x"][decoded]

        shape = read(0, 1).shape[1:]
        return self.normalisation_from(count, shape, read)
