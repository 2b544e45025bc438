"""The verb ``predict``: the classes that a trained network predicts for the user's images."""

import csv
import io
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from runner.commands.stored_network import (
    DEVICE_HELP,
    StoredNetwork,
    add_arguments,
    split_device,
    stored_network,
    with_device,
    write_output,
)
from runner.data.pictures import read_pictures
from runner.errors import ConfigError
from runner.system.console import verb_parser
from runner.system.machine import usable_cores

if TYPE_CHECKING:
    from runner.training.inference import OneDevice

_SUFFIXES = (".csv", ".json")

_EXAMPLE = """\
examples:
  runner predict outputs/2026-01-31/12-00-00 seven.png digits.npy --top 3
  runner predict outputs/2026-01-31/12-00-00 *.png --resize --output predictions.csv
  runner predict outputs/2026-01-31/12-00-00 seven.png cluster.device=cpu"""


@dataclass(frozen=True)
class Prediction:
    """The prediction for one image. ranked: (class name, probability) of the most likely classes, most likely first."""

    label: str
    ranked: tuple[tuple[str, float], ...]


def main(arguments: Sequence[str]) -> int:
    """Run ``runner predict`` with the arguments that follow it."""
    parser = verb_parser(
        "predict",
        "Predict the classes of images with a trained network: PNG, JPEG, or NumPy arrays (.npy) of one or "
        f"several images, with pixels in the range of the dataset.\n{DEVICE_HELP}.",
        _EXAMPLE,
    )
    add_arguments(parser)
    parser.add_argument(
        "files",
        nargs="+",
        metavar="FILE",
        help="an image, or an array of images; or KEY=VALUE for the device (a file of that name: ./KEY=VALUE)",
    )
    parser.add_argument("--top", type=int, default=3, metavar="K", help="number of top classes to show (default: 3)")
    parser.add_argument(
        "--resize",
        action="store_true",
        help="crop and resize images to the network's input size (always done for data=image_folder)",
    )
    parser.add_argument("--output", type=Path, metavar="FILE", help="write the predictions: .csv or .json")
    options = parser.parse_intermixed_args(arguments)
    if options.top < 1:
        raise ConfigError(f"--top {options.top}: expected 1 or more")
    if options.output is not None and options.output.suffix not in _SUFFIXES:
        raise ConfigError(f"--output {options.output}: expected a file that ends in {' or '.join(_SUFFIXES)}")
    device_overrides, files = split_device(options.files)
    if not files:
        parser.error(f"expected a FILE besides {' '.join(device_overrides)}")
    network = stored_network(options.checkpoint, options.which)
    device_config = with_device(network.config, device_overrides)
    from runner.training.inference import one_device

    device = one_device(device_config, usable_cores())
    predictions = predict(network, device, list(map(Path, files)), top=options.top, resize=options.resize)
    print(_table(predictions))
    if options.output is not None:
        text = _json(predictions) if options.output.suffix == ".json" else _csv(predictions)
        write_output(options.output, text)
    print(f"computed on {device.what}", file=sys.stderr)
    return 0


def predict(
    network: StoredNetwork, device: "OneDevice", files: Sequence[Path], *, top: int, resize: bool
) -> list[Prediction]:
    """Return the predictions for the images in ``files``; see :func:`~runner.data.pictures.read_pictures`.

    device: the device on which the network runs. resize: whether to crop and resize images, as is always done for a
    network trained on an image folder. Raises DataError if a file, CheckpointError if the checkpoint does not fit.
    """
    data = network.config.data
    facts = data.facts()
    pictures = read_pictures(files, facts.shape, network.normalisation(), fit=resize or data.fits_images)
    found = class_probabilities(network, device, np.stack([picture.pixels for picture in pictures]))
    return [
        Prediction(picture.label, _ranked(row, facts.class_names, top))
        for picture, row in zip(pictures, found, strict=True)
    ]


def class_probabilities(network: StoredNetwork, device: "OneDevice", pixels: NDArray[Any]) -> NDArray[np.float64]:
    """Return class probabilities (N, classes) of images (N, C, H, W) in the range of the dataset.

    Raises CheckpointError if the checkpoint does not fit, ResourceError if a GPU cannot hold a batch.
    """
    from runner.training.inference import probabilities

    return probabilities(device, network.checkpoint, network.normalisation().apply(pixels, np.dtype(np.float64)))


def _ranked(row: NDArray[np.float64], names: Sequence[str], top: int) -> tuple[tuple[str, float], ...]:
    """Return the ``top`` most likely classes, most likely first; equally likely classes keep their order."""
    order = np.argsort(-row, kind="stable")[:top]
    return tuple((names[i], float(row[i])) for i in order)


def probability_text(probability: float) -> str:
    """Return a probability with four decimals, and a bound in place of 0.0000 for tiny ones."""
    return "<0.0001" if 0 < probability < 0.00005 else f"{probability:.4f}"


def _table(predictions: Sequence[Prediction]) -> str:
    cells = [
        (each.label, *(f"{name} {probability_text(probability)}" for name, probability in each.ranked))
        for each in predictions
    ]
    titles = ("file", "class and probability", *(f"{place}." for place in range(2, len(cells[0]))))
    rows = [titles, *cells]
    widths = [max(len(row[column]) for row in rows) for column in range(len(titles))]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def _json(predictions: Sequence[Prediction]) -> str:
    rows: list[Mapping[str, object]] = [
        {"file": each.label, "classes": [{"class": name, "probability": p} for name, p in each.ranked]}
        for each in predictions
    ]
    return json.dumps(rows, indent=1) + "\n"


def _csv(predictions: Sequence[Prediction]) -> str:
    """Return CSV with a row for each image and rank."""
    stream = io.StringIO()
    writer = csv.writer(stream)
    writer.writerow(("file", "place", "class", "probability"))
    for each in predictions:
        writer.writerows((each.label, place, name, p) for place, (name, p) in enumerate(each.ranked, start=1))
    return stream.getvalue()
