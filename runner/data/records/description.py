"""``dataset.json``: the description of a folder of record files, written by ``runner data convert``."""

from dataclasses import dataclass, field
from pathlib import Path

from runner.data.dataset import Normalisation
from runner.errors import DataError
from runner.system.json_file import JsonFile
from runner.system.schema import LenientRecord

DESCRIPTION_FILE = "dataset.json"


@dataclass(frozen=True)
class Description:
    """Facts that records do not hold.

    name: name of the converted dataset, a part of the keys of all draws, so that a run on the records equals a run
    on the original. image, label: features of x and y. class_names: () if classes are numbered. shape, dtype: of x as
    raw bytes or floats; shape is None for encoded images. targets: K if y is K floats; 0 for labels. counts: split ->
    examples.
    """

    name: str
    image: str = "image/encoded"
    label: str = "image/class/label"
    class_names: tuple[str, ...] = ()
    shape: tuple[int, ...] | None = None
    dtype: str = "uint8"
    targets: int = 0
    normalisation: Normalisation | None = None
    counts: dict[str, int] = field(default_factory=dict)


_FILE: JsonFile[Description] = JsonFile(
    LenientRecord(Description, complete=False), DataError, "restore the file, or convert the data again"
)


def write_description(folder: Path, description: Description) -> None:
    """Write the description into a folder. Raises OSError."""
    _FILE.write(folder / DESCRIPTION_FILE, description)


def read_description(folder: Path) -> Description | None:
    """Return the description in a folder; None if there is none. Raises DataError if it is damaged."""
    path = folder / DESCRIPTION_FILE
    return _FILE.read(path) if path.exists() else None
