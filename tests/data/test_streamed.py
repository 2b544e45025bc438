"""Streamed data: records and image files give the batches of the same data in memory, bit for bit."""

import io
import re
import tracemalloc
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from runner.commands.explain import explain
from runner.data import Arrays, Domains, ImageFolder, TFRecord, encoded_files
from runner.data.augmentation import Augment
from runner.data.convert import convert
from runner.data.dataset import Subset
from runner.data.inspection import inspection
from runner.data.order import Shuffle, epoch_order
from runner.data.pipeline import Batch, Pipeline
from runner.data.preprocessing import PreprocessingSettings
from runner.data.records.description import DESCRIPTION_FILE
from runner.data.records.example import Value, encode
from runner.data.records.shards import shard_name
from runner.data.settings import DatasetSettings, limited_facts, load_limited
from runner.data.source import pipeline_of
from runner.data.streamed import BOX
from runner.errors import ConfigError, DataError
from runner.system.record_framing import framed
from tests.data.own_data import small_arrays, write_arrays, write_images
from tests.small_runs import small_config


def pipeline(settings: DatasetSettings, dtype: str = "float32") -> Pipeline:
    return pipeline_of(settings, load_limited(settings), seed=3, batch_size=5, dtype=dtype)


def batches(settings: DatasetSettings, dtype: str = "float32") -> list[Batch]:
    splits = ("train", "test", *(("val",) if settings.val_fraction else ()))
    with closing(pipeline(settings, dtype)) as source:
        return [source.read(split, step, lo, 5) for split in splits for step in range(4) for lo in (0, 2)]


def assert_equal_batches(found: list[Batch], expected: list[Batch]) -> None:
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.keys() == theirs.keys()
        for name in theirs:
            np.testing.assert_array_equal(ours[name], theirs[name], strict=True)


def converted(settings: DatasetSettings, folder: Path, *shards: int, **options: object) -> TFRecord:
    """Convert a dataset to records in a folder, and return settings that read them."""
    convert(settings, folder / "records", shards, report=lambda line: None)
    return TFRecord(path=str(folder / "records"), cache_dir=str(folder / "cache"), **options)


def varied_images(folder: Path) -> Path:
    """Write images of several sizes, formats and colours in two classes; return the folder."""
    rng = np.random.default_rng(0)
    for split, count in (("train", 7), ("test", 3)):
        for name in ("cat", "dog"):
            (folder / split / name).mkdir(parents=True)
            for number in range(count):
                pixels = rng.integers(0, 256, (20 + 3 * number, 30 - 2 * number, 3), np.uint8)
                suffix = ("png", "jpg")[number % 2]
                image = Image.fromarray(pixels).resize((24 + number, 22)).convert("CMYK" if number == 3 else "RGB")
                image.save(folder / split / name / f"{number}.{suffix}")
    return folder


AUGMENT = Augment(crop_padding=1, flip=True)


