"""Several datasets as the domains of one, so that every train batch holds examples of one domain."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from runner.data.dataset import Dataset, Facts, Normalisation, Split
from runner.data.settings import DatasetSettings, limited_facts, load_limited, settings_from_config
from runner.errors import ConfigError
from runner.fields import BEGINS

_PATHS = ("path", "cache_dir", "sources")
"""The keys of datasets that are or contain paths, which are made absolute."""


@dataclass
class Domains(DatasetSettings):
    """Datasets with equal fields, joined in their order; a train batch holds examples of one of them, in turn.

    sources: name of a domain -> settings of its dataset, with the key ``name``. The limits of a source are used, its
    augmentation is ignored, and its val_fraction must be 0. All inputs have the normalisation of the first source.
    """

    name: str = "domains"
    sources: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.sources:
            for name, each in self._datasets().items():
                paths = {key: value for key in _PATHS if (value := getattr(each, key, None))}
                self.sources = {**self.sources, name: {**self.sources[name], **paths}}
            super().__post_init__()

    def facts(self) -> Facts:
        """Return the common fields and the sums of the example counts. Raises ConfigError if the fields differ."""
        found = {name: limited_facts(each) for name, each in self._datasets().items()}
        first, *others = found
        if others and BEGINS in found[first].fields:
            expected = "examples that do not continue each other, because the domains of batches alternate"
            raise ConfigError(f"data.sources.{first}: expected {expected}")
        for name in others:
            if found[name].fields != found[first].fields:
                one, two = ({key: str(each) for key, each in found[source].fields.items()} for source in (first, name))
                raise ConfigError(
                    f"data.sources: {first} has the fields {one}, {name} has {two}; expected equal fields"
                )
        counts = ([getattr(each, f"{split}_examples") for each in found.values()] for split in ("train", "test"))
        return Facts(found[first].fields, *map(sum, counts))

    @property
    def input_bytes(self) -> int:
        return max(each.input_bytes for each in self._datasets().values())

    def normalisation(self) -> Normalisation:
        """Return the normalisation of the first source. Raises DataError if required data cannot be read."""
        return next(iter(self._datasets().values())).normalisation()

    def require_present(self) -> None:
        for each in self._datasets().values():
            each.require_present()

    def load(self) -> Dataset:
        """Read all sources into memory.

        Raises DataError if one is missing or corrupt, ConfigError if one is streamed or if their pixel scales differ.
        """
        loaded = {name: load_limited(each) for name, each in self._datasets().items()}
        for name, each in loaded.items():
            if not (isinstance(each.train, Split) and each.train.in_memory):
                advice = "expected a dataset in memory, such as image_folder with stream=false"
                raise ConfigError(f"data.sources.{name}: {each.name} is streamed during training; {advice}")
        scales = {name: each.normalisation.scale for name, each in loaded.items()}
        if len(set(scales.values())) > 1:
            raise ConfigError(f"data.sources: stored pixels are divided by {scales}; expected one number")
        first = next(iter(loaded.values()))
        train, test = (_joined([getattr(each, split) for each in loaded.values()]) for split in ("train", "test"))
        return replace(first, name=self.name, train=train, test=test)

    def _datasets(self) -> dict[str, DatasetSettings]:
        """Return domain -> settings. Raises ConfigError for wrong settings, or if there are none."""
        if not self.sources:
            example = "data.sources.a.name=mnist data.sources.b.name=fashion_mnist"
            raise ConfigError(f"data.sources is empty: name the datasets of data={self.name}, as in {example}")
        found = {}
        for name, settings in self.sources.items():
            if not isinstance(settings, Mapping):
                raise ConfigError(f"data.sources.{name}: expected the settings of a dataset, found {settings!r}")
            try:
                found[name] = settings_from_config(settings)
            except ConfigError as error:
                raise ConfigError(f"data.sources.{name}: {error}") from error
            if found[name].val_fraction:
                raise ConfigError(f"data.sources.{name}.val_fraction: expected 0; set data.val_fraction instead")
        return found


def _joined(parts: list[Split]) -> Split:
    arrays = {name: np.concatenate([part[name] for part in parts]) for name in parts[0].arrays}
    return Split(arrays, np.repeat(np.arange(len(parts)), [len(part) for part in parts]))
