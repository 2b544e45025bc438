"""The base classes of datasets that are read from the user's files."""

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runner.bounds import Bytes, Positive, Real
from runner.data.dataset import Facts, Normalisation
from runner.data.settings import DatasetSettings, absolute, require_mean_and_std
from runner.errors import ConfigError, DataError

Read = Callable[[int, int], NDArray[Any]]
"""A function that returns the examples from one index up to another, without those that cannot be used."""

# As float64, a chunk takes about 8 MiB.
_VALUES_PER_CHUNK = 1 << 20


@dataclass
class OwnFiles(DatasetSettings):
    """Settings of a dataset in the user's files.

    path: path of the files, made absolute. Without a path, settings can be created, but :meth:`require_present` raises
    DataError, and :meth:`facts` raises ConfigError unless the dataset is published. ask: advice for a user who gave no
    path.
    """

    path: str = ""

    def __post_init__(self) -> None:
        if self.path:
            self.path = absolute(self.path)
        if self.path or self.published_facts() is not None:
            super().__post_init__()

    def facts(self) -> Facts:
        """Return the facts of the files or, without a path, of the published dataset.

        Raises ConfigError without a path for a dataset that is not published, DataError for invalid files.
        """
        if self.path:
            return self.facts_of_files()
        if (published := self.published_facts()) is None:
            raise ConfigError(self._no_path())
        return published

    def published_facts(self) -> Facts | None:
        """Return the facts of a published dataset, which need no files; None if the files are the user's own data."""
        return None

    def require_present(self) -> None:
        """Raise DataError if ``path`` is empty."""
        if not self.path:
            raise DataError(self._no_path())

    def _no_path(self) -> str:
        return f"data.path is not set: dataset {self.name!r} is read from your files; {self.ask}"

    @property
    @abstractmethod
    def ask(self) -> str:
        """Advice for a user who gave no path."""

    @abstractmethod
    def facts_of_files(self) -> Facts:
        """Return the facts of the files without reading any image. Raises DataError for invalid files."""


@dataclass
class NormalisedFiles(OwnFiles):
    """Settings of a dataset in the user's files whose inputs are normalised.

    mean, std: one number per channel for ``(pixel / scale - mean) / std``, where scale is 255 for uint8 and 1 for
    floats; null for the mean and standard deviation of the train split.
    max_bytes: largest accepted size, in bytes, of all examples together if every process holds them in memory.
    """

    mean: list[Real] | None = None
    std: list[Positive] | None = None
    max_bytes: Bytes = 4 * 2**30

    def __post_init__(self) -> None:
        super().__post_init__()
        require_mean_and_std(self.mean, self.std, self.facts().shape[0] if self.path else None)

    def scale(self) -> float:
        """Return the largest possible pixel value, or 1 for floats, without reading images; may raise DataError."""
        return 255.0

    def known_normalisation(self) -> Normalisation | None:
        """Return the normalisation that needs no examples, such as that of the settings; None if there is none."""
        if self.mean is None or self.std is None:
            return None
        return Normalisation(self.scale(), tuple(self.mean), tuple(self.std))

    def normalisation(self) -> Normalisation:
        """Return the known normalisation without reading images or, if there is none, compute it from train images."""
        known = self.known_normalisation() if self.path else None
        return super().normalisation() if known is None else known

    def normalisation_of(self, images: NDArray[Any]) -> Normalisation:
        """Return the known normalisation; without one, compute it so that the train ``images`` have mean 0 and std 1.

        Raises DataError if a channel is constant or not finite.
        """
        return self.normalisation_from(len(images), images.shape[1:], lambda lo, hi: images[lo:hi])

    def normalisation_from(self, count: int, shape: tuple[int, ...], read: Read) -> Normalisation:
        """Return the normalisation of examples that are read in parts; see :func:`channel_statistics`."""
        if (known := self.known_normalisation()) is not None:
            return known
        mean, std = channel_statistics(count, shape, read)
        if not mean:
            raise DataError(f"{self.path}: no measured train image can be decoded; replace the images")
        for channel, deviation in enumerate(std):
            if not math.isfinite(deviation):
                fault = f"channel {channel} of the train examples has mean {mean[channel]:g}, deviation {deviation:g}"
                raise DataError(f"{self.path}: {fault}; expected finite numbers; correct or remove the others")
            if deviation == 0.0:
                fault = f"channel {channel} of the train examples is {mean[channel]:g} everywhere"
                advice = "remove it, or set data.mean and data.std"
                raise DataError(f"{self.path}: {fault}, so its standard deviation is 0; {advice}")
        scale = self.scale()
        return Normalisation(scale, tuple(m / scale for m in mean), tuple(s / scale for s in std))

    def require_room(self, nbytes: int, what: str) -> None:
        """Raise DataError if ``nbytes`` is more than ``max_bytes``. what: name of the data, for the message."""
        if nbytes > self.max_bytes:
            fault = f"{what} take {nbytes:,} bytes in memory, more than data.max_bytes={self.max_bytes:,}"
            advice = "use data.stream=true, use fewer or smaller examples, or raise data.max_bytes"
            raise DataError(f"{self.path}: {fault}; every process loads all examples: {advice}")


def channel_statistics(count: int, shape: tuple[int, ...], read: Read) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and standard deviation of each channel of ``count`` (1 or more) examples of ``shape`` (C, ...).

    Each example is read twice. Both results are computed in float64 over chunks of fixed order and size, so that equal
    images give equal results bit for bit. The deviation of a constant channel is exactly 0. Both results are () if no
    example can be used.
    """
    others = (0, *range(2, len(shape) + 1))
    rows = max(1, _VALUES_PER_CHUNK // max(1, math.prod(shape)))
    spans = [(start, min(start + rows, count)) for start in range(0, count, rows)]
    sums = [(len(part), part.astype(np.float64).sum(axis=others)) for part in (read(*span) for span in spans)]
    per_channel = sum(number for number, _ in sums) * math.prod(shape[1:])
    if not per_channel:
        return (), ()
    mean = sum(each for _, each in sums) / per_channel
    centre = np.reshape(mean, (1, -1, *(1 for _ in others[1:])))
    squares, low, high = np.zeros(shape[:1]), np.full(shape[:1], np.inf), np.full(shape[:1], -np.inf)
    for span in spans:
        away = read(*span).astype(np.float64) - centre
        squares += np.square(away).sum(axis=others)
        low = np.minimum(low, away.min(axis=others, initial=np.inf))
        high = np.maximum(high, away.max(axis=others, initial=-np.inf))
    # The mean is rounded, so the squares of a constant channel can be above 0.
    deviations = np.where(low == high, 0.0, np.sqrt(squares / per_channel))
    return tuple(map(float, mean)), tuple(map(float, deviations))
