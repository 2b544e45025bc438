"""The dataset ``image_folder``."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from runner.data import pictures
from runner.data.image_folder import ImageFolder
from runner.data.pictures import read_image
from runner.errors import ConfigError, DataError
from tests.data.own_data import write_images


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_images(tmp_path / "images")


def test_facts_are_those_of_the_loaded_data(folder: Path) -> None:
    settings = ImageFolder(path=str(folder), size=4)
    facts, data = settings.facts(), settings.load()
    assert (facts.shape, facts.class_names) == ((3, 4, 4), ("cat", "dog"))
    assert (facts.train_examples, facts.test_examples) == (4, 2)
    assert data.facts == facts
    assert data.train.images.dtype == np.uint8
    assert data.train.images[:, 0, 0, 0].tolist() == [0, 10, 100, 110]
    assert data.train.labels.tolist() == [0, 0, 1, 1]
    assert data.normalisation.mean == (55 / 255,) * 3


def test_classes_and_images_are_ordered_by_name(folder: Path) -> None:
    (folder / "train" / "cat").rename(folder / "train" / "zebra")
    (folder / "test" / "cat").rename(folder / "test" / "zebra")
    (folder / "train" / "dog" / "0.png").rename(folder / "train" / "dog" / "9.png")
    data = ImageFolder(path=str(folder), size=4).load()
    assert data.class_names == ("dog", "zebra")
    assert data.train.images[:, 0, 0, 0].tolist() == [110, 100, 0, 10]


def test_hidden_entries_are_ignored(folder: Path) -> None:
    (folder / ".git").mkdir()
    (folder / "train" / ".cache").mkdir()
    (folder / "train" / "cat" / ".DS_Store").write_text("x")
    assert ImageFolder(path=str(folder)).facts().train_examples == 4


def test_facts_open_no_image(folder: Path) -> None:
    (folder / "train" / "cat" / "1.png").write_bytes(b"no image")
    settings = ImageFolder(path=str(folder))
    assert settings.facts().train_examples == 4
    with pytest.raises(DataError, match=r"train/cat/1\.png cannot be decoded: cannot identify image file"):
        settings.load()


def test_an_image_becomes_its_central_square(tmp_path: Path) -> None:
    pixels = np.zeros((4, 8, 3), np.uint8)
    pixels[:, 2:6] = (1, 2, 3)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    np.testing.assert_array_equal(
        read_image(tmp_path / "a.png", (3, 4, 4)), np.moveaxis(pixels[:, 2:6], 2, 0), strict=True
    )
    assert read_image(tmp_path / "a.png", (3, 2, 2)).tolist() == [[[c, c], [c, c]] for c in (1, 2, 3)]
    assert read_image(tmp_path / "a.png", (1, 2, 2)).shape == (1, 2, 2)


def test_an_image_need_not_become_a_square(tmp_path: Path) -> None:
    pixels = np.zeros((4, 8), np.uint8)
    pixels[1:3] = np.arange(8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    assert read_image(tmp_path / "a.png", (1, 2, 8)).tolist() == [[list(range(8))] * 2]


def test_an_image_is_turned_upright(tmp_path: Path) -> None:
    pixels = np.array([[10, 20], [30, 40]], np.uint8)
    exif = Image.Exif()
    exif[0x0112] = 3  # upside down
    Image.fromarray(pixels).save(tmp_path / "a.png", exif=exif)
    assert read_image(tmp_path / "a.png", (1, 2, 2))[0].tolist() == [[40, 30], [20, 10]]


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA"])
def test_every_readable_mode_is_converted(tmp_path: Path, mode: str) -> None:
    Image.new(mode, (3, 3)).save(tmp_path / "a.png")
    for channels in (1, 3):
        assert read_image(tmp_path / "a.png", (channels, 3, 3)).shape == (channels, 3, 3)


def test_a_damaged_image_is_named(folder: Path) -> None:
    path = folder / "test" / "dog" / "0.png"
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(DataError, match=r"test/dog/0\.png cannot be decoded: .*; replace or remove it"):
        ImageFolder(path=str(folder)).load()


def test_images_of_other_kinds_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Image.new("I;16", (3, 3)).save(tmp_path / "a.png")
    with pytest.raises(DataError, match=r"a\.png is I;16 of 3x3 pixels; expected 1, L, LA, P, RGB, RGBA"):
        read_image(tmp_path / "a.png", (3, 3, 3))
    Image.new("RGB", (3, 3)).save(tmp_path / "b.png")
    monkeypatch.setattr(pictures, "MOST_PIXELS", 8)
    with pytest.raises(DataError, match=r"of 3x3 pixels; expected .* of at most 8 pixels"):
        read_image(tmp_path / "b.png", (3, 3, 3))
    Image.new("RGB", (3, 3)).save(tmp_path / "c.png", format="GIF")
    with pytest.raises(DataError, match="cannot identify image file"):
        read_image(tmp_path / "c.png", (3, 3, 3))


def moved(source: str, target: str) -> Callable[[Path], object]:
    return lambda folder: (folder / source).rename(folder / target)


def added(file: str) -> Callable[[Path], object]:
    return lambda folder: (folder / file).write_text("x")


def created(subfolder: str) -> Callable[[Path], object]:
    return lambda folder: (folder / subfolder).mkdir()


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (moved("train", "elsewhere"), r"images/train cannot be read: No such file or directory; expected train/CLASS"),
        (added("train/labels.csv"), r"train/labels\.csv is no folder: expected"),
        (added("train/cat/a.webp"), r"train/cat/a\.webp: expected files \.png, \.jpg, \.jpeg; remove or convert it"),
        (created("train/cat/more.png"), r"train/cat/more\.png: expected files"),
        (created("train/eel"), r"train/eel holds no image"),
        (moved("test/dog", "test/eel"), r"/test has classes eel that train does not have; expected some of: cat, dog"),
        (lambda folder: shutil.rmtree(folder / "test") or (folder / "test").mkdir(), r"images/test holds no class"),
    ],
)
def test_impossible_folders_are_refused_before_a_run(
    folder: Path, damage: Callable[[Path], object], complaint: str
) -> None:
    damage(folder)
    with pytest.raises(DataError, match=complaint):
        ImageFolder(path=str(folder))


def test_data_that_take_too_much_memory_are_refused_with_the_bytes(folder: Path) -> None:
    with pytest.raises(DataError, match=r"6 images of 3x4x4 take 288 bytes in memory, more than data\.max_bytes=287"):
        ImageFolder(path=str(folder), size=4, max_bytes=287)


def test_impossible_settings_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"data\.channels=4: expected 3 for colour or 1 for grey"):
        ImageFolder(channels=4)


def test_a_missing_path_is_refused_with_advice() -> None:
    with pytest.raises(ConfigError, match=r"data\.path is not set: dataset 'image_folder' .* name a folder of train"):
        ImageFolder().facts()
