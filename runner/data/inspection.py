"""A description of a dataset: counts, classes, times of input stages, and distorted images."""

import io
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np

from runner.data.dataset import Dataset, Facts
from runner.data.decoder import Decoder
from runner.data.pipeline import Pipeline
from runner.data.settings import DatasetSettings, limited_facts, load_limited
from runner.data.source import pipeline_of
from runner.errors import ConfigError
from runner.system.files import replace_durably, writing

_ROWS, _COLUMNS, _GAP = 8, 9, 2
_MOST_CLASSES = 20
_BATCHES = 3


def inspection(settings: DatasetSettings, seed: int, batch_size: int, sheet: Path | None = None) -> str:
    """Return a description of a dataset; the times of the input stages are measured with a few train batches.

    sheet: file for a picture of distorted train images, see :func:`contact_sheet`. Raises DataError if the data cannot
    be read, ConfigError if ``sheet`` is given and examples are not images, ResourceError if writing the file fails.
    """
    facts, dataset = limited_facts(settings), load_limited(settings)
    with closing(pipeline_of(settings, dataset, seed=seed, batch_size=batch_size, dtype="float32")) as pipeline:
        lines = [*_facts(settings, facts, dataset), *_classes(facts, dataset)]
        lines += [f"input        {line}" for line in _stages(pipeline, batch_size)]
        if sheet is not None:
            with writing(f"--sheet={sheet}", "choose another file"):
                replace_durably(sheet, contact_sheet(pipeline, facts.shape, dataset))
            lines.append(f"sheet        {sheet}: one train example per row: as in evaluations, then as in training")
    return "\n".join(lines)


def stage_lines(settings: DatasetSettings, seed: int, batch_size: int) -> list[str]:
    """Return lines with the rate of the input pipeline and the time of each stage, measured with a few train batches.

    Raises DataError if the data cannot be read.
    """
    dataset = load_limited(settings)
    with closing(pipeline_of(settings, dataset, seed=seed, batch_size=batch_size, dtype="float32")) as pipeline:
        return list(_stages(pipeline, batch_size))


def _facts(settings: DatasetSettings, facts: Facts, dataset: Dataset) -> Iterator[str]:
    yield f"data         {settings.name}, {'streamed' if settings.streamed else 'in memory'}"
    for name, field in facts.fields.items():
        yield f"field        {name}: {field}"
    for split, count in (("train", facts.train_examples), ("val", facts.val_examples), ("test", facts.test_examples)):
        if count:
            yield f"{split:12} {count:,} examples"
    for split, examples in (("train", dataset.train), ("test", dataset.test)):
        if len(sizes := examples.shards) > 1:
            yield f"files        {split}: {len(sizes)}, of {sizes.min():,} to {sizes.max():,} examples"
    found = dataset.normalisation
    mean, std = (", ".join(f"{value:.4f}" for value in values) for values in (found.mean, found.std))
    yield f"normalised   (x / {found.scale:g} - mean) / std, mean {mean}, std {std}"


def _classes(facts: Facts, dataset: Dataset) -> Iterator[str]:
    if not facts.classes:
        return
    counts = [np.bincount(each.strata, minlength=facts.classes) for each in (dataset.train, dataset.test)]
    for split, found in zip(("train", "test"), counts, strict=True):
        empty = f"; {(found == 0).sum()} classes have none" if (found == 0).any() else ""
        yield f"classes      {split}: {facts.classes}, with {found.min():,} to {found.max():,} examples{empty}"
    for label in range(min(facts.classes, _MOST_CLASSES)):
        train, test = (int(found[label]) for found in counts)
        yield f"  {label:4} {facts.class_names[label]:24} {train:9,} {test:9,}"
    if facts.classes > _MOST_CLASSES:
        yield f"  and {facts.classes - _MOST_CLASSES} more"


def _stages(pipeline: Pipeline, batch_size: int) -> Iterator[str]:
    pipeline.read("train", 0, 0, batch_size)
    before, begin = pipeline.times.so_far(), time.perf_counter()
    for step in range(1, 1 + _BATCHES):
        pipeline.read("train", step, 0, batch_size)
    seconds = time.perf_counter() - begin
    rate = _BATCHES * batch_size / seconds
    yield f"{rate:,.0f} examples per second with data.threads={pipeline.threads}"
    for stage, found in pipeline.times.so_far().items():
        earlier = before[stage]
        spent = (found.seconds - earlier.seconds) / (found.examples - earlier.examples)
        yield f"{stage:10} {1e3 * spent:9.4f} ms per example on one thread"


def contact_sheet(pipeline: Pipeline, shape: tuple[int, ...], dataset: Dataset) -> bytes:
    """Return a PNG picture with one row of views for each of a few train examples.

    The first column is the image as in evaluations. The other columns are the same image, distorted as training would
    distort it in different steps. Raises ConfigError unless examples are images (1 or 3, H, W).
    """
    from PIL import Image  # imported here, because most runs write no pictures

    if len(shape) != 3 or shape[0] not in (1, 3):
        raise ConfigError(f"--sheet: expected examples that are images of 1 or 3 channels, found shape {shape}")
    train = pipeline.train
    rows = min(_ROWS, len(train))
    chosen = np.arange(rows, dtype=np.int64) * len(train) // rows
    plain = train.take(chosen)["x"]
    if dataset.preprocessing is not None:
        plain = Decoder(dataset.preprocessing, dataset.skip_errors).evaluate({"x": plain})[0]["x"]
    views = [plain, *(pipeline.distorted(chosen, chosen, step)["x"] for step in range(_COLUMNS - 1))]
    normalisation = dataset.normalisation
    low, scale = (0.0, normalisation.scale) if normalisation.bounded else (plain.min(), np.ptp(plain) or 1.0)
    height, width = shape[1] + _GAP, shape[2] + _GAP
    canvas = np.full((rows * height, _COLUMNS * width, 3), 255, np.uint8)
    for column, images in enumerate(views):
        pixels = np.clip((images - low) * (255.0 / scale), 0, 255).astype(np.uint8)
        for row, image in enumerate(np.broadcast_to(pixels, (rows, 3, *shape[1:])).transpose(0, 2, 3, 1)):
            top, left = row * height, column * width
            canvas[top : top + shape[1], left : left + shape[2]] = image
    out = io.BytesIO()
    Image.fromarray(canvas).save(out, "png")
    return out.getvalue()
