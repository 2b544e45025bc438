"""Several domains in one dataset, and Office-31."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from runner.data import Digits, Domains, Office31
from runner.data.office31 import CLASSES
from runner.data.pipeline import Pipeline
from runner.data.settings import limited_facts, load_limited
from runner.errors import ConfigError
from tests.data.own_data import small_arrays, write_arrays, write_images

SOURCES = {"a": {"name": "digits"}, "b": {"name": "digits", "split_seed": 1, "train_limit": 90}}


def test_every_train_batch_holds_one_domain_in_turn() -> None:
    settings = Domains(sources=SOURCES, val_fraction=0.1, train_limit=800)
    facts = limited_facts(settings)
    assert (facts.train_examples, facts.val_examples, facts.test_examples) == (720, 80, 718)
    dataset = load_limited(settings)
    pipeline = Pipeline(dataset, seed=3, batch_size=20, dtype="float64", val_fraction=0.1)
    domains = dataset.train.domains
    assert domains is not None
    images: dict[int, set[bytes]] = {0: set(), 1: set()}
    for x, domain in zip(dataset.train["x"], domains, strict=True):
        images[int(domain)].add((x / 16).tobytes())
    for step in range(30):
        shares = [pipeline.read("train", step, lo, lo + 10)["x"] for lo in (0, 10)]
        assert {x.tobytes() for share in shares for x in share} <= images[step % 2]
    drawn = [x.tobytes() for step in (1, 3) for x in pipeline.read("train", step, 0, 20)["x"]]
    assert len(set(drawn)) == 40
    assert len(dataset.test) == 2 * 359


def test_a_single_domain_has_the_order_of_its_dataset() -> None:
    one, plain = (
        Pipeline(each.load(), seed=0, batch_size=50, dtype="float32")
        for each in (Domains(name="digits", sources={"a": {"name": "digits"}}), Digits())
    )
    np.testing.assert_array_equal(one.read("train", 40, 0, 50)["x"], plain.read("train", 40, 0, 50)["x"])


@pytest.mark.parametrize(
    ("sources", "message"),
    [
        ({"a": {"name": "digitz"}}, "data.sources.a: unknown dataset"),
        ({"a": 3}, "data.sources.a: expected the settings of a dataset, found 3"),
        ({"a": {"name": "digits", "val_fraction": 0.1}}, "data.sources.a.val_fraction: expected 0"),
        ({"a": {"name": "digits"}, "b": {"name": "mnist"}}, "data.sources: a has the fields"),
        ({name: {"name": "synthetic_text"} for name in "ab"}, "data.sources.a: expected examples that do not"),
    ],
)
def test_sources_that_do_not_fit_are_refused(sources: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Domains(sources=sources)
    with pytest.raises(ConfigError, match=r"data.sources is empty"):
        Domains().load()


def test_inputs_take_the_bytes_of_the_sources(tmp_path: Path) -> None:
    path = write_arrays(tmp_path / "my.npz", **small_arrays(dtype="float64"))
    assert Domains(sources={"a": {"name": "arrays", "path": str(path)}}).input_bytes == 8


def test_a_streamed_source_is_refused(tmp_path: Path) -> None:
    folder = {"name": "image_folder", "path": str(write_images(tmp_path)), "size": 4, "stream": True}
    arrays = {"name": "arrays", "path": str(write_arrays(tmp_path / "my.npz")), "stream": True}
    for streamed in (folder, arrays):
        with pytest.raises(ConfigError, match=rf"data\.sources\.a: {streamed['name']} is streamed during training; ex"):
            Domains(sources={"a": streamed}).load()


def test_all_images_of_a_domain_are_in_both_splits(tmp_path: Path) -> None:
    for number, name in enumerate(CLASSES.split()[:2]):
        folder = tmp_path / "dslr" / "images" / name
        folder.mkdir(parents=True)
        Image.new("RGB", (6, 4), (number * 100, 0, 0)).save(folder / "frame_0001.jpg")
    settings = Office31(path=str(tmp_path), domain="dslr", size=4)
    dataset = settings.load()
    assert settings.facts().class_names == ("back_pack", "bike")
    for split in (dataset.train, dataset.test):
        np.testing.assert_array_equal(split["y"], [0, 1])
        assert split["x"].shape == (2, 3, 4, 4)
    assert Office31(domain="webcam").facts().train_examples == 795
    assert Office31().facts().classes == 31
    with pytest.raises(ConfigError, match=r"data\.domain='caltech': expected one of amazon, dslr, webcam"):
        Office31(domain="caltech")
