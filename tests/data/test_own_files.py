"""Datasets in the user's files: ``arrays`` and ``image_folder``, and their shared behaviour."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from runner.data import arrays as arrays_module
from runner.data import cifar100 as cifar100_module
from runner.data import pictures
from runner.data.arrays import Arrays
from runner.data.augmentation import Augment
from runner.data.cifar100 import Cifar100
from runner.data.dataset import Dataset
from runner.data.domains import Domains
from runner.data.image_folder import ImageFolder
from runner.data.imagenet import ImageNet
from runner.data.own_files import OwnFiles
from runner.data.pictures import read_image
from runner.data.pipeline import Pipeline
from runner.errors import ConfigError, DataError
from tests.data.own_data import Array, small_arrays, write_arrays, write_images


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "my.npz"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_images(tmp_path / "images")


def arrays(path: Path, changes: dict[str, Array | None] | None = None, **settings: object) -> Arrays:
    write_arrays(path, **(changes or {}))
    return Arrays(path=str(path), **settings)  # type: ignore[arg-type]


def test_facts_of_arrays_match_the_loaded_data(path: Path) -> None:
    settings = arrays(path)
    facts, data = settings.facts(), settings.load()
    assert (facts.shape, facts.class_names) == ((1, 6, 5), ("0", "1", "2"))
    assert (facts.train_examples, facts.test_examples) == (8, 4)
    np.testing.assert_array_equal(data.train["x"][:, 0], small_arrays()["x_train"], strict=True)
    assert data.test["y"].dtype == np.int64
    names = np.array(["cat", "dog", "eel", "fox"])
    assert arrays(path, {"class_names": names}).facts().class_names == ("cat", "dog", "eel", "fox")


def test_no_image_is_read_for_facts(path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    original = arrays_module.read_array
    monkeypatch.setattr(arrays_module, "read_array", lambda path, name: read.append(name) or original(path, name))
    arrays(path).facts()
    assert set(read) == {"y_train", "y_test"}
    path = folder / "train" / "cat" / "1.png"
    whole, settings = path.read_bytes(), ImageFolder(path=str(folder))
    for damaged, fault in ((b"no image", "cannot identify image file"), (whole[:-30], "")):
        path.write_bytes(damaged)
        assert settings.facts().train_examples == 4
        with pytest.raises(DataError, match=rf"train/cat/1\.png cannot be decoded: {fault}.*; replace "):
            settings.load()


@pytest.mark.parametrize(
    ("shape", "layout", "expected"),
    [
        ((6, 5), None, (1, 6, 5)),
        ((3, 6, 5), None, (3, 6, 5)),
        ((6, 5, 3), None, (3, 6, 5)),
        ((7, 6, 5), "nchw", (7, 6, 5)),
        ((6, 5, 7), "nhwc", (7, 6, 5)),
        ((3, 6, 4), "nhwc", (4, 3, 6)),
        ((9, 1, 1), "nchw", (9, 1, 1)),
    ],
)
def test_layouts_become_nchw(path: Path, shape: tuple[int, ...], layout: str | None, expected: tuple[int, ...]) -> None:
    stored = small_arrays(shape)
    settings = arrays(path, stored, layout=layout)
    assert settings.facts().shape == expected
    channels_last = expected != shape and len(shape) == 3
    taken = stored["x_train"].transpose(0, 3, 1, 2) if channels_last else stored["x_train"]
    np.testing.assert_array_equal(settings.load().train["x"], taken.reshape(8, *expected), strict=True)


@pytest.mark.parametrize("dtype", ["uint8", "float32", "float64"])
def test_train_images_are_normalised_by_their_own_statistics(path: Path, dtype: str) -> None:
    stored = small_arrays((2, 6, 5), dtype)
    data = arrays(path, stored).load()
    x = data.normalisation.apply(data.train["x"], np.dtype("float64"))
    np.testing.assert_allclose(x.mean(axis=(0, 2, 3)), 0, atol=1e-12)
    np.testing.assert_allclose(x.std(axis=(0, 2, 3)), 1, rtol=1e-12)
    assert data.normalisation.scale == (255.0 if dtype == "uint8" else 1.0)


@pytest.mark.parametrize("kind", ["bytes", "floats", "folder"])
def test_known_statistics_need_no_image(kind: str, path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own_files: type[OwnFiles] = ImageFolder if kind == "folder" else Arrays
    write_arrays(path, **small_arrays(dtype="uint8" if kind == "bytes" else "float32"))
    place, channels = (str(folder), 3) if kind == "folder" else (str(path), 1)
    settings = own_files(path=place, mean=[0.5] * channels, std=[0.25] * channels)
    expected = settings.load().normalisation
    assert (expected.mean, expected.std) == ((0.5,) * channels, (0.25,) * channels)
    assert own_files(path=place).normalisation() == own_files(path=place).load().normalisation != expected

    def refuse(self: OwnFiles) -> Dataset:
        raise AssertionError("the images were read")

    monkeypatch.setattr(own_files, "load", refuse)
    assert settings.normalisation() == expected


def test_floats_pass_the_pipeline_unchanged(path: Path) -> None:
    stored = small_arrays((6, 5), "float64")
    settings = arrays(path, stored, mean=[0.0], std=[1.0], augment=Augment(flip=True))
    batch = Pipeline(settings.load(), seed=0, batch_size=4, dtype="float64").read("test", 0, 0, 4)
    np.testing.assert_array_equal(batch["x"][:, 0], stored["x_test"], strict=True)
    augmented = Pipeline(settings.load(), seed=0, batch_size=8, dtype="float32", augment=settings.augment)
    x = augmented.read("train", 0, 0, 8)["x"]
    assert x.dtype == np.float32
    assert sorted(map(float, x.ravel())) == sorted(map(float, stored["x_train"].ravel()))


COUNTS = {"train": 8, "test": 4}
"""The numbers of examples in the splits of small arrays."""


def test_large_numbers_are_rounded_after_their_normalisation(path: Path) -> None:
    columns = {f"x_{split}": np.array([[1e8, -1e39], [1e8 + 4, 1e39]] * 4)[:count] for split, count in COUNTS.items()}
    batch = Pipeline(arrays(path, columns).load(), seed=0, batch_size=4, dtype="float32").read("test", 0, 0, 4)
    np.testing.assert_array_equal(batch["x"], np.float32([[-1, -1], [1, 1]] * 2), strict=True)


def images(shape: tuple[int, ...], dtype: str = "uint8") -> dict[str, Array]:
    return {f"x_{split}": np.ones((count, *shape), dtype) for split, count in COUNTS.items()}


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"x_test": None, "y_test": None}, "has no x_test and no y_test: expected arrays x_train, y_train"),
        (images((6, 5), "int64"), "x_train is of dtype int64; expected uint8 or float32 or float64"),
        (images(()), r"x_train is \(8,\); expected \(N, F\), \(N, H, W\)"),
        (images((0, 5)), r"x_train is \(8, 0, 5\); expected"),
        (images((3, 6, 3)), r"axis 1 or axis 3 can be the channels; expected data\.layout=nchw"),
        (images((6, 5, 7)), "axis 1 or axis 3"),
        ({"x_test": np.ones((4, 6, 6), "uint8")}, r"x_test holds examples \(1, 6, 6\); expected examples \(1, 6, 5\)"),
        ({"x_test": np.ones((4, 6, 5), "float32")}, "x_test is of dtype float32; expected uint8, as x_train"),
        ({"y_train": np.zeros(7, int)}, r"y_train is int64\[7\]; expected integers \[8\]"),
        ({"y_train": np.zeros(8)}, r"y_test is int64\[4\]; expected floats \[4, K\] in both splits, or \[4\]"),
        ({"y_train": np.zeros((8, 2, 1))}, r"y_train is float64\[8, 2, 1\]; expected floats \[8, K\]"),
        ({"y_train": np.zeros((8, 0)), "y_test": np.zeros((4, 0))}, r"y_train is float64\[8, 0\]; expected floats"),
        ({"y_test": np.array([0, -1, 0, 0])}, "y_test holds labels from -1 to 0; expected labels from 0"),
        ({"y_test": np.array([0, 10**9, 0, 0])}, "from 0 to 1000000000; expected labels from 0, below 1,000,000"),
        ({"class_names": np.array(["a", "b"])}, r"class_names is <U1\[2\]; expected text, the names of labels 0 to 2"),
        ({"class_names": np.zeros(3, "<U6000000")}, r"class_names is <U6000000\[3\]; expected text, .* at most 64 MiB"),
        ({"class_names": np.arange(3)}, r"class_names is int64\[3\]; expected text"),
    ],
)
def test_impossible_files_are_refused(path: Path, changes: dict[str, Array | None], complaint: str) -> None:
    with pytest.raises(DataError, match=complaint) as caught:
        arrays(path, changes)
    assert str(path) in str(caught.value)


def test_images_that_are_constant_or_not_finite_are_refused(path: Path) -> None:
    bad = np.ones((8, 6, 5), "float32")
    bad[5, 2, 2] = np.nan
    settings = arrays(path, {"x_train": bad, "x_test": np.ones((4, 6, 5), "float32")})
    with pytest.raises(DataError, match="x_train is not finite in example 5"):
        settings.load()
    settings = arrays(path, images((2, 6, 5)))
    with pytest.raises(DataError, match="channel 0 of the train examples is 1 everywhere"):
        settings.load()
    tenths = {name: 0.1 * values for name, values in images((7,), "float64").items()}  # their mean is not 0.1
    with pytest.raises(DataError, match=r"channel 0 of the train examples is 0\.1 everywhere"):
        arrays(path, tenths).load()


def test_data_that_take_too_much_memory_are_refused_with_the_bytes(path: Path, folder: Path) -> None:
    complaint = r"x_train and x_test take 360 bytes in memory, more than data\.max_bytes=359; .* raise data\.max_bytes"
    with pytest.raises(DataError, match=complaint):
        arrays(path, max_bytes=359)
    assert arrays(path, max_bytes=360).facts().train_examples == 8
    with pytest.raises(DataError, match=r"6 images of 3x4x4 take 288 bytes in memory, more than data\.max_bytes=287"):
        ImageFolder(path=str(folder), size=4, max_bytes=287)


ONE_EACH = r"expected 1 number\(s\) each, one for each channel"


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"layout": "chw"}, r"data\.layout='chw': expected one of nchw, nhwc, or null"),
        ({"mean": [0.0]}, rf"data\.mean=\[0\.0\] and data\.std=null: {ONE_EACH}, or null"),
        ({"mean": [0.0, 1.0], "std": [1.0, 1.0]}, ONE_EACH),
        ({"mean": [], "std": []}, ONE_EACH),
        ({"path": ""}, r"data\.path is not set: dataset 'arrays' .* data=arrays data\.path=my\.npz"),
    ],
)
def test_impossible_settings_of_arrays_are_refused(path: Path, settings: dict[str, object], complaint: str) -> None:
    write_arrays(path)
    with pytest.raises(ConfigError, match=complaint):
        Arrays(**{"path": str(path), **settings}).facts()  # type: ignore[arg-type]


def test_paths_are_stored_as_absolute_paths(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_arrays(path)
    monkeypatch.chdir(path.parent)
    settings = Domains(sources={"a": {"name": "arrays", "path": "my.npz"}}, cache_dir="cache")
    assert settings.sources == {"a": {"name": "arrays", "path": str(path)}}
    assert settings.cache_dir == str(path.parent / "cache")
    assert Arrays(path="my.npz").path == str(path)


def test_facts_of_a_folder_match_the_loaded_data(folder: Path) -> None:
    settings = ImageFolder(path=str(folder), size=4)
    facts, data = settings.facts(), settings.load()
    assert (facts.shape, facts.class_names) == ((3, 4, 4), ("cat", "dog"))
    assert (facts.train_examples, facts.test_examples) == (4, 2)
    assert data.train["x"].dtype == np.uint8
    assert data.train["x"][:, 0, 0, 0].tolist() == [0, 10, 100, 110]
    assert data.train["y"].tolist() == [0, 0, 1, 1]
    assert data.normalisation.mean == (55 / 255,) * 3


def test_classes_and_images_are_ordered_by_name_without_hidden_entries(folder: Path) -> None:
    for split in ("train", "test"):
        (folder / split / "cat").rename(folder / split / "zebra")
    (folder / "train" / "dog" / "0.png").rename(folder / "train" / "dog" / "9.png")
    for hidden in (".git", "train/.cache", "train/zebra/.more"):
        (folder / hidden).mkdir()
    data = ImageFolder(path=str(folder), size=4).load()
    assert data.train["x"][:, 0, 0, 0].tolist() == [110, 100, 0, 10]


def test_an_image_is_cropped_to_the_largest_centred_part_and_resized(tmp_path: Path) -> None:
    pixels = np.zeros((4, 8, 3), np.uint8)
    pixels[:, 2:6] = (1, 2, 3)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    centre = np.moveaxis(pixels[:, 2:6], 2, 0)
    np.testing.assert_array_equal(read_image(tmp_path / "a.png", (3, 4, 4)), centre, strict=True)
    assert read_image(tmp_path / "a.png", (3, 2, 2)).tolist() == [[[c, c], [c, c]] for c in (1, 2, 3)]
    assert read_image(tmp_path / "a.png", (1, 2, 2)).shape == (1, 2, 2)
    wide = np.zeros((4, 8), np.uint8)
    wide[1:3] = np.arange(8)
    Image.fromarray(wide).save(tmp_path / "b.png")
    assert read_image(tmp_path / "b.png", (1, 2, 8)).tolist() == [[list(range(8))] * 2]


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA"])
def test_every_readable_mode_is_converted(tmp_path: Path, mode: str) -> None:
    Image.new(mode, (3, 3)).save(tmp_path / "a.png")
    for channels in (1, 3):
        assert read_image(tmp_path / "a.png", (channels, 3, 3)).shape == (channels, 3, 3)


@pytest.mark.parametrize(
    ("mode", "form", "complaint"),
    [
        ("I;16", "PNG", r"a\.png is a I;16 image of 3x3 pixels; expected mode 1, L, LA, P, RGB, RGBA"),
        ("RGB", "PNG", r"of 3x3 pixels; expected .* and at most 8 pixels"),
        ("RGB", "GIF", "cannot identify image file"),
    ],
)
def test_images_of_other_kinds_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, form: str, complaint: str
) -> None:
    monkeypatch.setattr(pictures, "MOST_PIXELS", 8 if mode == "RGB" else 9)
    Image.new(mode, (3, 3)).save(tmp_path / "a.png", format=form)
    with pytest.raises(DataError, match=complaint):
        read_image(tmp_path / "a.png", (3, 3, 3))


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
        (added("train/labels.csv"), r"train/labels\.csv is not a folder: expected"),
        (added("train/cat/a.webp"), r"train/cat/a\.webp: expected files \.png, \.jpg, \.jpeg; remove or convert it"),
        (created("train/cat/more.png"), r"train/cat/more\.png: expected files"),
        (created("train/eel"), r"train/eel holds no image"),
        (moved("test/dog", "test/eel"), r"/test has classes eel that train does not have; expected some of: cat, dog"),
        (lambda folder: shutil.rmtree(folder / "test") or (folder / "test").mkdir(), r"images/test holds no class"),
    ],
)
def test_impossible_folders_are_refused(folder: Path, damage: Callable[[Path], object], complaint: str) -> None:
    damage(folder)
    with pytest.raises(DataError, match=complaint):
        ImageFolder(path=str(folder))


def test_impossible_settings_of_a_folder_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"data\.channels=4: expected 3 for colour or 1 for grey"):
        ImageFolder(channels=4)
    with pytest.raises(ConfigError, match=r"data\.path is not set: dataset 'image_folder' .* name a folder of train"):
        ImageFolder().facts()


CIFAR100_SPLITS = {"train.bin": 6, "test.bin": 4}


@pytest.fixture
def cifar100(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with the files of CIFAR-100, with a few records in each."""
    monkeypatch.setattr(cifar100_module, "TRAIN_IMAGES", 6)
    monkeypatch.setattr(cifar100_module, "TEST_IMAGES", 4)
    for filename, images in CIFAR100_SPLITS.items():
        records = np.random.default_rng(images).integers(0, 100, (images, 3074)).astype(np.uint8)
        (tmp_path / filename).write_bytes(records.tobytes())
    return tmp_path


