"""The dataset ``arrays``."""

from pathlib import Path

import numpy as np
import pytest

from runner.data.arrays import Arrays
from runner.data.pipeline import Pipeline
from runner.data.settings import Augment
from runner.errors import ConfigError, DataError
from tests.data.own_data import Array, small_arrays, write_arrays


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "my.npz"


def arrays(path: Path, changes: dict[str, Array | None] | None = None, **settings: object) -> Arrays:
    write_arrays(path, **(changes or {}))
    return Arrays(path=str(path), **settings)  # type: ignore[arg-type]


def test_facts_are_those_of_the_loaded_data(path: Path) -> None:
    settings = arrays(path)
    facts, data = settings.facts(), settings.load()
    assert (facts.shape, facts.class_names) == ((1, 6, 5), ("0", "1", "2"))
    assert (facts.train_examples, facts.test_examples) == (8, 4)
    assert data.facts == facts
    np.testing.assert_array_equal(data.train.images[:, 0], small_arrays()["x_train"], strict=True)
    assert data.test.labels.dtype == np.int64


def test_facts_read_no_image(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    from runner.data import arrays as module

    original = module.read_array
    monkeypatch.setattr(module, "read_array", lambda path, name: read.append(name) or original(path, name))
    arrays(path).facts()
    assert set(read) == {"y_train", "y_test"}


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
def test_layouts(path: Path, shape: tuple[int, ...], layout: str | None, expected: tuple[int, ...]) -> None:
    stored = small_arrays(shape)
    settings = arrays(path, stored, layout=layout)
    assert settings.facts().shape == expected
    images = settings.load().train.images
    assert images.shape == (8, *expected)
    channels_last = expected != shape and len(shape) == 3
    taken = stored["x_train"].reshape(8, *shape) if not channels_last else stored["x_train"].transpose(0, 3, 1, 2)
    np.testing.assert_array_equal(images, taken.reshape(8, *expected))


@pytest.mark.parametrize("dtype", ["uint8", "float32", "float64"])
def test_train_images_are_normalised_by_their_own_statistics(path: Path, dtype: str) -> None:
    stored = small_arrays((2, 6, 5), dtype)
    data = arrays(path, stored).load()
    x = data.normalisation.apply(data.train.images, np.dtype("float64"))
    np.testing.assert_allclose(x.mean(axis=(0, 2, 3)), 0, atol=1e-12)
    np.testing.assert_allclose(x.std(axis=(0, 2, 3)), 1, rtol=1e-12)
    assert data.normalisation.scale == (255.0 if dtype == "uint8" else 1.0)


def test_configured_statistics_are_used(path: Path) -> None:
    data = arrays(path, mean=[0.5], std=[0.25]).load()
    assert (data.normalisation.mean, data.normalisation.std) == ((0.5,), (0.25,))


def test_floats_go_through_the_pipeline_as_they_are(path: Path) -> None:
    stored = small_arrays((6, 5), "float64")
    settings = arrays(path, stored, mean=[0.0], std=[1.0], augment=Augment(flip=True))
    batch = Pipeline(settings.load(), seed=0, batch_size=4, dtype="float64").read("test", 0, 0, 4)
    np.testing.assert_array_equal(batch["x"][:, 0], stored["x_test"], strict=True)
    augmented = Pipeline(settings.load(), seed=0, batch_size=8, dtype="float32", augment=settings.augment)
    x = augmented.read("train", 0, 0, 8)["x"]
    assert x.dtype == np.float32
    assert sorted(map(float, x.ravel())) == sorted(map(float, stored["x_train"].ravel()))


def test_class_names_are_read(path: Path) -> None:
    names = np.array(["cat", "dog", "eel", "fox"])
    assert arrays(path, {"class_names": names}).facts().class_names == ("cat", "dog", "eel", "fox")


def images(shape: tuple[int, ...], dtype: str = "uint8") -> dict[str, Array]:
    return {f"x_{split}": np.ones((count, *shape), dtype) for split, count in (("train", 8), ("test", 4))}


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"x_test": None, "y_test": None}, "has no x_test and no y_test: expected arrays x_train, y_train"),
        (images((6, 5), "int64"), "x_train is of dtype int64; expected uint8 or float32 or float64"),
        (images(()), r"x_train is \(8,\); expected \(N, H, W\)"),
        (images((0, 5)), r"x_train is \(8, 0, 5\); expected"),
        (images((3, 6, 3)), r"axis 1 or axis 3 can be the channels; expected data\.layout=nchw"),
        (images((6, 5, 7)), "axis 1 or axis 3"),
        ({"x_test": np.ones((4, 6, 6), "uint8")}, r"x_test holds images \(1, 6, 6\); expected images \(1, 6, 5\)"),
        ({"x_test": np.ones((4, 6, 5), "float32")}, "x_test is of dtype float32; expected uint8, as x_train"),
        ({"y_train": np.zeros(7, int)}, r"y_train is int64\[7\]; expected integers \[8\]"),
        ({"y_train": np.zeros(8)}, r"y_train is float64\[8\]; expected integers"),
        ({"y_test": np.array([0, -1, 0, 0])}, "y_test holds labels from -1 to 0; expected labels from 0"),
        (
            {"y_test": np.array([0, 10**9, 0, 0])},
            "from 0 to 1000000000; expected labels from 0, below 1,000,000",
        ),
        ({"class_names": np.array(["a", "b"])}, r"class_names is <U1\[2\]; expected text, the names of labels 0 to 2"),
        ({"class_names": np.zeros(3, "<U6000000")}, r"class_names is <U6000000\[3\]; expected text, .* in 64 MiB"),
        ({"class_names": np.arange(3)}, r"class_names is int64\[3\]; expected text"),
    ],
)
def test_impossible_files_are_refused(path: Path, changes: dict[str, Array | None], complaint: str) -> None:
    with pytest.raises(DataError, match=complaint) as caught:
        arrays(path, changes)
    assert str(path) in str(caught.value)


