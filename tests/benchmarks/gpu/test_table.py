"""The document of a GPU: what was measured stands beside what it is compared with, the rest says *not run*."""

from benchmarks.gpu.store import Store
from benchmarks.gpu.table import NOT_RUN, document
from tests.benchmarks.gpu.made import RATES, measured, subject

FACTS = {"device": "GPU 1", "driver": "1.0"}


def cells(text: str, *beginning: str) -> list[str]:
    """The cells of the one row that begins with these."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"]
    (row,) = [row for row in rows if row[: len(beginning)] == list(beginning)]
    return row


def text_of(*results: object) -> str:
    store = Store(FACTS)
    for each in results:
        store.add(each)  # type: ignore[arg-type]
    return document(store, "python -m benchmarks gpu")


def test_nothing_is_run_before_it_is() -> None:
    text = text_of()
    assert cells(text, "alexnet, 128", "float32") == ["alexnet, 128", "float32", *[NOT_RUN] * 10]
    assert cells(text, "runner, this GPU") == ["runner, this GPU", *[NOT_RUN] * 4]
    assert cells(text, "Torch, Titan X, 2016") == ["Torch, Titan X, 2016", "81", "529", "470", "268"]
    assert "smoke" not in text


def test_ours_stands_against_the_best_that_computed_the_same() -> None:
    peers = [subject("torch-graph", 25), subject("torch-channels-last", 10, losses=(3.0, 3.0, 3.0))]
    text = text_of(measured(subject("runner", 20), *peers))
    expected = ["20", "torch-graph", "25", "0.80", "1 of 4", "0.51", "1", "0.50", "100", "100"]
    assert cells(text, "alexnet, 128", "float32") == ["alexnet, 128", "float32", *expected]
    assert cells(text, "runner, this GPU") == ["runner, this GPU", "16", *[NOT_RUN] * 3]
    assert cells(text, "best of PyTorch, this GPU")[1] == "20"
    assert "different computation: 3.0000, 3.0000, 3.0000" in text
    assert cells(text, "torch-max-autotune")[1] == NOT_RUN
    assert "Rates: 2.0 TFLOP/s, 2,000 GB/s read and written. Commit abc, 2026-11-22." in text


def test_who_failed_says_why_and_a_gpu_without_rates_has_no_shares() -> None:
    slow = subject("torch-max-autotune", 1, failure="no answer within 20 s", seconds={})
    unknown = type(RATES)({}, 0.0)
    text = text_of(measured(subject("runner", 20), slow, rates=unknown))
    assert cells(text, "torch-max-autotune")[1] == f"{NOT_RUN}: no answer within 20 s"
    assert cells(text, "alexnet, 128", "float32")[3:7] == [NOT_RUN, NOT_RUN, NOT_RUN, "0 of 4"]
    assert f"Rates: {NOT_RUN}." in text