def test_cifar100_is_read_from_its_binary_files(cifar100: Path) -> None:
    data = Cifar100(path=str(cifar100)).load()
    for split, filename in ((data.train, "train.bin"), (data.test, "test.bin")):
        stored = np.frombuffer((cifar100 / filename).read_bytes(), np.uint8).reshape(-1, 3074)
        np.testing.assert_array_equal(split["y"], stored[:, 1])  # the fine label follows the coarse one
        np.testing.assert_array_equal(split["x"].reshape(-1, 3072), stored[:, 2:], strict=True)


DAMAGED_CIFAR100: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "does not have the expected 12,296 bytes": ("test.bin", lambda stored: stored[:-1]),
    "does not have the expected 18,444 bytes": ("train.bin", lambda stored: stored + b"0"),
    "label 100, expected labels from 0 to 99": ("train.bin", lambda stored: stored[:1] + b"d" + stored[2:]),
}


@pytest.mark.parametrize("message", DAMAGED_CIFAR100)
def test_damaged_files_of_cifar100_are_refused(cifar100: Path, message: str) -> None:
    filename, damage = DAMAGED_CIFAR100[message]
    path = cifar100 / filename
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DataError) as caught:
        Cifar100(path=str(cifar100)).load()
    assert str(caught.value).startswith(f"{path}")
    assert message in str(caught.value)
    assert str(caught.value).endswith("as in data=cifar100 data.path=cifar-100-binary")


