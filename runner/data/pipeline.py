"""Batches of a dataset as a pure function of (seed, split, step, share)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runner.data.augment import DRAWS_PER_IMAGE, Augment
from runner.data.dataset import Dataset
from runner.kernels import philox

Batch = Mapping[str, NDArray[Any]]


class Pipeline:
    """Input source over a dataset in memory; safe to read from several threads.

    Train batches come from an endless stream of examples: position p belongs to epoch p // n and holds
    example permutation(epoch)[p % n]; step s takes positions s * batch_size onwards, so nothing is ever
    dropped. Test batches run through the test split in order; the last is filled up with zeros. Shares are
    cut from the whole batch and every draw belongs to a position: no result depends on the number of shares.
    """

    def __init__(
        self,
        dataset: Dataset,
        *,
        seed: int,
        batch_size: int,
        eval_batch_size: int | None = None,
        dtype: str,
        augment: Augment | None = None,
    ) -> None:
        """Serve ``dataset`` in batches of ``batch_size``, images in ``dtype`` ("float32" or "float64").

        eval_batch_size: of split "test"; as for "train" when None.
        """
        self._dataset = dataset
        self._seed = seed
        self._batch_sizes = {"train": batch_size, "test": eval_batch_size or batch_size}
        self._dtype = np.dtype(dtype)
        self._augment = augment or Augment()
        self._augment_key = philox.key(seed, f"{dataset.name}/augment")
        # At the border of two epochs the shares of a batch need the one and the other in turn.
        self._epoch_order = lru_cache(maxsize=2)(self._draw_epoch_order)

    def read(self, split: str, step: int, lo: int, hi: int) -> Batch:
        """Return examples lo..hi-1 of the whole batch of ``step`` of split "train" or "test".

        x: (hi-lo, C, H, W) normalised, in the pipeline's dtype; y: (hi-lo,) int64 labels; index: (hi-lo,)
        int64 position in the stream; mask: (hi-lo,) in the pipeline's dtype, 1 for an example and 0 for
        padding, whose x and y are 0.

        Raises ValueError for another split, a negative step or a share outside the batch.
        """
        if split not in self._batch_sizes:
            raise ValueError(f"unknown split {split!r}; the splits are 'train' and 'test'")
        batch_size = self._batch_sizes[split]
        if step < 0 or not 0 <= lo <= hi <= batch_size:
            raise ValueError(f"share [{lo}, {hi}) of step {step} does not exist: a batch has {batch_size} examples")
        positions = step * batch_size + np.arange(lo, hi, dtype=np.int64)
        return self._train_batch(step, positions) if split == "train" else self._test_batch(positions)

    def _train_batch(self, step: int, positions: NDArray[np.int64]) -> Batch:
        train = self._dataset.train
        examples = self._examples_at(positions)
        images = train.images[examples]
        if self._augment.active:
            draws = philox.uniform(self._augment_key, positions, DRAWS_PER_IMAGE, step)
            images = self._augment.apply(images, draws)
        return {
            "x": self._dataset.normalisation.apply(images, self._dtype),
            "y": train.labels[examples],
            "index": positions,
            "mask": np.ones(len(positions), self._dtype),
        }

    def _test_batch(self, positions: NDArray[np.int64]) -> Batch:
        test = self._dataset.test
        real = positions < len(test)
        x = np.zeros((len(positions), *self._dataset.shape), self._dtype)
        x[real] = self._dataset.normalisation.apply(test.images[positions[real]], self._dtype)
        y = np.zeros(len(positions), np.int64)
        y[real] = test.labels[positions[real]]
        return {"x": x, "y": y, "index": positions, "mask": real.astype(self._dtype)}

    def _examples_at(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return which train example stands at each position of the stream."""
        epochs, offsets = np.divmod(positions, len(self._dataset.train))
        examples = np.empty_like(positions)
        for epoch in np.unique(epochs):
            chosen = epochs == epoch
            examples[chosen] = self._epoch_order(int(epoch))[offsets[chosen]]
        return examples

    def _draw_epoch_order(self, epoch: int) -> NDArray[np.int64]:
        key = philox.key(self._seed, f"{self._dataset.name}/epoch/{epoch}")
        return philox.permutation(key, len(self._dataset.train))
