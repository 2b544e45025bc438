"""Batches of a dataset. Each share (range of examples) of a batch is a pure function of seed, split, step and range."""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runner.data.augmentation import Augment, Augmenter
from runner.data.dataset import Dataset, Examples, Subset, held_out, validation_split
from runner.data.decoder import Decoder
from runner.data.order import Shuffle, epoch_order
from runner.data.stage_times import StageTimes
from runner.fields import BEGINS
from runner.kernels import philox

Batch = Mapping[str, NDArray[Any]]

STAGES = ORDER, READ, DECODE, AUGMENT, NORMALISE = ("order", "read", "decode", "augment", "normalise")
"""The stages of a pipeline: the choice of examples, reading them from memory or files, decoding and distortion of
encoded images, augmentation, and conversion to the network's inputs."""

_PARTS_PER_THREAD = 4

_TOGETHER_BYTES, _MOST_TOGETHER = 1 << 20, 32
"""Largest size of the batches that are made together, and largest number of their steps."""


class Pipeline:
    """An input source that serves a dataset; several threads may read it concurrently.

    Train batches are taken from an endless stream of the n examples: position p belongs to epoch p // n and has example
    order(epoch)[p % n]. Step s takes the ``batch_size`` positions from s * batch_size on, so no example is dropped. If
    the examples have K domains, each domain has a separate stream, and step s takes batch s // K of domain s % K: batch
    normalization then uses the statistics of one domain (AdaBN, arXiv 1603.04779, section 3.2). Batches of "test" and
    "val" go through their split in order; the last batch is padded. The validation split is drawn from the train split,
    by seed and dataset name, and is not part of the stream. Preprocessing and augmentation depend only on the seed, the
    step and the position. The number of shares has no effect, and threads can make parts of a share independently. The
    only state is caches and statistics.

    Examples that continue each other (field :data:`~runner.fields.BEGINS`) are served in another order. Row r of the B
    rows of a batch starts at example r n / B, rounded down. Each batch contains the next example of each row. In
    training, a row that reaches the end continues at the beginning, so each of the n examples is read once in n / B
    steps. In an evaluation, a row ends where the next row starts. The field begins is 1 in the first batch, and for the
    examples of the dataset that do not continue others.
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
        shuffle: Shuffle | None = None,
        threads: int = 1,
    ) -> None:
        """Serve ``dataset`` in batches of ``batch_size``, with floats in ``dtype`` ("float32" or "float64").

        eval_batch_size: size of "test" and "val" batches; None for ``batch_size``. val_fraction: fraction of the train
        split that becomes the split "val"; 0 for no split "val". shuffle: None for a permutation of all examples.
        threads: number of threads that make the parts of a share; ``close`` ends the threads.
        """
        self._dataset = dataset
        self._seed = seed
        self._parts = _parts(dataset, val_fraction, seed)
        evaluated = eval_batch_size or batch_size
        self._batch_sizes = {split: batch_size if split == "train" else evaluated for split in self._parts}
        self._dtype = np.dtype(dtype)
        self._is_sequence = dataset.train.is_sequence
        self._augmenter = Augmenter(augment or Augment(), seed, dataset.name)
        self._decoder = None
        if dataset.preprocessing is not None:
            key = philox.key(seed, f"{dataset.name}/preprocessing")
            self._decoder = Decoder(dataset.preprocessing, dataset.skip_errors, key)
        # Decoded images are arrays of this pipeline, but an augmentation of a plugin may return arrays that it keeps.
        self._may_overwrite = self._decoder is not None and not (augment and augment.others)
        self._shuffle = shuffle or Shuffle()
        # The orders of two epochs are kept, because the shares of a batch that spans two epochs need both.
        self._streams = _streams(self.train)
        self._epoch_order = lru_cache(maxsize=2 * len(self._streams))(self._draw_epoch_order)
        changed = self._decoder is not None or self._augmenter.changes
        of_one_kind = threads == 1 and len(self._streams) == 1 and not self._is_sequence
        self._alone = changed or not of_one_kind or not dataset.train.in_memory
        self.threads = threads
        self._pool = ThreadPoolExecutor(threads, "input") if threads > 1 else None
        self.times = StageTimes(STAGES)

    def close(self) -> None:
        """Wait for the threads to end."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def read(self, split: str, step: int, lo: int, hi: int) -> Batch:
        """Return examples lo..hi-1 of the whole batch of ``step`` of split "train", "test" or, if there is one, "val".

        The batch has every field of the dataset, of shape (hi-lo, ...). x is normalised; floats have the pipeline's
        dtype, and integers are int64. index: (hi-lo,) int64 positions in the stream of train examples or in the split.
        mask: (hi-lo,) in the pipeline's dtype: 1 for an example, 0 for padding (copies of the last example) and for
        tolerated undecodable images of evaluations.

        Raises ValueError for another split, a negative step or a wrong share; DataError for an unreadable example.
        """
        if split not in self._batch_sizes:
            raise ValueError(f"unknown split {split!r}; the splits are {', '.join(map(repr, self._parts))}")
        batch_size = self._batch_sizes[split]
        if step < 0 or not 0 <= lo <= hi <= batch_size:
            raise ValueError(f"share [{lo}, {hi}) of step {step} does not exist: a batch has {batch_size} examples")
        if self._is_sequence:
            return self._continued_batch(split, step, np.arange(lo, hi, dtype=np.int64))
        positions = step * batch_size + np.arange(lo, hi, dtype=np.int64)
        if self._pool is None or len(positions) < 2:
            return self._made(split, step, positions)
        # More parts than threads, because images differ in size.
        parts = np.array_split(positions, min(len(positions), _PARTS_PER_THREAD * self.threads))
        made = list(self._pool.map(lambda part: self._made(split, step, part), parts))
        return {name: np.concatenate([part[name] for part in made]) for name in made[0]}

    def steps_together(self, examples: int) -> int:
        """Return the number of steps that :meth:`read_steps` should make at once. examples: the size of a share.

        The number is 1 if the batches of two steps differ in more than their examples, or if reading may fail.
        """
        nbytes = examples * self._example_bytes
        return 1 if self._alone else min(_MOST_TOGETHER, max(1, _TOGETHER_BYTES // max(1, nbytes)))

    def read_steps(self, split: str, steps: range, lo: int, hi: int) -> list[Batch]:
        """Return the batches of consecutive steps; see :meth:`read`."""
        count = hi - lo
        if self._alone or len(steps) == 1:
            return [self.read(split, step, lo, hi) for step in steps]
        begins = np.array(steps, np.int64) * self._batch_sizes[split]
        made = self._made(split, steps[0], np.add.outer(begins, np.arange(lo, hi, dtype=np.int64)).ravel())
        shares = [slice(number * count, (number + 1) * count) for number in range(len(steps))]
        return [{name: values[share] for name, values in made.items()} for share in shares]

    @cached_property
    def _example_bytes(self) -> int:
        """The bytes of an example in a batch."""
        example = self.train.take(np.zeros(1, np.int64))
        return sum(values.size for values in example.values()) * self._dtype.itemsize

    def _made(self, split: str, step: int, positions: NDArray[np.int64]) -> Batch:
        return self._train_part(step, positions) if split == "train" else self._scored_part(split, positions)

    def _train_part(self, step: int, positions: NDArray[np.int64]) -> Batch:
        with self.times.of(ORDER, len(positions)):
            turn, domain = divmod(step, len(self._streams))
            own = positions - (step - turn) * self._batch_sizes["train"]
            examples = self._examples_at(own, domain)
        found = self.distorted(examples, positions, step)
        return {**self._fed(found), "index": positions, "mask": np.ones(len(positions), self._dtype)}

    @property
    def train(self) -> Examples:
        """The train examples without those of the validation split."""
        return self._parts["train"]

    def distorted(self, examples: NDArray[np.int64], positions: NDArray[np.int64], step: int) -> Batch:
        """Return train examples (S,) with the random changes for ``positions`` (S,) in ``step``, not normalised."""
        times, train = self.times, self.train
        with times.of(READ, len(positions)):
            found = train.take(examples)
        if self._decoder is not None:
            with times.of(DECODE, len(positions)):
                found = self._decoder.train(train, found, examples, positions, step)
        with times.of(AUGMENT, len(positions)):
            return {**found, "x": self._augmenter.apply(found["x"], positions, step)}

    def _scored_part(self, split: str, positions: NDArray[np.int64]) -> Batch:
        part = self._parts[split]
        last = len(part) - 1
        with self.times.of(READ, len(positions)):
            found = part.take(np.minimum(positions, last))
        mask = (positions <= last).astype(self._dtype)
        if self._decoder is not None:
            with self.times.of(DECODE, len(positions)):
                found, decoded = self._decoder.evaluate(found)
                mask *= decoded
        return {**self._fed(found), "index": positions, "mask": mask}

    def _continued_batch(self, split: str, step: int, rows: NDArray[np.int64]) -> Batch:
        """Return the rows of a batch of examples that continue those of the previous batch."""
        part, batch_size = self._parts[split], self._batch_sizes[split]
        count = len(part)
        chosen, mask = rows * count // batch_size + step, np.ones(len(rows), self._dtype)
        if split == "train":
            chosen %= count
        else:
            mask = (chosen < (rows + 1) * count // batch_size).astype(self._dtype)
            chosen = np.minimum(chosen, count - 1)
        examples = self._fed(part.take(chosen))
        begins = np.maximum(examples[BEGINS], step == 0)
        return {**examples, BEGINS: begins, "index": step * batch_size + rows, "mask": mask}

    def _fed(self, examples: Batch) -> Batch:
        """Return the fields of examples as the network reads them. x is not normalised if it has signed integers."""
        with self.times.of(NORMALISE, len(examples["x"])):
            x = examples["x"]
            if x.dtype.kind != "i":
                x = self._dataset.normalisation.apply(x, self._dtype, in_place=self._may_overwrite)
            fed = {**examples, "x": x}
            dtypes = {name: np.int64 if each.dtype.kind in "iu" else self._dtype for name, each in fed.items()}
            return {name: values.astype(dtypes[name], copy=False) for name, values in fed.items()}

    def _examples_at(self, positions: NDArray[np.int64], domain: int) -> NDArray[np.int64]:
        """Return the train example at each position of the stream of a domain."""
        stream = self._streams[domain]
        epochs, offsets = np.divmod(positions, len(stream))
        examples = np.empty_like(positions)
        for epoch in sorted(set(epochs.tolist())):
            chosen = epochs == epoch
            examples[chosen] = self._epoch_order(epoch, domain)[offsets[chosen]]
        return stream.indices[examples]

    def _draw_epoch_order(self, epoch: int, domain: int) -> NDArray[np.int64]:
        name = f"{self._dataset.name}/epoch/{epoch}"
        name = name if len(self._streams) == 1 else f"{name}/{domain}"
        return epoch_order(self._shuffle, self._streams[domain].shards, self._seed, name)


def _streams(train: Examples) -> list[Subset]:
    """Return the train examples of each domain."""
    domains = train.domains
    return [Subset(train, np.flatnonzero(domains == number)) for number in np.flatnonzero(np.bincount(domains))]


def _parts(dataset: Dataset, val_fraction: float, seed: int) -> dict[str, Examples]:
    """Return name -> examples of the splits "train", "test" and, unless ``val_fraction`` is 0, "val"."""
    if not val_fraction:
        return {"train": dataset.train, "test": dataset.test}
    examples = held_out(len(dataset.train), val_fraction)
    if dataset.train.is_sequence:
        kept, taken = np.split(np.arange(len(dataset.train)), [len(dataset.train) - examples])
    else:
        kept, taken = validation_split(dataset.train.strata, examples, seed, dataset.name)
    return {"train": Subset(dataset.train, kept), "val": Subset(dataset.train, taken), "test": dataset.test}