def test_imagenet_is_an_image_folder_whose_test_split_is_val(folder: Path) -> None:
    expected = ImageFolder(path=str(folder), size=4).load()
    (folder / "test").rename(folder / "val")
    assert ImageNet(path=str(folder)).streamed
    settings = ImageNet(path=str(folder), size=4, stream=False)
    found = settings.load()
    assert found.normalisation == settings.normalisation() == ImageNet().known_normalisation()
    for ours, theirs in ((found.train, expected.train), (found.test, expected.test)):
        for name in ("x", "y"):
            np.testing.assert_array_equal(ours[name], theirs[name], strict=True)


@pytest.mark.parametrize(
    ("settings", "shape", "classes", "examples"),
    [
        (Cifar100(), (3, 32, 32), 100, (50_000, 10_000)),
        (ImageNet(), (3, 224, 224), 1000, (1_281_167, 50_000)),
        (ImageNet(size=299), (3, 299, 299), 1000, (1_281_167, 50_000)),
    ],
)
def test_published_datasets_have_facts_without_a_path(
    settings: OwnFiles, shape: tuple[int, ...], classes: int, examples: tuple[int, int]
) -> None:
    facts = settings.facts()
    assert (facts.shape, facts.classes, (facts.train_examples, facts.test_examples)) == (shape, classes, examples)
    message = rf"data\.path is not set: dataset '{settings.name}' is read from your files; name"
    with pytest.raises(DataError, match=message):
        settings.require_present()
    with pytest.raises(ConfigError, match=r"crop_padding=300: expected less than (32|224|299) pixels for dataset"):
        replace(settings, augment=Augment(crop_padding=300))