@pytest.mark.parametrize("dtype", ["uint8", "float32", "float64"])
@pytest.mark.parametrize("shape", [(3, 6, 5), (7,)])
def test_converted_arrays_give_the_batches_of_the_arrays(dtype: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    augment = AUGMENT if len(shape) == 3 else Augment()
    rng = np.random.default_rng(1)
    changed = {f"x_{split}": (rng.random((n, *shape)) * 255).astype(dtype) for split, n in (("train", 8), ("test", 4))}
    settings = Arrays(path=str(write_arrays(tmp_path / "my.npz", **changed)), augment=augment, val_fraction=0.25)
    records = converted(settings, tmp_path, 3, 2, augment=augment, val_fraction=0.25, threads=2)
    assert limited_facts(records) == limited_facts(settings)
    assert records.normalisation() == settings.normalisation()
    assert not records.fits_images
    for inputs in ("float32", "float64"):
        assert_equal_batches(batches(records, inputs), batches(settings, inputs))


def test_converted_numbers_to_predict_are_restored(tmp_path: Path) -> None:
    targets = {f"y_{split}": np.float32(np.arange(2 * n).reshape(n, 2)) / 3 for split, n in (("train", 8), ("test", 4))}
    settings = Arrays(path=str(write_arrays(tmp_path / "my.npz", **targets)))
    records = converted(settings, tmp_path, 2, 1)
    assert limited_facts(records) == limited_facts(settings)
    assert_equal_batches(batches(records), batches(settings))
    precise = {name: values.astype(np.float64) + 1e-12 for name, values in targets.items()}
    settings = Arrays(path=str(write_arrays(tmp_path / "my.npz", **precise)))
    with pytest.raises(DataError, match="is not a float32; records hold float32 numbers: round y"):
        converted(settings, tmp_path / "precise", 2, 1)
    assert not (tmp_path / "precise" / "records").exists(), "the same command can be given again"


@pytest.mark.parametrize("channels", [1, 3])
def test_streamed_images_and_their_records_give_the_batches_of_loaded_images(
    channels: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoded_files, "MOST_MEASURED", 5)  # of 14 train images
    shared = {"size": 8, "channels": channels, "augment": AUGMENT, "val_fraction": 0.3}
    settings = ImageFolder(path=str(varied_images(tmp_path / "images")), **shared)
    expected = batches(settings)
    streamed = replace(settings, stream=True, threads=3)
    assert streamed.streamed
    assert_equal_batches(batches(streamed), expected)
    records = converted(settings, tmp_path, 4, 1, **shared)
    assert limited_facts(records) == limited_facts(settings)
    assert_equal_batches(batches(records), expected)
    other = 4 - channels
    assert batches(replace(records, channels=other))[0]["x"].shape == (5, other, 8, 8)
    assert len(replace(records, channels=other).normalisation().mean) == other


@pytest.mark.parametrize("dtype", ["uint8", "float32"])
@pytest.mark.parametrize("shape", [(6, 5), (3, 6, 5), (6, 5, 3), (7,)])
def test_mapped_arrays_give_the_batches_of_loaded_arrays(dtype: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    stored = small_arrays(shape, dtype)
    loaded = Arrays(path=str(write_arrays(tmp_path / "my.npz", **stored)), val_fraction=0.25)
    expected = batches(loaded)
    folder = tmp_path / "arrays"
    folder.mkdir()
    for name, values in stored.items():
        np.save(folder / f"{name}.npy", values)
    for settings in (replace(loaded, stream=True), replace(loaded, path=str(folder), stream=True)):
        train = load_limited(settings).train
        assert isinstance(train.take(np.arange(2))["x"], np.ndarray)
        assert isinstance(train["x"].base, np.memmap) or isinstance(train["x"], np.memmap)
        assert_equal_batches(batches(settings), expected)
    assert_equal_batches(batches(replace(loaded, path=str(folder))), expected)
    limited = replace(loaded, train_limit=6)
    assert_equal_batches(batches(replace(limited, stream=True)), batches(limited))


def test_arrays_that_cannot_be_mapped_are_refused(tmp_path: Path) -> None:
    stored = small_arrays(dtype="float32")
    np.savez_compressed(tmp_path / "small.npz", **stored)
    advice = r"write the file with numpy\.savez"
    with pytest.raises(DataError, match=rf"'x_train' is compressed and cannot be mapped; {advice}"):
        Arrays(path=str(tmp_path / "small.npz"), stream=True).load()
    ordered = {**stored, "x_train": np.asfortranarray(stored["x_train"])}
    with pytest.raises(DataError, match="'x_train' is in Fortran order and cannot be mapped"):
        Arrays(path=str(write_arrays(tmp_path / "f.npz", **ordered)), stream=True).load()
    stored["x_train"][3, 0, 0] = np.nan
    settings = Arrays(path=str(write_arrays(tmp_path / "n.npz", **stored)), stream=True, mean=[0.0], std=[1.0])
    with pytest.raises(DataError, match=r"n\.npz: x_train is not finite in example 3; expected finite numbers"):
        batches(settings)
    with pytest.raises(DataError, match="channel 0 of the train examples has mean nan, deviation nan; expected finite"):
        replace(settings, mean=None, std=None).load()


def test_limits_of_streamed_data_keep_the_examples_of_limited_arrays(tmp_path: Path) -> None:
    settings = Arrays(path=str(write_arrays(tmp_path / "my.npz")), mean=[0.5], std=[0.3])
    limits = {"train_limit": 6, "test_limit": 3, "val_fraction": 0.5, "mean": [0.5], "std": [0.3]}
    records = converted(settings, tmp_path, 3, 1, **limits)
    assert_equal_batches(batches(records), batches(replace(settings, **limits)))
    train = load_limited(records).train
    assert isinstance(train, Subset)
    assert train.shards.tolist() == [3, 2, 1]


def image_records(folder: Path, images: list[bytes], **more: Value) -> Path:
    folder.mkdir()
    for name in ("train", "test"):
        records = [
            framed(encode({"image/encoded": [content], "image/class/label": np.array([1 + number % 2]), **more}))
            for number, content in enumerate(images)
        ]
        (folder / shard_name(name, 0, 1)).write_bytes(b"".join(records))
    return folder


def png(value: int) -> bytes:
    out = io.BytesIO()
    Image.fromarray(np.full((4, 4, 3), value, np.uint8)).save(out, "png")
    return out.getvalue()


def test_the_labels_of_imagenet_records_begin_at_1(tmp_path: Path) -> None:
    settings = {"path": str(image_records(tmp_path / "r", [png(0), png(9)])), "cache_dir": str(tmp_path), "size": 4}
    assert TFRecord(**settings, first_label=1).facts().class_names == ("0", "1")
    assert TFRecord(**settings).facts().classes == 3
    with pytest.raises(DataError, match=r"labels are 1 to 2; expected 2 to 2, 1 classes from data\.first_label on"):
        TFRecord(**settings, first_label=2, classes=1)


@pytest.mark.parametrize("count", [0, 2])
def test_converted_records_keep_the_bounding_boxes(count: int, tmp_path: Path) -> None:
    sides = {side: np.float32(np.arange(count)) / 8 + number for number, side in enumerate(BOX)}
    settings = TFRecord(path=str(image_records(tmp_path / "r", [png(0)], **sides)), cache_dir=str(tmp_path), size=4)
    shared = {"mean": [0.0] * 3, "std": [1.0] * 3}
    records = converted(replace(settings, **shared), tmp_path, 1, 1)
    for each in (settings, records):
        (image,) = replace(each, **shared).load().train.take(np.arange(1))["x"]
        np.testing.assert_array_equal(image.boxes, np.stack([*sides.values()], axis=1), strict=True)


def test_undecodable_images_are_replaced_or_masked(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = image_records(tmp_path / "r", [png(10), b"no image", png(30), png(40)])
    shared = {"path": str(folder), "cache_dir": str(tmp_path), "size": 4, "mean": [0.0] * 3, "std": [1 / 255] * 3}
    with pytest.raises(DataError, match=r"train-00000-of-00001: record 1 at offset \d+ cannot be decoded"):
        batches(TFRecord(**shared, first_label=1, skip_errors=0))
    settings = TFRecord(**shared, first_label=1, skip_errors=2)
    assert_equal_batches(batches(replace(settings, threads=2)), batches(settings))
    source = pipeline(settings)
    scored = source.read("test", 0, 0, 5)
    np.testing.assert_array_equal(scored["mask"], [1, 0, 1, 1, 0])
    np.testing.assert_allclose(scored["x"][:, 0, 0, 0], [10, 0, 30, 40, 40], rtol=1e-6)
    trained = source.read("train", 0, 0, 4)
    values = np.round(trained["x"][:, 0, 0, 0]).astype(int)
    assert sorted(values) == [10, 30, 30, 40]
    assert set(zip(values.tolist(), trained["y"].tolist(), strict=True)) == {(10, 0), (30, 0), (40, 1)}
    assert "(1 of data.skip_errors=2)" in caplog.text
    assert "sheet.png: one train example per row" in inspection(settings, 0, 4, tmp_path / "sheet.png")
    bad = TFRecord(**shared | {"path": str(image_records(tmp_path / "bad", [b"?"]))}, skip_errors=9)
    with pytest.raises(DataError, match="no image of its split can be decoded"):
        pipeline(bad).read("train", 0, 0, 1)


def test_undecodable_images_are_left_out_of_the_computed_normalisation(tmp_path: Path) -> None:
    images = {"whole": [png(10), png(30), png(40)], "faulty": [png(10), b"?", png(30), png(40)], "bad": [b"?"]}
    whole, faulty, bad = (
        TFRecord(path=str(image_records(tmp_path / name, each)), cache_dir=str(tmp_path), size=4, skip_errors=1)
        for name, each in images.items()
    )
    assert faulty.normalisation() == whole.normalisation()
    with pytest.raises(DataError, match=r"record 1 at offset \d+ cannot be decoded"):
        replace(faulty, skip_errors=0).normalisation()
    with pytest.raises(DataError, match="bad: no measured train image can be decoded"):
        bad.normalisation()


def test_faulty_records_are_refused_or_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    convert(Arrays(path=str(write_arrays(tmp_path / "my.npz"))), tmp_path / "records", (2, 1), report=lambda line: None)
    shard = tmp_path / "records" / shard_name("train", 1, 2)
    content = bytearray(shard.read_bytes())
    content[20] ^= 1
    shard.write_bytes(content[:-3])
    shared = {"path": str(tmp_path / "records"), "cache_dir": str(tmp_path / "cache")}
    message = r"train-00001-of-00002: record 0 at offset 0: the checksum .*; 2 faults in all"
    with pytest.raises(DataError, match=message):
        TFRecord(**shared, skip_errors=1)
    found = TFRecord(**shared, skip_errors=2)
    assert found.facts().train_examples == 6
    assert len(batches(found)) == 16


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"image": "absent"}, r"feature absent holds 0 values; expected 30 bytes, uint8 of shape \(1, 6, 5\)"),
        ({"shape": [1, 6, 6]}, r"holds 30 bytes; expected 36 bytes"),
        ({"dtype": "float64"}, r"holds 30 bytes; expected 240 bytes"),
        ({"label": "absent"}, r"feature absent is None; expected one integer of 0 or more; 12 faults in all"),
        ({"train": "train@3"}, r"train-00000-of-00003 is missing: 3 of 3 shards are missing"),
    ],
)
def test_wrong_features_are_named(changes: dict[str, object], message: str, tmp_path: Path) -> None:
    settings = Arrays(path=str(write_arrays(tmp_path / "my.npz")))
    with pytest.raises(DataError, match=message):
        batches(converted(settings, tmp_path, 2, 1, **changes))


