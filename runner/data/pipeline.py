"""Batches of a dataset. Each share (range of examples) of a batch is a pure function of seed, split, step and range."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runner.data.augmentation import Augment, Augmenter
from runner.data.dataset import Dataset, Split, held_out, validation_split
from runner.kernels import philox

Batch = Mapping[str, NDArray[Any]]


class Pipeline:
    """An input source that serves a dataset in memory; several threads may read it at once.

    Train batches are taken from an endless stream of the n examples: position p belongs to epoch p // n and has example
    permutation(epoch)[p % n]. Step s takes the ``batch_size`` positions that begin at s * batch_size, so no example is
    dropped. Batches of "test" and "val" go through their split in order; the last one is padded. The
    validation split is drawn from the train split, by seed and dataset name; its examples are not in the stream.
    Augmentation depends on the step and the position, so the number of shares has no effect.
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
        val_fraction: float = 0.0,
    ) -> None:
        """Serve ``dataset`` in batches of ``batch_size``, with floats in ``dtype`` ("float32" or "float64").

        eval_batch_size: size of "test" and "val" batches; None for ``batch_size``. val_fraction: fraction of the train
        split that becomes the split "val"; 0 for no split "val".
        """
        self._dataset = dataset
        self._seed = seed
        self._parts = _parts(dataset, val_fraction, seed)
        evaluated = eval_batch_size or batch_size
        self._batch_sizes = {split: batch_size if split == "train" else evaluated for split in self._parts}
        self._dtype = np.dtype(dtype)
        self._augmenter = Augmenter(augment or Augment(), seed, dataset.name)
        # The orders of two epochs are kept, because the shares of a batch that spans two epochs need both.
        self._epoch_order = lru_cache(maxsize=2)(self._draw_epoch_order)

    def read(self, split: str, step: int, lo: int, hi: int) -> Batch:
        """Return examples lo..hi-1 of the whole batch of ``step`` of split "train", "test" or, if there is one, "val".

        The batch has every field of the dataset, of shape (hi-lo, ...). x is normalised; floats have the pipeline's
        dtype, and integers are int64. index: (hi-lo,) int64 positions in the stream of train examples or in the split.
        mask: (hi-lo,) in the pipeline's dtype, 1 for an example and 0 for padding, which repeats the last example.

        Raises ValueError for another split, a negative step or a share outside the batch.
        """
        if split not in self._batch_sizes:
            raise ValueError(f"unknown split {split!r}; the splits are {', '.join(map(repr, self._parts))}")
        batch_size = self._batch_sizes[split]
        if step < 0 or not 0 <= lo <= hi <= batch_size:
            raise ValueError(f"share [{lo}, {hi}) of step {step} does not exist: a batch has {batch_size} examples")
        positions = step * batch_size + np.arange(lo, hi, dtype=np.int64)
        return self._train_batch(step, positions) if split == "train" else self._scored_batch(split, positions)

    def _train_batch(self, step: int, positions: NDArray[np.int64]) -> Batch:
        examples = self._parts["train"].take(self._examples_at(positions)).arrays
        examples = {**examples, "x": self._augmenter.apply(examples["x"], positions, step)}
        return {**self._fed(examples), "index": positions, "mask": np.ones(len(positions), self._dtype)}

    def _scored_batch(self, split: str, positions: NDArray[np.int64]) -> Batch:
        part = self._parts[split]
        last = len(part) - 1
        examples = self._fed(part.take(np.minimum(positions, last)).arrays)
        return {**examples, "index": positions, "mask": (positions <= last).astype(self._dtype)}

    def _fed(self, examples: Batch) -> Batch:
        """Return the fields of examples as the network reads them."""
        dtypes = {name: np.int64 if values.dtype.kind in "iu" else self._dtype for name, values in examples.items()}
        fed = {name: values.astype(dtypes[name], copy=False) for name, values in examples.items() if name != "x"}
        return {"x": self._dataset.normalisation.apply(examples["x"], self._dtype), **fed}

    def _examples_at(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the train example at each position of the stream."""
        epochs, offsets = np.divmod(positions, len(self._parts["train"]))
        examples = np.empty_like(positions)
        for epoch in np.unique(epochs):
            chosen = epochs == epoch
            examples[chosen] = self._epoch_order(int(epoch))[offsets[chosen]]
        return examples

    def _draw_epoch_order(self, epoch: int) -> NDArray[np.int64]:
        key = philox.key(self._seed, f"{self._dataset.name}/epoch/{epoch}")
        return philox.permutation(key, len(self._parts["train"]))


@dataclass(frozen=True)
class _Part:
    """Some examples of a split. indices: of these examples; None for the whole split. Only ``take`` copies data."""

    split: Split
    indices: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.split) if self.indices is None else len(self.indices)

    def take(self, positions: NDArray[np.int64]) -> Split:
        """Return the examples at ``positions`` among these examples."""
        return self.split.take(positions if self.indices is None else self.indices[positions])


def _parts(dataset: Dataset, val_fraction: float, seed: int) -> dict[str, _Part]:
    """Return name -> examples of the splits "train", "test" and, unless ``val_fraction`` is 0, "val"."""
    test = _Part(dataset.test)
    if not val_fraction:
        return {"train": _Part(dataset.train), "test": test}
    examples = held_out(len(dataset.train), val_fraction)
    kept, taken = validation_split(dataset.train.strata, examples, seed, dataset.name)
    return {"train": _Part(dataset.train, kept), "val": _Part(dataset.train, taken), "test": test}
