"""Time runner's input pipeline: ``python -m benchmarks.input_ours FOLDER``; see :mod:`benchmarks.input`."""

import sys
from collections.abc import Mapping
from importlib.metadata import version
from itertools import count
from pathlib import Path

import numpy as np
import simplejpeg

from benchmarks.input import BATCH
from benchmarks.protocol import Run, serve
from runner.data.pipeline import Pipeline
from runner.data.preprocessing import PreprocessingSettings
from runner.data.tfrecord import TFRecord

SIZES = {"vgg": 224, "inception": 299}


class Ours:
    """The pipeline of runner on one thread."""

    versions: Mapping[str, str] = {name: version(name) for name in ("simplejpeg", "pillow", "numpy")}

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def load(self) -> None:
        self._settings("vgg").facts()

    def phase(self, name: str) -> Run:
        """Return a function that prepares the next batch of a phase and returns a pixel, or the mean of several."""
        if name == "decode":
            return self._decode()
        pipeline, steps = Pipeline(self._settings(name).load(), seed=0, batch_size=BATCH, dtype="float32"), count()
        return lambda: float(pipeline.read("train", next(steps), 0, BATCH)["x"][0, 0, 0, 0])

    def _decode(self) -> Run:
        train, starts = self._settings("vgg").load().train, count(step=BATCH)

        def run() -> float:
            images = train.take((next(starts) + np.arange(BATCH)) % len(train))["x"]
            return sum(float(simplejpeg.decode_jpeg(image.content)[0, 0, 0]) for image in images) / BATCH

        return run

    def _settings(self, name: str) -> TFRecord:
        return TFRecord(
            path=str(self._folder / "records"),
            cache_dir=str(self._folder),
            size=SIZES[name],
            preprocessing=PreprocessingSettings(name),
        )


if __name__ == "__main__":
    serve(Ours(Path(sys.argv[1])))