def test_records_of_numbers_have_the_stated_dtype(tmp_path: Path) -> None:
    numbers = np.float32([[0.25, -3.5], [300.0, 2.0]])
    for split in ("train", "test"):
        records = (framed(encode({"x": row, "y": np.array([0])})) for row in numbers)
        (tmp_path / shard_name(split, 0, 1)).write_bytes(b"".join(records))
    shared = {"image": "x", "label": "y", "shape": [2], "mean": [0.0] * 2, "std": [1.0] * 2}
    settings = TFRecord(path=str(tmp_path), cache_dir=str(tmp_path / "cache"), dtype="float32", **shared)
    np.testing.assert_array_equal(settings.load().train.take(np.arange(2))["x"], numbers, strict=True)
    with pytest.raises(DataError, match=r"numbers other than the integers 0 to 255, .* use data\.dtype=float32"):
        batches(replace(settings, dtype=None))
    for values in (np.float32([np.nan, 0]), [np.float32([np.inf, 0]).tobytes()]):
        record = framed(encode({"x": values, "y": np.array([0])}))
        (tmp_path / shard_name("train", 0, 1)).write_bytes(record)
        with pytest.raises(DataError, match="record 0 at offset 0: feature x is not finite; expected finite numbers"):
            batches(replace(settings, std=[2.0] * 2))


