"""The user's images, one file each, in a folder for each class."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from runner.data.dataset import Dataset, Facts, Split
from runner.data.encoded_files import EncodedFiles
from runner.data.preprocessing import ImagePreprocessing, PreprocessingSettings
from runner.data.streamed import ImageFiles
from runner.errors import ConfigError, DataError

SUFFIXES = (".png", ".jpg", ".jpeg")


@dataclass
class ImageFolder(EncodedFiles):
    """The user's image files: PATH/train/CLASS/*.png and PATH/test/CLASS/*.png, or .jpg, .jpeg.

    The folders in ``train`` are sorted by name, and the index of a folder is the label of its class. The images of a
    class are sorted by name. Names that begin with a dot are ignored. Files of other types raise DataError, so that no
    image is overlooked.

    stream: false to decode all images once, when the data are loaded, and keep them as uint8; true to decode images
    when a batch needs them, as ``preprocessing`` and ``skip_errors`` require. SPLITS: the folders of both splits.
    """

    SPLITS: ClassVar[tuple[str, str]] = ("train", "test")

    name: str = "image_folder"
    stream: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.stream and (self.preprocessing != PreprocessingSettings() or self.skip_errors):
            found = f"data.preprocessing.name={self.preprocessing.name} and data.skip_errors={self.skip_errors}"
            fault = "images in memory have one size; use data.stream=true"
            raise ConfigError(f"data.stream=false with {found}: {fault}")

    @property
    def streamed(self) -> bool:
        return self.stream

    @property
    def ask(self) -> str:
        return f"name a folder of {self._layout()}, as in data={self.name} data.path=my_images"

    def _layout(self) -> str:
        return " and ".join(f"{split}/CLASS/IMAGE" for split in self.SPLITS)

    def facts_of_files(self) -> Facts:
        """Return image shape, class names and example counts from the names of the files, without opening any file."""
        train, test = self._listed()
        counts = [sum(map(len, split.values())) for split in (train, test)]
        shape = (self.channels, self.size, self.size)
        if not self.stream:
            what = f"{sum(counts):,} images of {'x'.join(map(str, shape))}"
            self.require_room(sum(counts) * int(np.prod(shape)), what)
        return Facts.labelled(shape, tuple(train), counts[0], counts[1])

    def load(self) -> Dataset:
        """List or decode all images. Raises DataError, naming the file, if an image cannot be decoded."""
        names, preprocessing = self.facts().class_names, self.image_preprocessing()
        files, scored = (ImageFiles(*_labelled(split, names)) for split in self._listed())
        if self.stream:
            normalisation = self.normalisation_of_examples(files, preprocessing)
            return Dataset(self.name, files, scored, normalisation, preprocessing, self.skip_errors)
        train, test = (_decoded(split, preprocessing) for split in (files, scored))
        return Dataset(self.name, train, test, self.normalisation_of_examples(train, None))

    def _listed(self) -> tuple[dict[str, list[Path]], dict[str, list[Path]]]:
        """Return class -> files for the train and the test split. Raises DataError if a class has no train images."""
        train, test = (classes_in(Path(self.path) / split, self._layout()) for split in self.SPLITS)
        unknown = sorted(set(test) - set(train))
        if unknown:
            fault = f"has classes {', '.join(unknown)} that train does not have; expected some of: {', '.join(train)}"
            raise DataError(f"{self.path}/{self.SPLITS[1]} {fault}")
        return train, test


def _decoded(files: ImageFiles, preprocessing: ImagePreprocessing) -> Split:
    """Return decoded images in memory."""
    images = np.empty((len(files), *preprocessing.shape), np.uint8)
    for number, image in enumerate(images):
        (encoded,) = files.take(np.array([number]))["x"]
        image[...] = preprocessing.evaluate(encoded)
    return Split({"x": images, "y": files.strata})


def _labelled(files: dict[str, list[Path]], class_names: tuple[str, ...]) -> tuple[list[Path], NDArray[np.int64]]:
    """Return the files of all classes in the order of the classes, and the label of each."""
    found = [(path, label) for label, name in enumerate(class_names) for path in files.get(name, ())]
    return [path for path, _ in found], np.array([label for _, label in found], np.int64)


def classes_in(folder: Path, layout: str) -> dict[str, list[Path]]:
    """Return class -> image files of a split, sorted by name. Raises DataError for other files and empty folders.

    layout: the expected files, for messages.
    """
    found = {}
    for entry in _entries(folder, layout):
        if not entry.is_dir():
            raise DataError(f"{entry.path} is not a folder: expected {layout}; remove it")
        files = _entries(Path(entry), layout)
        if other := next((each for each in files if not _is_image(each)), None):
            raise DataError(f"{other.path}: expected files {', '.join(SUFFIXES)}; remove or convert it")
        if not files:
            raise DataError(f"{entry.path} holds no image: expected {', '.join(SUFFIXES)}; add images or remove it")
        found[entry.name] = [Path(file) for file in files]
    if not found:
        raise DataError(f"{folder} holds no class: expected {layout}")
    return found


def _is_image(entry: os.DirEntry[str]) -> bool:
    return os.path.splitext(entry.name)[1].lower() in SUFFIXES and entry.is_file()


def _entries(folder: Path, layout: str) -> list[os.DirEntry[str]]:
    """Return the entries of a folder, sorted by name, except those whose names begin with a dot."""
    try:
        with os.scandir(folder) as entries:
            return sorted((each for each in entries if not each.name.startswith(".")), key=lambda each: each.name)
    except OSError as error:
        raise DataError(f"{folder} cannot be read: {error.strerror}; expected {layout} below data.path") from error
