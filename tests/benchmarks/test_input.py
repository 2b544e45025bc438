"""The benchmark of input pipelines: its data, runner's phases, and its document."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from benchmarks import input as measured
from benchmarks.input_ours import Ours
from benchmarks.results import SubjectResult
from runner.errors import DataError


def test_our_phases_read_the_prepared_photographs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measured, "COPIES", 2)
    photos = tmp_path / "photos"
    photos.mkdir()
    with pytest.raises(DataError, match=r"photos has no file \*\.jpg"):
        measured.prepare(photos, tmp_path)
    for number in range(2):
        Image.fromarray(np.full((40, 60, 3), 100, np.uint8)).save(photos / f"{number}.jpg")
    assert measured.prepare(photos, tmp_path) == 2
    subject = Ours(tmp_path)
    subject.load()
    found = {name: subject.phase(name)() for name in measured.PHASES}
    assert found["decode"] == pytest.approx(100, abs=1)
    assert found["vgg"] == pytest.approx(100 - 123.68, abs=1)
    assert -1 <= found["inception"] <= 1


def test_the_document_compares_with_the_best_other_subject() -> None:
    results = [
        SubjectResult("runner", versions={"simplejpeg": "1"}, seconds={"decode": [0.1, 0.2, 0.3]}),
        SubjectResult("slow", seconds={"decode": [0.4]}),
        SubjectResult("absent", failure="not installed: run make bench-peers ARGS=images"),
    ]
    text = measured.page(results, 20, "`x y`")
    assert "| runner | 160 | - | - | simplejpeg 1 |" in text
    assert "| absent | - | - | - | not installed: run make bench-peers ARGS=images |" in text
    assert "| ratio | 2.00 | - | - |  |" in text
    assert "- command: `x y`" in text