def test_wrong_settings_and_a_damaged_description_are_refused(tmp_path: Path) -> None:
    images = write_images(tmp_path / "images")
    with pytest.raises(ConfigError, match=r"data\.stream=false with data\.preprocessing\.name=vgg .* use data\.stream"):
        ImageFolder(path=str(images), preprocessing=PreprocessingSettings(name="vgg"))
    with pytest.raises(ConfigError, match=r"data\.dtype='int8': expected one of uint8, float32, float64, or null"):
        TFRecord(dtype="int8")
    with pytest.raises(ConfigError, match=r"data\.shape=\[\]: expected one size or more, or null for encoded images"):
        TFRecord(shape=[])
    arrays = Arrays(path=str(write_arrays(tmp_path / "my.npz")))
    with pytest.raises(ConfigError, match=r"data\.preprocessing\.name=vgg: expected fit .* these records hold arrays"):
        converted(arrays, tmp_path / "arrays", 1, 1, preprocessing=PreprocessingSettings(name="vgg"))
    records = converted(ImageFolder(path=str(images)), tmp_path, 1, 1)
    with pytest.raises(ConfigError, match=r"records is not empty: expected a new folder"):
        converted(ImageFolder(path=str(images)), tmp_path, 1, 1)
    domains = Domains(sources={name: {"name": "image_folder", "path": str(images)} for name in "ab"})
    with pytest.raises(ConfigError, match="data=domains has several domains; expected one: convert each dataset"):
        converted(domains, tmp_path / "domains", 1, 1)
    (tmp_path / "records" / DESCRIPTION_FILE).write_text('{"version": 1, "name": 3}')
    with pytest.raises(DataError, match=r"dataset\.json is damaged: name: 3, expected text"):
        replace(records)


SHARDS = st.lists(st.integers(0, 9), min_size=1, max_size=6).filter(any).map(np.array)


