"""Results of several calls in one file."""

from pathlib import Path

import pytest

from benchmarks.gpu.store import Store, read_store
from tests.benchmarks.gpu.made import measured, subject

FACTS = {"device": "GPU 1", "driver": "1.0"}
FAILED = subject("runner", 1, failure="ended with code 1", seconds={})


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    store = Store(FACTS)
    store.add(measured(subject("runner", 9), subject("torch-graph", 10)))
    store.add(measured(subject("runner", 5), precision="tf32"))
    store.write(tmp_path / "gpu.json")
    assert read_store(tmp_path / "gpu.json", FACTS) == store


def test_without_a_file_nothing_is_known(tmp_path: Path) -> None:
    assert read_store(tmp_path / "gpu.json", FACTS).results == {}


def test_a_file_of_another_gpu_is_refused(tmp_path: Path) -> None:
    Store(FACTS).write(tmp_path / "gpu.json")
    with pytest.raises(ValueError, match="is of GPU 1, this is GPU 2: give another --output"):
        read_store(tmp_path / "gpu.json", {"device": "GPU 2"})


def test_a_newer_result_takes_the_place_of_an_older_one_but_no_failure_does() -> None:
    store, older, newer = Store(FACTS), measured(subject("runner", 9)), measured(subject("runner", 8))
    for each in (measured(FAILED), older, measured(FAILED), newer):
        store.add(each)
    assert list(store.results.values()) == [newer]
