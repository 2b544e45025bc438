"""A worker's input source, built from the data section of the configuration as plain data."""

from __future__ import annotations

from collections.abc import Mapping

from runner.data import DATASETS
from runner.data.pipeline import Pipeline
from runner.data.prefetch import Prefetcher
from runner.data.schema import from_plain
from runner.data.settings import DatasetSettings
from runner.errors import ConfigError


def settings_from_config(config: Mapping[str, object]) -> DatasetSettings:
    """Return the settings that ``config`` ({"name": "digits", ...}) describes; other keys are optional.

    Raises ConfigError for an unknown name, an unknown key, or a value of wrong type or out of range.
    """
    name = config.get("name")
    if not isinstance(name, str) or name not in DATASETS:
        raise ConfigError(f"unknown dataset: data.name is {name!r}; the datasets are: {', '.join(DATASETS)}")
    return from_plain(DATASETS[name], config, "data")


def source_from_config(
    config: Mapping[str, object],
    *,
    seed: int,
    batch_size: int,
    eval_batch_size: int | None = None,
    dtype: str,
) -> Prefetcher:
    """Load the dataset that ``config`` describes and return it as batches, read ahead by a thread.

    batch_size, eval_batch_size: the whole batch over all workers, of split "train" and of the others. dtype: of x and
    mask, "float32" or "float64". The caller closes the source. Raises ConfigError (see ``settings_from_config``),
    and DataError if the data cannot be read.
    """
    settings = settings_from_config(config)
    pipeline = Pipeline(
        settings.load(),
        seed=seed,
        batch_size=batch_size,
        eval_batch_size=eval_batch_size,
        dtype=dtype,
        augment=settings.augment,
        val_fraction=settings.val_fraction,
    )
    return Prefetcher(pipeline)