@given(SHARDS, st.integers(1, 12), st.integers(1, 4), st.integers(0, 3))
def test_a_window_limits_the_moves_of_examples(shards: np.ndarray, window: int, interleave: int, seed: int) -> None:
    order = epoch_order(Shuffle(window, interleave), shards, seed, "epoch/0")
    assert sorted(order) == list(range(shards.sum()))
    unmoved = epoch_order(Shuffle(1, interleave), shards, seed, "epoch/0")
    moved = np.argsort(order) - np.argsort(unmoved)
    assert (abs(moved) < window).all()
    np.testing.assert_array_equal(order, epoch_order(Shuffle(window, interleave), shards, seed, "epoch/0"))
    # Within one shard, the unmoved order is that of the file; with one lane, shards follow one another.
    for end, size in zip(np.cumsum(shards), shards, strict=True):
        places = np.flatnonzero((unmoved >= end - size) & (unmoved < end))
        assert (np.diff(unmoved[places]) == 1).all()
        assert interleave > 1 or not size or places[-1] - places[0] == size - 1


def test_most_examples_move_by_up_to_half_of_a_window() -> None:
    shards = np.array([1000])
    moved = np.argsort(epoch_order(Shuffle(100, 1), shards, 0, "epoch/0")) - np.arange(1000)
    assert 40 < abs(moved).max() < 80


def test_interleaved_shards_are_read_in_turn() -> None:
    order = epoch_order(Shuffle(1, 2), np.array([3, 3]), 0, "epoch/0")
    assert order[:2].tolist() in ([0, 3], [3, 0])
    assert sorted(order[2:4].tolist()) == [1, 4]


def test_an_inspection_shows_classes_and_stages_and_draws_a_sheet(tmp_path: Path) -> None:
    settings = ImageFolder(path=str(varied_images(tmp_path / "images")), size=8, stream=True, augment=AUGMENT)
    text = inspection(settings, 0, 4, tmp_path / "sheet.png")
    for line in (
        "data         image_folder, streamed",
        "train        14 examples",
        "classes      test: 2, with 3 to 3 examples",
        "     1 dog                              7         3",
        "examples per second with data.threads=1",
    ):
        assert line in text
    stages = re.findall(r"^input {8}(\w+) +[\d.]+ ms per example", text, re.M)
    assert stages == ["order", "read", "decode", "augment", "normalise"]
    with Image.open(tmp_path / "sheet.png") as sheet:
        pixels = np.asarray(sheet)
    assert pixels.shape == (8 * 10, 9 * 10, 3)
    plain = load_limited(settings)
    first = plain.preprocessing.evaluate(plain.train.take(np.array([0]))["x"][0])
    np.testing.assert_array_equal(pixels[:8, :8], first.transpose(1, 2, 0))
    assert not np.array_equal(pixels[:8, 10:18], pixels[:8, 20:28])
    inspection(replace(settings, val_fraction=0.5), 0, 4, tmp_path / "half.png")
    with Image.open(tmp_path / "half.png") as sheet:
        assert sheet.size == (9 * 10, 7 * 10), "one row for each train example that is not in the validation split"
    rows = Arrays(path=str(write_arrays(tmp_path / "rows.npz", **small_arrays((7,)))))
    with pytest.raises(ConfigError, match=r"--sheet: expected examples that are images .* found shape \(7,\)"):
        inspection(rows, 0, 4, tmp_path / "x.png")


def test_explain_measures_the_stages_of_streamed_data_only(tmp_path: Path) -> None:
    assert "examples per second" not in explain(small_config())
    folder = varied_images(tmp_path / "images")
    text = explain(small_config("data=image_folder", f"data.path={folder}", "data.stream=true", "data.size=8"))
    assert re.search(r"^input +decode +[\d.]+ ms per example on one thread$", text, re.M)
    assert "examples per second" not in explain(small_config("data=imagenet", "data.size=8"))


def test_memory_does_not_grow_with_the_data(tmp_path: Path) -> None:
    example, count = bytes(100_000), 300
    for split in ("train", "test"):
        records = (framed(encode({"x": [example], "y": np.array([number % 2])})) for number in range(count))
        with (tmp_path / shard_name(split, 0, 1)).open("wb") as file:
            file.writelines(records)
    shared = {"image": "x", "label": "y", "shape": [1, 250, 400], "mean": [0.0], "std": [1.0]}
    settings = TFRecord(path=str(tmp_path), cache_dir=str(tmp_path), **shared)
    source = pipeline(settings)
    source.read("train", 0, 0, 5)
    tracemalloc.start()
    for step in range(1, count // 5):
        source.read("train", step, 0, 5)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # A batch is 0.5 MB of bytes and 2 MB of floats; the data are 30 MB.
    assert peak < 8e6
