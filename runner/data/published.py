"""Settings of datasets that are published as files and read from the cache."""

from dataclasses import dataclass
from typing import ClassVar

from runner.data.cache import PublishedDataset, load_published, require_cached
from runner.data.dataset import Dataset, Facts, Normalisation
from runner.data.settings import DatasetSettings


@dataclass
class PublishedSettings(DatasetSettings):
    """Settings of one such dataset. published: its files and facts, of every class its own."""

    published: ClassVar[PublishedDataset]

    def facts(self) -> Facts:
        """Return shape, classes and counts; nothing is read."""
        return self.published.facts

    def normalisation(self) -> Normalisation:
        """Return the known one; nothing is read."""
        return self.published.normalisation

    def require_present(self) -> None:
        """Raise DataError if it was not fetched."""
        require_cached(self.published, self.cache_dir)

    def load(self) -> Dataset:
        """Read the cache. Raises DataError if it was not fetched or is corrupt."""
        return load_published(self.published, self.cache_dir)
