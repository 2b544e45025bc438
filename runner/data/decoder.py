"""The stage of a pipeline that turns encoded images into arrays of one shape."""

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runner.data.dataset import EncodedImage, Examples, Integers, Preprocessing, UndecodableImageError
from runner.errors import DataError
from runner.kernels import philox

log = logging.getLogger(__name__)

_Batch = Mapping[str, NDArray[Any]]


class Decoder:
    """A decoder of the images of a dataset, which counts the images that cannot be decoded.

    In a train batch, the following example of the split replaces an undecodable example, so the batch remains a pure
    function of the step. In an evaluation, an undecodable image counts as padding.
    """

    def __init__(self, preprocessing: Preprocessing, tolerated: int, key: philox.Key = (0, 0)) -> None:
        """tolerated: largest number of undecodable images. key: key of the random draws; evaluations need no draws."""
        self._preprocessing = preprocessing
        self._key = key
        self._tolerated = tolerated
        self._skipped: set[str] = set()
        self._lock = threading.Lock()

    def train(self, split: Examples, found: _Batch, examples: Integers, positions: Integers, step: int) -> _Batch:
        """Return the fields of train examples with distorted images x (S, C, H, W).

        found: the fields of ``examples`` (S,), indices in ``split``. positions: (S,) in the stream of a run. Raises
        UndecodableImageError if more images cannot be decoded than are tolerated.
        """
        draws = philox.uniform(self._key, positions, self._preprocessing.draws, step)
        fields = {name: values.copy() for name, values in found.items() if name != "x"}
        return {**fields, "x": self._stacked(len(draws), self._distorted(split, found, examples, draws, fields))}

    def _distorted(
        self,
        split: Examples,
        found: _Batch,
        examples: Integers,
        draws: NDArray[np.float64],
        fields: dict[str, NDArray[Any]],
    ) -> Iterator[NDArray[Any]]:
        """Yield distorted images; write the values of examples that replace undecodable ones to ``fields``."""
        for place, own in enumerate(draws):
            example = int(examples[place])
            pixels = self._or_skip(self._preprocessing.train, found["x"][place], own)
            while pixels is None:
                example = (example + 1) % len(split)
                if example == examples[place]:
                    raise DataError(f"{found['x'][place].where}: no image of its split can be decoded; replace them")
                following = split.take(np.array([example], np.int64))
                pixels = self._or_skip(self._preprocessing.train, following["x"][0], own)
                for name, values in fields.items():
                    values[place] = following[name][0]
            yield pixels

    def evaluate(self, found: _Batch) -> tuple[_Batch, NDArray[np.bool_]]:
        """Return the fields of examples with images x (S, C, H, W), and a mask (S,), true for decoded images.

        The pixels of a tolerated undecodable image are 0. Raises UndecodableImageError for further such images.
        """
        decoded = np.ones(len(found["x"]), bool)

        def images() -> Iterator[NDArray[Any]]:
            for place, image in enumerate(found["x"]):
                pixels = self._or_skip(self._preprocessing.evaluate, image)
                decoded[place] = pixels is not None
                yield np.zeros(self._preprocessing.shape, np.uint8) if pixels is None else pixels

        return {**found, "x": self._stacked(len(decoded), images())}, decoded

    def _stacked(self, count: int, images: Iterator[NDArray[Any]]) -> NDArray[Any]:
        """Return ``count`` images of one dtype, stacked; each is copied immediately, so that its memory is reused."""
        stacked = np.zeros((0, *self._preprocessing.shape), np.uint8)
        for place, pixels in enumerate(images):
            if not place:
                stacked = np.empty((count, *self._preprocessing.shape), pixels.dtype)
            stacked[place] = pixels
        return stacked

    def _or_skip(
        self, decode: Callable[..., NDArray[Any]], image: EncodedImage, *draws: NDArray[np.float64]
    ) -> NDArray[Any] | None:
        """Return a decoded image; None if it cannot be decoded and is tolerated."""
        try:
            return decode(image, *draws)
        except UndecodableImageError as error:
            with self._lock:
                known = image.where in self._skipped
                if not known and len(self._skipped) >= self._tolerated:
                    raise
                self._skipped.add(image.where)
                count = len(self._skipped)
            if not known:
                log.warning("%s (%d of data.skip_errors=%d)", error, count, self._tolerated)
            return None
