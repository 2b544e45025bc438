"""What the settings of every dataset have in common."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field

from runner.data.augment import Augment
from runner.data.dataset import Dataset, Facts
from runner.errors import ConfigError


@dataclass
class DatasetSettings(ABC):
    """Settings of one dataset. Impossible values raise ConfigError when the object is made.

    cache_dir: folder of fetched datasets, None for the user's own (see ``runner.data.cache``); the datasets
    that need no fetching leave it unread. train_limit, test_limit: most examples of a split that are used, spread
    evenly over it (see ``runner.data.limits``); None for all.
    """

    name: str = ""
    augment: Augment = field(default_factory=Augment)
    cache_dir: str | None = None
    train_limit: int | None = None
    test_limit: int | None = None

    def __post_init__(self) -> None:
        for key in ("train_limit", "test_limit"):
            limit = getattr(self, key)
            if limit is not None and limit < 1:
                raise ConfigError(f"data.{key} is {limit}; it must be at least 1, or null for all examples")
        smallest = min(self.facts().shape[1:])
        if self.augment.crop_padding >= smallest:
            raise ConfigError(
                f"data.augment.crop_padding is {self.augment.crop_padding}; for dataset {self.name!r} "
                f"it must be less than {smallest} pixels, or a crop could miss the image"
            )

    @abstractmethod
    def facts(self) -> Facts:
        """Return shape, classes and counts of all examples, without reading any data."""

    def require_present(self) -> None:  # noqa: B027 - nothing to do is the rule, not an omission
        """Raise DataError, with the command that mends it, if the dataset must be fetched and was not.

        Looks, but reads nothing: for a quick refusal before a run starts anything. A dataset that comes with the
        package or is made in memory is always present.
        """

    @abstractmethod
    def load(self) -> Dataset:
        """Read or make the dataset, with all examples. Raises DataError if it is missing or corrupt."""
