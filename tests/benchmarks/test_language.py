"""The benchmark of the LSTM language model: runner's step, and the document."""

import math

import pytest

from benchmarks import language
from benchmarks.results import SubjectResult


def test_our_first_loss_is_that_of_equally_likely_words(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"WORDS": 50, "UNITS": 8, "ROWS": 2, "STEPS": 3}.items():
        monkeypatch.setattr(language, name, value)
    subject = language.Ours(threads=1)
    subject.load()
    run = subject.phase("step")
    first = run()
    assert first == pytest.approx(math.log(50), abs=0.1)
    assert run() < first


def test_the_document_compares_medians_and_names_what_is_not_installed() -> None:
    results = [
        SubjectResult("runner", versions={"numpy": "2"}, seconds={"step": [0.25, 0.5, 9.0]}, losses=[9.2]),
        SubjectResult("PyTorch", versions={"torch": "3"}, seconds={"step": [1.0, 1.0, 2.0]}, losses=[9.21]),
        SubjectResult("JAX", failure="not installed: run make bench-peers ARGS=jax"),
    ]
    text = language.page(results, 1, "`x y`", "wall")
    assert "| runner, numpy 2 | 500 (375-4,750) | 1,400 | 1.00 | 9.20 |" in text
    assert "| PyTorch, torch 3 | 1,000 (1,000-1,500) | 700 | 0.50 | 9.21 |" in text
    assert "| JAX | not installed: run make bench-peers ARGS=jax | - | - | - |" in text
    assert "- command: `x y`" in text