def test_images_that_are_not_finite_are_refused(path: Path) -> None:
    bad = np.ones((8, 6, 5), "float32")
    bad[5, 2, 2] = np.nan
    settings = arrays(path, {"x_train": bad, "x_test": np.ones((4, 6, 5), "float32")})
    with pytest.raises(DataError, match="x_train is not finite in example 5"):
        settings.load()


def test_a_channel_that_never_changes_is_refused(path: Path) -> None:
    settings = arrays(path, images((2, 6, 5)))
    with pytest.raises(DataError, match="channel 0 of the train images is 1 everywhere"):
        settings.load()


def test_data_that_takes_too_much_memory_are_refused_with_the_bytes(path: Path) -> None:
    complaint = r"x_train and x_test take 360 bytes in memory, more than data\.max_bytes=359; .* raise data\.max_bytes"
    with pytest.raises(DataError, match=complaint):
        arrays(path, max_bytes=359)
    assert arrays(path, max_bytes=360).facts().train_examples == 8


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"layout": "chw"}, r"data\.layout='chw': expected one of nchw, nhwc, or null"),
        ({"mean": [0.0]}, r"data\.mean=\[0\.0\] and data\.std=null: give both"),
        ({"mean": [0.0, 1.0], "std": [1.0, 1.0]}, "expected 1 numbers each, one for each channel"),
    ],
)
def test_impossible_settings_are_refused(path: Path, settings: dict[str, object], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        arrays(path, **settings)


def test_a_missing_path_is_refused_with_advice() -> None:
    with pytest.raises(ConfigError, match=r"data\.path is not set: dataset 'arrays' .* data=arrays data\.path=my\.npz"):
        Arrays().facts()


def test_a_path_is_kept_absolute(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_arrays(path)
    monkeypatch.chdir(path.parent)
    assert Arrays(path="my.npz").path == str(path)
