"""Reading ahead changes when a batch is made, never what it is."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.data.pipeline import Batch
from runner.data.source import Prefetcher

# A broken hand-over would hang: fail instead.
PATIENCE_SECONDS = 20.0


class Recorder:
    """A source whose batches say what was asked; remembers who asked, and fails at one step."""

    def __init__(self, failing_step: int = -1) -> None:
        self.failing_step = failing_step
        self.made: list[tuple[str, int, int, int, bool]] = []
        self.changed = threading.Condition()

    def read(self, split: str, step: int, lo: int, hi: int) -> Batch:
        """Return a batch that holds its own arguments."""
        in_background = threading.current_thread() is not threading.main_thread()
        with self.changed:
            self.made.append((split, step, lo, hi, in_background))
            self.changed.notify_all()
        if step == self.failing_step:
            raise ArithmeticError(f"no batch for step {step}")
        return {"index": np.array([len(split), step, lo, hi])}

    def wait_for(self, count: int) -> None:
        """Return when ``count`` batches were begun."""
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.made) >= count, PATIENCE_SECONDS)


READS = st.lists(
    st.tuples(st.sampled_from(["train", "test"]), st.integers(0, 5), st.integers(0, 2), st.integers(3, 4)),
    max_size=30,
)


@settings(deadline=None)
@given(READS)
def test_any_sequence_of_reads_equals_direct_reads(reads: list[tuple[str, int, int, int]]):
    source = Recorder()
    with Prefetcher(source) as prefetcher:
        for read in reads:
            np.testing.assert_array_equal(prefetcher.read(*read)["index"], source.read(*read)["index"])


def test_the_next_step_of_every_share_is_made_in_the_background():
    source = Recorder()
    with Prefetcher(source) as prefetcher:
        for lo, hi in ((0, 4), (4, 8)):
            prefetcher.read("train", 0, lo, hi)
        source.wait_for(4)
        for lo, hi in ((0, 4), (4, 8)):
            prefetcher.read("train", 1, lo, hi)
        source.wait_for(6)
    assert [made for made in source.made if not made[-1]] == [
        ("train", 0, 0, 4, False),
        ("train", 0, 4, 8, False),
    ]
    assert sorted(made for made in source.made if made[-1]) == [
        ("train", 1, 0, 4, True),
        ("train", 1, 4, 8, True),
        ("train", 2, 0, 4, True),
        ("train", 2, 4, 8, True),
    ]


def test_evaluation_between_steps_does_not_lose_the_train_batch_made_ahead():
    source = Recorder()
    with Prefetcher(source) as prefetcher:
        prefetcher.read("train", 0, 0, 4)
        prefetcher.read("test", 0, 0, 4)
        prefetcher.read("train", 1, 0, 4)
    assert source.made.count(("train", 1, 0, 4, True)) == 1
    assert ("train", 1, 0, 4, False) not in source.made


def test_an_error_in_the_thread_surfaces_in_the_read_it_belongs_to():
    source = Recorder(failing_step=2)
    with Prefetcher(source) as prefetcher:
        prefetcher.read("train", 0, 0, 4)
        prefetcher.read("train", 1, 0, 4)
        source.wait_for(3)
        with pytest.raises(ArithmeticError, match="no batch for step 2"):
            prefetcher.read("train", 2, 0, 4)
        assert prefetcher.read("train", 3, 0, 4)["index"][1] == 3


def test_close_ends_the_thread_and_reading():
    before = set(threading.enumerate())
    prefetcher = Prefetcher(Recorder())
    prefetcher.read("train", 0, 0, 4)
    prefetcher.close()
    prefetcher.close()
    assert set(threading.enumerate()) == before
    with pytest.raises(RuntimeError, match="after shutdown"):
        prefetcher.read("train", 1, 0, 4)
