"""The input source of a worker: settings read from the configuration, batches, and prefetching."""

import re
import threading
from dataclasses import asdict, dataclass
from typing import Optional

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from runner.data import DATASETS, Digits
from runner.data.augmentation import Augment
from runner.data.dataset import Dataset, Facts
from runner.data.pipeline import Batch
from runner.data.settings import DatasetSettings, settings_from_config
from runner.data.source import Prefetcher, source_from_config
from runner.data.stage_times import InputWaits, StageTime, StageTimes
from runner.data.text import TextSettings
from runner.errors import ConfigError


def test_digits_are_read_in_batches():
    settings = settings_from_config({"name": "digits", "test_fraction": 0.5, "cache_dir": None})
    assert settings == Digits(test_fraction=0.5)
    with source_from_config({"name": "digits"}, seed=0, batch_size=64, dtype="float64") as source:
        batch = source.read("train", 0, 16, 48)
    assert batch["x"].shape == (32, 1, 8, 8)
    assert batch["x"].dtype == np.float64
    assert (batch["x"].min(), batch["x"].max()) == (0.0, 1.0)


def test_every_setting_reaches_the_batches():
    plain = {"name": "synthetic", "shape": [1, 6, 6], "classes": 3, "examples": 9, "test_examples": 3}
    varied = {**plain, "augment": {"crop_padding": 2, "flip": True}}
    batches = []
    for config, seed in ((plain, 0), (varied, 0), (varied, 1), ({**plain, "train_limit": 3}, 0)):
        with source_from_config(config, seed=seed, batch_size=9, dtype="float32") as source:
            batches.append(source.read("train", 0, 0, 9)["x"])
    assert not np.array_equal(batches[0], batches[1])
    assert not np.array_equal(batches[1], batches[2])
    assert len({image.tobytes() for image in batches[3]}) == 3


@pytest.mark.parametrize("config", [{"name": "unheard_of"}, {}, {"name": 3}])
def test_unknown_dataset_is_refused_with_the_options(config: dict[str, object]):
    with pytest.raises(ConfigError, match=r"unknown dataset: data\.name is .*; expected one of digits, synthetic, "):
        settings_from_config(config)


@dataclass
class OfAPlugin(DatasetSettings):
    """Dataset settings of a plugin, with ``Optional`` annotations."""

    limit: Optional[int] = None  # noqa: UP045
    sizes: Optional[list[int]] = None  # noqa: UP045
    rate: float = 0.0

    def facts(self) -> Facts:
        return Facts.labelled((1, 2, 2), ("a",), 2, 2)

    def load(self) -> Dataset:
        raise NotImplementedError


def test_settings_of_a_plugin_are_read_by_their_annotations(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(DATASETS, "own", OfAPlugin)
    read = settings_from_config({"name": "own", "limit": 3, "sizes": [1], "rate": 2, "augment": {"flip": True}})
    assert read == OfAPlugin("own", Augment(flip=True), limit=3, sizes=[1], rate=2.0)
    assert type(read.rate) is float
    with pytest.raises(ConfigError, match=r"data\.limit: 'x', expected a whole number"):
        settings_from_config({"name": "own", "limit": "x"})


@pytest.mark.parametrize("name", DATASETS)
def test_the_composed_section_of_a_dataset_is_read_unchanged(name: str):
    padding = 0 if issubclass(DATASETS[name], TextSettings) else 2
    composed = OmegaConf.merge(OmegaConf.structured(DATASETS[name]), {"augment": {"crop_padding": padding}})
    plain = OmegaConf.to_container(composed, resolve=True)
    settings = settings_from_config(plain)
    assert asdict(settings) == plain
    assert settings == OmegaConf.to_object(composed)
    assert next(iter(plain.items())) == ("name", name), "the name is the first field"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"clases": 3}, r"data: unknown \['clases'\], expected the fields name, .*, prefetch, shape"),
        ({"augment": {"crop": 3}}, r"data\.augment: unknown \['crop'\], expected the fields crop_padding, flip"),
        ({"augment": True}, r"data\.augment: True, expected a map of crop_padding"),
        ({"shape": [3, 2.5, 1]}, r"data\.shape\[1\]: 2\.5, expected a whole number"),
        ({"shape": "3x4x5"}, r"data\.shape: '3x4x5', expected a list"),
        ({"cache_dir": 7}, r"data\.cache_dir: 7, expected text"),
        ({"augment": {"flip": 1}}, r"data\.augment\.flip: 1, expected true or false"),
        ({"classes": 0}, r"data\.classes: 0, expected 1 to 1000000"),
    ],
)
def test_wrong_keys_types_and_numbers_are_refused(change: dict[str, object], message: str):
    with pytest.raises(ConfigError, match=message):
        settings_from_config({"name": "synthetic", **change})


