"""Write a dataset as TFRecord shards with the features of the ImageNet records of TensorFlow's models."""

import os
import shlex
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runner.data.dataset import Dataset, EncodedImage, Examples, Facts, Integers
from runner.data.image_folder import ImageFolder
from runner.data.records.description import Description, write_description
from runner.data.records.example import Value, encode
from runner.data.records.shards import shard_name
from runner.data.settings import DatasetSettings, limited_facts, load_limited
from runner.data.streamed import BOX
from runner.errors import ConfigError, DataError
from runner.system.files import writing
from runner.system.record_framing import framed

Report = Callable[[str], None]

_AT_ONCE = 64
_RAW = b"RAW"


def convert(settings: DatasetSettings, folder: Path, shards: Sequence[int], report: Report = print) -> None:
    """Write the train and the test split of a dataset into a new folder, in the order of the dataset.

    Image files keep their bytes and bounding boxes; arrays are written as raw bytes in the order (C, H, W). shards: the
    maximum number of files of each split; no file is empty. Raises ConfigError if the folder is not empty, or if the
    dataset has several domains or fields other than x and y; DataError if the data cannot be read; ResourceError if a
    file cannot be written. After an error, the folder is deleted, so that it can be used again.
    """
    if isinstance(settings, ImageFolder):
        settings = replace(settings, stream=True)
    facts, dataset = limited_facts(replace(settings, val_fraction=0.0)), load_limited(settings)
    if set(facts.fields) != {"x", "y"}:
        raise ConfigError(f"data={settings.name} has the fields {', '.join(facts.fields)}; expected x and y")
    if dataset.train.domains.any():
        raise ConfigError(f"data={settings.name} has several domains; expected one: convert each dataset separately")
    description = _description(dataset, facts)
    with writing(f"records into {folder}", "choose another folder, or free space"), ExitStack() as on_failure:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise ConfigError(f"{folder} is not empty: expected a new folder for the records")
        on_failure.callback(shutil.rmtree, folder, ignore_errors=True)
        for split, examples, count in (("train", dataset.train, shards[0]), ("test", dataset.test, shards[1])):
            files = min(count, len(examples))
            for number, chosen in enumerate(np.array_split(np.arange(len(examples), dtype=np.int64), files)):
                path = folder / shard_name(split, number, files)
                _write_shard(path, examples, chosen, facts, description)
            report(f"{split}: {len(examples)} examples in {files} files")
        write_description(folder, description)
        on_failure.pop_all()
    report(f"read them with: data=tfrecord {shlex.quote(f'data.path={folder}')}")


def _description(dataset: Dataset, facts: Facts) -> Description:
    shape, dtype = None, "uint8"
    if dataset.preprocessing is None:
        first = dataset.train.take(np.zeros(1, np.int64))["x"]
        shape, dtype = first.shape[1:], first.dtype.name
    features = {"image": "image/encoded", "label": "image/class/label"}
    if shape is not None and len(shape) != 3:
        features["image"] = "x"
    if not facts.class_names:
        features["label"] = "y"
    return Description(
        name=dataset.name,
        **features,
        class_names=facts.class_names,
        shape=shape,
        dtype=dtype,
        targets=0 if facts.class_names else facts.fields["y"].shape[0],
        normalisation=dataset.normalisation,
        counts={"train": len(dataset.train), "test": len(dataset.test)},
    )


def _write_shard(path: Path, examples: Examples, chosen: Integers, facts: Facts, description: Description) -> None:
    """Write one file under a temporary name, and rename it when it is complete."""
    temporary = path.with_name(f".{path.name}.tmp")
    with temporary.open("xb") as file:
        for start in range(0, len(chosen), _AT_ONCE):
            found = examples.take(chosen[start : start + _AT_ONCE])
            for x, y in zip(found["x"], found["y"], strict=True):
                image = _of_file(x) if isinstance(x, EncodedImage) else _of_array(x, description)
                file.write(framed(encode({**image, **_target(y, facts, description)})))
        file.flush()
        os.fsync(file.fileno())
    os.rename(temporary, path)


def _of_file(image: EncodedImage) -> dict[str, Value]:
    is_jpeg = image.content[:2] == b"\xff\xd8"
    boxes = {} if image.boxes is None else dict(zip(BOX, image.boxes.T, strict=True))
    return {
        "image/encoded": [image.content],
        "image/format": [b"JPEG" if is_jpeg else b"PNG"],
        "image/filename": [Path(image.where).name.encode()],
        **boxes,
    }


def _of_array(x: NDArray[Any], description: Description) -> dict[str, Value]:
    raw: dict[str, Value] = {description.image: [np.ascontiguousarray(x, x.dtype.newbyteorder("<")).tobytes()]}
    if x.ndim != 3:
        return raw
    sizes = zip(("channels", "height", "width"), x.shape, strict=True)
    return {**raw, "image/format": [_RAW], **{f"image/{name}": np.array([size]) for name, size in sizes}}


def _target(y: NDArray[Any], facts: Facts, description: Description) -> Mapping[str, Value]:
    if description.targets:
        numbers = y.astype(np.float32)
        if not np.array_equal(numbers, y):
            raise DataError(f"data={description.name}: y={y} is not a float32; records hold float32 numbers: round y")
        return {description.label: numbers}
    return {description.label: np.array([y]), "image/class/text": [facts.class_names[int(y)].encode()]}
