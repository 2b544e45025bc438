"""A worker's input source, built from the data section of the configuration; it reads one step ahead."""

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Self

from runner.data import DATASETS
from runner.data.pipeline import Batch, Pipeline
from runner.data.settings import DatasetSettings, load_limited
from runner.errors import ConfigError
from runner.system.schema import LenientRecord, Violation


class Prefetcher:
    """An input source that returns the batches of a pipeline and usually makes them before they are requested.

    After a read of (split, step, lo, hi), a background thread reads (split, step + 1, lo, hi). It thus works one step
    ahead even if each step reads several ranges (microbatches). Other batches, such as the first, are made on request.
    """

    def __init__(self, source: Pipeline) -> None:
        """Start a thread that reads ``source`` one step ahead; ``close`` ends the thread."""
        self._source = source
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="prefetch")
        self._ahead: dict[tuple[str, int, int], tuple[int, Future[Batch]]] = {}

    def read(self, split: str, step: int, lo: int, hi: int) -> Batch:
        """Return examples lo..hi-1 of the whole batch of ``step``; see ``Pipeline.read``.

        Raises the error of the source for this read, and RuntimeError after ``close``.
        """
        share = (split, lo, hi)
        foreseen_step, future = self._ahead.pop(share, (None, None))
        if future is not None and foreseen_step == step:
            batch = future.result()
        else:
            if future is not None:
                future.cancel()
            batch = self._source.read(split, step, lo, hi)
        self._ahead[share] = (step + 1, self._thread.submit(self._source.read, split, step + 1, lo, hi))
        return batch

    def close(self) -> None:
        """Wait for the thread to end, and drop the batches made ahead."""
        self._thread.shutdown(wait=True, cancel_futures=True)
        self._ahead.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def settings_from_config(config: Mapping[str, object]) -> DatasetSettings:
    """Return the settings that ``config`` ({"name": "digits", ...}) describes; keys other than "name" are optional.

    Raises ConfigError for an unknown name, an unknown key, or a value of wrong type or out of range.
    """
    name = config.get("name")
    if not isinstance(name, str) or name not in DATASETS:
        raise ConfigError(f"unknown dataset: data.name is {name!r}; expected one of {', '.join(DATASETS)}")
    try:
        return LenientRecord(DATASETS[name], complete=False).read(dict(config), "data")
    except Violation as violation:
        raise ConfigError(str(violation)) from violation


def source_from_config(
    config: Mapping[str, object],
    *,
    seed: int,
    batch_size: int,
    eval_batch_size: int | None = None,
    dtype: str,
) -> Prefetcher:
    """Load the dataset that ``config`` describes and return a source of its batches, which the caller must close.

    batch_size: size of a train batch over all workers. eval_batch_size: the same for other splits; None for
    ``batch_size``. dtype: dtype of x and mask, "float32" or "float64". Raises ConfigError like
    :func:`settings_from_config`, and DataError if the data cannot be read.
    """
    settings = settings_from_config(config)
    pipeline = Pipeline(
        load_limited(settings),
        seed=seed,
        batch_size=batch_size,
        eval_batch_size=eval_batch_size,
        dtype=dtype,
        augment=settings.augment,
        val_fraction=settings.val_fraction,
    )
    return Prefetcher(pipeline)