class Recorder:
    """A source whose batches contain the arguments of ``read``. It records its calls and fails at ``failing_step``.

    together: number of steps whose batches are made together.
    """

    threads = 1

    def __init__(self, failing_step: int = -1, together: int = 1) -> None:
        self.failing_step = failing_step
        self.together = together
        self.times = StageTimes(())
        self.closed = False
        self.made: list[tuple[str, int, int, int, bool]] = []
        self.changed = threading.Condition()

    def read(self, split: str, step: int, lo: int, hi: int) -> Batch:
        """Return a batch that contains the arguments."""
        in_background = threading.current_thread() is not threading.main_thread()
        with self.changed:
            self.made.append((split, step, lo, hi, in_background))
            self.changed.notify_all()
        if step == self.failing_step:
            raise ArithmeticError(f"no batch for step {step}")
        return {"index": np.array([len(split), step, lo, hi])}

    def steps_together(self, examples: int) -> int:
        return self.together

    def read_steps(self, split: str, steps: range, lo: int, hi: int) -> list[Batch]:
        return [self.read(split, step, lo, hi) for step in steps]

    def close(self) -> None:
        """Record that the source was closed."""
        self.closed = True

    def wait_for(self, count: int) -> None:
        """Wait until ``count`` reads have begun; fail after 20 seconds, so that a deadlock ends the test."""
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.made) >= count, timeout=20.0)


READS = st.lists(
    st.tuples(st.sampled_from(["train", "test"]), st.integers(0, 5), st.integers(0, 2), st.integers(3, 4)),
    max_size=30,
)


@settings(deadline=None)
@given(READS, st.integers(1, 3), st.integers(1, 3))
def test_any_sequence_of_reads_equals_direct_reads(reads: list[tuple[str, int, int, int]], depth: int, together: int):
    source = Recorder(together=together)
    with Prefetcher(source, depth) as prefetcher:
        for read in reads:
            np.testing.assert_array_equal(prefetcher.read(*read)["index"], source.read(*read)["index"])


def test_the_next_step_of_every_share_is_prefetched():
    source = Recorder()
    with Prefetcher(source) as prefetcher:
        for lo, hi in ((0, 4), (4, 8)):
            prefetcher.read("train", 0, lo, hi)
        source.wait_for(4)
        for lo, hi in ((0, 4), (4, 8)):
            prefetcher.read("train", 1, lo, hi)
        source.wait_for(6)
    shares = ((0, 4), (4, 8))
    at_once = [("train", 0, *share, False) for share in shares]
    assert sorted(source.made) == at_once + [("train", step, *share, True) for step in (1, 2) for share in shares]


def test_as_many_steps_as_configured_are_prefetched_and_none_twice():
    source = Recorder()
    with Prefetcher(source, depth=3) as prefetcher:
        for step in (0, 1, 2, 9):
            prefetcher.read("train", step, 0, 4)
            source.wait_for({0: 4, 1: 5, 2: 6, 9: 10}[step])
    assert source.closed
    steps = [step for _, step, *_ in source.made]
    assert set(steps) == {0, 1, 2, 3, 4, 5, 9, 10, 11, 12}
    assert len(steps) == len(set(steps))


def test_small_batches_are_prepared_together_and_none_twice():
    source = Recorder(together=3)
    with Prefetcher(source) as prefetcher:
        for step, made in ((0, 4), (1, 4), (2, 4), (3, 7), (4, 7)):
            prefetcher.read("train", step, 0, 4)
            source.wait_for(made)
            assert len(source.made) == made, step
    assert [step for _, step, *_ in source.made] == list(range(7))


@pytest.mark.parametrize(("waiting", "warnings"), [(0.1, 0), (0.9, 1)])
def test_a_long_wait_for_input_is_warned_of_once(waiting: float, warnings: int, caplog: pytest.LogCaptureFixture):
    times = StageTimes(("read", "decode"))
    times._times = {"read": StageTime(0.2, 100), "decode": StageTime(0.25, 50)}
    waits = InputWaits()
    for second in range(100):
        waits.add(second, second + waiting, times, threads=3)
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == warnings
    for message in messages:
        assert "waited for input in 9" in message
        assert "the slowest stage is decode with 5.00 ms" in message
        assert "data.threads=3" in message


def test_the_times_of_the_stages_are_logged_at_the_end(caplog: pytest.LogCaptureFixture):
    caplog.set_level("INFO")
    with source_from_config({"name": "digits"}, seed=0, batch_size=8, dtype="float32") as source:
        for step in range(3):
            source.read("train", step, 0, 8)
    (message,) = [record.getMessage() for record in caplog.records if record.name == "runner.data.source"]
    assert re.fullmatch(
        r"input: waited \S+ s for 2 batches; ms per example on one thread: "
        r"order \S+, read \S+, augment \S+, normalise \S+",
        message,
    )


def test_evaluation_between_steps_keeps_the_prefetched_train_batch():
    source = Recorder()
    with Prefetcher(source) as prefetcher:
        for split, step in (("train", 0), ("test", 0), ("train", 1)):
            prefetcher.read(split, step, 0, 4)
    assert [each[4] for each in source.made if each[:4] == ("train", 1, 0, 4)] == [True]


def test_an_error_while_prefetching_is_raised_by_the_read_of_the_same_batch():
    source = Recorder(failing_step=2)
    with Prefetcher(source) as prefetcher:
        prefetcher.read("train", 0, 0, 4)
        prefetcher.read("train", 1, 0, 4)
        source.wait_for(3)
        with pytest.raises(ArithmeticError, match="no batch for step 2"):
            prefetcher.read("train", 2, 0, 4)
        assert prefetcher.read("train", 3, 0, 4)["index"][1] == 3


def test_after_close_the_thread_has_ended_and_reads_fail():
    before = set(threading.enumerate())
    prefetcher = Prefetcher(Recorder())
    prefetcher.read("train", 0, 0, 4)
    prefetcher.close()
    prefetcher.close()
    assert set(threading.enumerate()) == before
    with pytest.raises(RuntimeError, match="after shutdown"):
        prefetcher.read("train", 1, 0, 4)
