"""The verb ``predict``: predict classes or numbers with a trained network, for the user's images, arrays or texts."""

import csv
import io
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from runner.commands import stored_network
from runner.commands.stored_network import StoredNetwork
from runner.data.pictures import read_pictures
from runner.data.text import TextSettings
from runner.errors import ConfigError
from runner.system.console import verb_parser
from runner.system.machine import usable_cores
from runner.system.text import json_text, significant

if TYPE_CHECKING:
    from runner.training.inference import OneDevice

_SUFFIXES = (".csv", ".json")
_TOP = 3

_EXAMPLE = """\
examples:
  runner predict outputs/2026-01-31/12-00-00 seven.png digits.npy --top 3
  runner predict outputs/2026-01-31/12-00-00 *.png --resize --output predictions.csv
  runner predict outputs/2026-01-31/12-00-00 seven.png cluster.device=cpu"""


@dataclass(frozen=True)
class Prediction:
    """The prediction for one input.

    values: for a task that ranks classes, (class name, score) of the classes with the largest scores, largest first; a
    score is, for example, a probability. For other tasks, (name, number) of every output.
    """

    label: str
    values: tuple[tuple[str, float], ...]


def main(arguments: Sequence[str]) -> int:
    parser = verb_parser(
        "predict",
        "Predict classes or numbers with a trained network. Inputs are PNG and JPEG images, or NumPy arrays (.npy) of "
        "one or several inputs in the units of the dataset. A language model predicts the word after each text in "
        f"UTF-8.\n{stored_network.DEVICE_HELP}.",
        _EXAMPLE,
    )
    stored_network.add_arguments(parser)
    parser.add_argument(
        "files",
        nargs="+",
        metavar="FILE",
        help="an image, or an array of images; or KEY=VALUE for the device (a file of that name: ./KEY=VALUE)",
    )
    parser.add_argument("--top", type=int, metavar="K", help="number of classes to show (default: 3)")
    parser.add_argument(
        "--resize",
        action="store_true",
        help="crop and resize images to the network's input size (always done for data=image_folder)",
    )
    parser.add_argument("--output", type=Path, metavar="FILE", help="write the predictions: .csv or .json")
    options = parser.parse_intermixed_args(arguments)
    if options.top is not None and options.top < 1:
        raise ConfigError(f"--top {options.top}: expected 1 or more")
    if options.output is not None and options.output.suffix not in _SUFFIXES:
        raise ConfigError(f"--output {options.output}: expected a file that ends in {' or '.join(_SUFFIXES)}")
    device_overrides, files = stored_network.split_device(options.files)
    if not files:
        parser.error(f"{' '.join(device_overrides)}: expected also a FILE with inputs")
    network = stored_network.network_in(options.checkpoint, options.which)
    ranked = network.config.task.ranked
    if options.top is not None and not ranked:
        raise ConfigError(f"--top {options.top}: task={network.config.task.name} predicts no classes; leave out --top")
    device_config = stored_network.with_device(network.config, device_overrides)
    from runner.training.inference import one_device

    device = one_device(device_config, usable_cores())
    predictions = predict(network, device, list(map(Path, files)), top=options.top or _TOP, resize=options.resize)
    score = network.config.task.ranked_by if ranked else None
    print(_table(predictions, score))
    if options.output is not None:
        text = (_json if options.output.suffix == ".json" else _csv)(predictions, score)
        stored_network.write_output(options.output, text.encode())
    print(f"computed on {device.what}", file=sys.stderr)
    return 0


def predict(
    network: StoredNetwork, device: "OneDevice", files: Sequence[Path], *, top: int, resize: bool
) -> list[Prediction]:
    """Return the predictions for the images in ``files``, or for the next word after each text in ``files``.

    See :func:`~runner.data.pictures.read_pictures` and :meth:`~runner.data.text.TextSettings.contexts`.
    device: the device on which the network runs. resize: whether to crop and resize images; for a network trained on
    image files, this is always done. Raises DataError if a file does not fit the network, CheckpointError if the
    checkpoint does not.
    """
    data = network.config.data
    facts, task = data.facts(), network.config.task
    if isinstance(data, TextSettings):
        inputs = data.contexts(files)
    else:
        pictures = read_pictures(files, facts.shape, network.normalisation(), fit=resize or data.fits_images)
        inputs = [(picture.label, picture.pixels) for picture in pictures]
    found = answers_of(network, device, np.stack([x for _, x in inputs]))
    names = task.columns(facts.fields)
    return [
        Prediction(label, _largest(row, names, top) if task.ranked else tuple(zip(names, map(float, row), strict=True)))
        for (label, _), row in zip(inputs, found, strict=True)
    ]


def answers_of(network: StoredNetwork, device: "OneDevice", x: NDArray[Any]) -> NDArray[np.float64]:
    """Return the task's answers (N, outputs), such as class probabilities, for x (N, ...) in the units of the dataset.

    Raises CheckpointError if the checkpoint does not fit the network, ResourceError if a GPU cannot hold a batch.
    """
    from runner.training.inference import answers

    return answers(device, network.checkpoint, network.normalisation().apply(x, np.dtype(np.float64)))


def _largest(row: NDArray[np.float64], names: Sequence[str], top: int) -> tuple[tuple[str, float], ...]:
    """Return the ``top`` classes with the largest scores, largest first; equal scores keep the order of classes."""
    order = np.argsort(-row, kind="stable")[:top]
    return tuple((names[i], float(row[i])) for i in order)


def probability_text(probability: float) -> str:
    """Return a probability with four decimals; "<0.0001" for a positive number that would round to 0.0000."""
    return "<0.0001" if 0 < probability < 0.00005 else f"{probability:.4f}"


def _table(predictions: Sequence[Prediction], score: str | None) -> str:
    """Return a table. score: the name of the scores of classes ("probability"); None for a task without classes."""
    first = predictions[0].values
    if score is not None:
        titles = ("file", f"class and {score}", *(f"{place}." for place in range(2, len(first) + 1)))
        cells = [[f"{name} {probability_text(p)}" for name, p in each.values] for each in predictions]
    else:
        titles = ("file", *(name for name, _ in first))
        cells = [[significant(value) for _, value in each.values] for each in predictions]
    rows = [titles, *((each.label, *row) for each, row in zip(predictions, cells, strict=True))]
    widths = [max(len(row[column]) for row in rows) for column in range(len(titles))]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def _json(predictions: Sequence[Prediction], score: str | None) -> str:
    rows: list[Mapping[str, object]] = [
        {"file": each.label, "classes": [{"class": name, score: value} for name, value in each.values]}
        if score is not None
        else {"file": each.label, "numbers": dict(each.values)}
        for each in predictions
    ]
    return json_text(rows)


def _csv(predictions: Sequence[Prediction], score: str | None) -> str:
    """Return CSV with a row for each input and rank, or with a row for each input and a column for each number."""
    stream = io.StringIO()
    writer = csv.writer(stream)
    if score is not None:
        writer.writerow(("file", "place", "class", score))
        for each in predictions:
            writer.writerows((each.label, place, *value) for place, value in enumerate(each.values, start=1))
    else:
        writer.writerow(("file", *(name for name, _ in predictions[0].values)))
        writer.writerows((each.label, *(value for _, value in each.values)) for each in predictions)
    return stream.getvalue()
