"""A worker's input source, which is built from the data section of the configuration and reads ahead."""

import logging
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Self

from runner.data.dataset import Dataset
from runner.data.pipeline import Batch, Pipeline
from runner.data.settings import DatasetSettings, load_limited, settings_from_config
from runner.data.stage_times import InputWaits

log = logging.getLogger(__name__)


class Prefetcher:
    """An input source that returns the batches of a pipeline and usually makes them before they are requested.

    After a read of (split, step, lo, hi), a background thread makes the same range of at least the next ``depth``
    steps. All other batches are made on request. Small batches of several steps are made together, because waking a
    thread in each step would take longer than making a batch.
    """

    def __init__(self, source: Pipeline, depth: int = 1) -> None:
        """Start a thread that reads ``source`` at least ``depth`` steps ahead; ``close`` ends the thread."""
        self._source = source
        self._depth = depth
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="prefetch")
        # Share -> step -> batches that are made together, and the position of the batch of this step among them.
        self._ahead: dict[tuple[str, int, int], dict[int, tuple[Future[list[Batch]], int]]] = {}
        self._waits = InputWaits()

    def read(self, split: str, step: int, lo: int, hi: int) -> Batch:
        """Return examples lo..hi-1 of the whole batch of ``step``; see ``Pipeline.read``.

        Raises the error of the source for this read, and RuntimeError after ``close``.
        """
        begin = time.perf_counter()
        ahead, together = self._ahead.setdefault((split, lo, hi), {}), self._source.steps_together(hi - lo)
        last = step + self._depth
        kept = {later: each for later, each in ahead.items() if step <= later < last + together}
        for each in {made for made, _ in ahead.values()} - {made for made, _ in kept.values()}:
            each.cancel()
        self._ahead[split, lo, hi] = kept
        prepared, number = kept.pop(step, (None, 0))
        batch = self._source.read(split, step, lo, hi) if prepared is None else prepared.result()[number]
        for later in range(step + 1, last + 1):
            if later not in kept:
                steps = range(later, later + together)
                made = self._thread.submit(self._source.read_steps, split, steps, lo, hi)
                kept |= {each: (made, number) for number, each in enumerate(steps) if each not in kept}
        if split == "train" and prepared is not None:
            self._waits.add(begin, time.perf_counter(), self._source.times, self._source.threads)
        return batch

    def close(self) -> None:
        """Wait for the threads to end, drop the batches made ahead, and log the times of the stages."""
        self._thread.shutdown(wait=True, cancel_futures=True)
        self._source.close()
        self._ahead.clear()
        if waits := self._waits.batches:
            text = "input: waited %.1f s for %d batches; ms per example on one thread: %s"
            log.info(text, self._waits.seconds, waits, self._source.times)
            self._waits = InputWaits()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def source_from_config(config: Mapping[str, object], **options: Any) -> Prefetcher:
    """Load the dataset that ``config`` describes and return a source of its batches, which the caller must close.

    options: ``seed``, ``batch_size``, ``eval_batch_size`` and ``dtype`` of a :class:`Pipeline`. Raises ConfigError like
    :func:`~runner.data.settings.settings_from_config`, and DataError if the data cannot be read.
    """
    settings = settings_from_config(config)
    return Prefetcher(pipeline_of(settings, load_limited(settings), **options), settings.prefetch)


def pipeline_of(settings: DatasetSettings, dataset: Dataset, **options: Any) -> Pipeline:
    """Return a pipeline of a loaded dataset with the settings for batches. options: see :class:`Pipeline`."""
    of_settings = {key: getattr(settings, key) for key in ("augment", "val_fraction", "shuffle", "threads")}
    return Pipeline(dataset, **of_settings, **options)
