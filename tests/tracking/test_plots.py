"""Plots and tables of a run, and system metrics."""

import math
import struct
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread

from runner.tracking.diagrams import Box, DiagramLegend, box_diagram
from runner.tracking.metrics_log import MetricsLog, check_metric_name
from runner.tracking.plots import (
    confusion_matrix,
    learning_curves,
    staleness_histogram,
    staleness_table,
    training_means,
)
from runner.tracking.records import Metrics
from runner.tracking.system_monitor import SystemMonitor, system_metrics

_PNG = b"\x89PNG\r\n\x1a\n"


def _size(path: Path) -> tuple[int, int]:
    """Return width and height from the header of a PNG file."""
    head = path.read_bytes()[:24]
    assert head[:8] == _PNG
    width, height = struct.unpack(">II", head[16:24])
    return width, height


@pytest.fixture
def metrics(tmp_path: Path) -> Path:
    path = tmp_path / "metrics.jsonl"
    with MetricsLog(path) as log:
        for step in range(100):
            log.append(step, {"train/loss": math.exp(-step / 30), "train/accuracy": 1 - math.exp(-step / 20)})
            if step % 20 == 19:
                log.append(step, {"test/loss": 0.1 + math.exp(-step / 30), "test/accuracy": 0.9})
        log.append(100, {"train/loss": math.nan})
    return path


def test_learning_curves_are_a_picture_of_reasonable_size(metrics: Path, tmp_path: Path) -> None:
    path = learning_curves(metrics, tmp_path / "plots" / "curves.png")
    width, height = _size(path)
    assert 800 <= width <= 2000
    assert 300 <= height <= 1200
    assert 10_000 < path.stat().st_size < 500_000


def _drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """Return a list of the figures that are saved from now on."""
    figures: list[Figure] = []

    def save(figure: Figure, path: Path) -> Path:
        figures.append(figure)
        return path

    for module in ("plots", "diagrams"):
        monkeypatch.setattr(f"runner.tracking.{module}.save_figure", save)
    return figures


def test_training_metrics_are_averaged_over_the_steps_between_evaluations() -> None:
    values = [
        (1, {"train/loss": 4.0}),
        (2, {"train/loss": 2.0, "train/accuracy": 0.5}),
        (2, {"test/loss": 9.0, "val/loss": 8.0}),
        (3, {"perf/step_time_s": 1.0}),
        (4, {"test/loss": 9.0}),
        (5, {"train/loss": math.nan}),
        (6, {"train/loss": 1.0}),
        (6, {"val/loss": 9.0}),
        (7, {"train/loss": 1.0}),
    ]
    records = [Metrics(step, 0, each) for step, each in values]
    assert [(step, str(mean)) for step, mean in training_means(records, "loss")] == [(2, "3.0"), (6, "nan")]
    assert training_means(records, "accuracy") == []


def test_curves_have_points_at_the_same_steps(metrics: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures = _drawn(monkeypatch)
    learning_curves(metrics, tmp_path / "curves.png")
    labels = ("loss (mean per example)", "accuracy (fraction of examples)")
    for axes, label in zip(figures[0].axes, labels, strict=True):
        assert (axes.get_xlabel(), axes.get_ylabel()) == ("step (updates)", label)
        single, mean, test = axes.lines
        assert [line.get_label() for line in axes.lines] == [
            "train, single batches",
            "train, mean since the last evaluation",
            "test, whole split",
        ]
        assert list(mean.get_xdata()) == list(test.get_xdata()) == [19, 39, 59, 79, 99]
        expected = [np.mean(single.get_ydata()[begin : begin + 20]) for begin in range(0, 100, 20)]
        assert list(mean.get_ydata()) == pytest.approx(expected)


def test_recall_is_drawn_beside_the_row_of_its_class(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures = _drawn(monkeypatch)
    confusion_matrix(np.array([[3, 1, 0], [2, 2, 4], [0, 0, 0]]), ["cat", "dog", "elk"], tmp_path / "confusion.png")
    matrix, bars = figures[0].axes
    assert [bar.get_width() for bar in bars.patches] == [0.75, 0.25, 0.0]
    assert [text.get_text() for text in bars.texts] == ["75.0%", "25.0%", "no example"]
    assert matrix.get_ylim() == bars.get_ylim() == (2.5, -0.5), "both start with the first class at the top"


def test_a_run_without_metrics_still_has_a_picture(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").touch()
    assert _size(learning_curves(tmp_path / "metrics.jsonl", tmp_path / "curves.png"))


@pytest.mark.parametrize("classes", [1, 2, 10, 30, 100])
def test_a_confusion_matrix_fits_any_number_of_classes(classes: int, tmp_path: Path) -> None:
    counts = np.eye(classes, dtype=np.int64) * 20 + np.arange(classes)
    path = confusion_matrix(counts, [f"class {c}" for c in range(classes)], tmp_path / "confusion.png")
    width, height = _size(path)
    assert 500 <= height <= 1500
    assert width - height == 216, "the bars of recall are 1.8 inches wide, at 120 dots per inch"


def test_a_class_without_examples_causes_no_division_by_zero(tmp_path: Path) -> None:
    assert _size(confusion_matrix(np.zeros((3, 3), np.int64), "abc", tmp_path / "confusion.png"))


def test_the_table_has_a_row_for_each_staleness_and_a_column_for_each_server(tmp_path: Path) -> None:
    table = tmp_path / "plots" / "s.csv"
    assert staleness_table([{"0": 3, "2": 1}, {"1": 4}], table) == table
    assert table.read_text().splitlines() == ["staleness,server 0,server 1", "0,3,0", "1,0,4", "2,1,0"]


@pytest.mark.parametrize("counts", [[{}], [{}, {}], [{"0": 1}]])
def test_a_histogram_is_drawn_even_of_few_or_no_pushes(counts: list[dict[str, int]], tmp_path: Path) -> None:
    picture = staleness_histogram(counts, tmp_path / "s.png")
    assert np.asarray(imread(picture)).ndim == 3


LEGEND = DiagramLegend("a layer", "tensors", "tensors to another device")


@pytest.mark.parametrize(("columns", "rows"), [(1, 1), (2, 3), (4, 12)])
def test_a_diagram_has_room_for_every_column_and_row(columns: int, rows: int, tmp_path: Path) -> None:
    boxes: dict[Box, str] = {(f"layer{y}", f"device{x}"): "9 nodes" for x in range(columns) for y in range(rows)}
    assert _size(box_diagram(boxes, {}, LEGEND, tmp_path / "graph.png")) == (420 * columns, 85 * (rows + 1) + 70)


def test_arrows_in_both_directions_do_not_overlap(tmp_path: Path) -> None:
    a, b = ("top", "left"), ("bottom", "left")
    boxes: dict[Box, str] = {a: "a", b: "b"}
    there = box_diagram(boxes, {(a, b): "1"}, LEGEND, tmp_path / "there.png").read_bytes()
    back = box_diagram(boxes, {(b, a): "1"}, LEGEND, tmp_path / "back.png").read_bytes()
    both = box_diagram(boxes, {(a, b): "1", (b, a): "1"}, LEGEND, tmp_path / "both.png").read_bytes()
    assert len({there, back, both}) == 3


def test_a_legend_explains_boxes_and_the_colours_of_arrows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures = _drawn(monkeypatch)
    a, b, c = ("top", "left"), ("bottom", "left"), ("top", "right")
    boxes: dict[Box, str] = {a: "a", b: "b", c: "c"}
    box_diagram(boxes, {(a, b): "1", (a, c): "2"}, LEGEND, tmp_path / "graph.png")
    (axes,) = figures[0].axes
    legend = axes.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == [LEGEND.box, LEGEND.within, LEGEND.between]
    drawn = {text.get_text(): text.get_color() for text in axes.texts}
    assert [line.get_color() for line in legend.get_lines()] == [drawn["1"], drawn["2"]]
    assert drawn["1"] != drawn["2"]


def test_an_arrow_needs_boxes_at_both_ends(tmp_path: Path) -> None:
    with pytest.raises(KeyError):
        box_diagram({("a", "x"): "a"}, {(("a", "x"), ("b", "x")): "1"}, LEGEND, tmp_path / "graph.png")


TIMEOUT_S = 30.0
NEVER_S = 1e6


def test_system_metrics_are_plausible_and_named_for_their_section() -> None:
    sample = system_metrics()
    for name in sample:
        check_metric_name(name)
    assert 0 <= sample["system/cpu_utilization_percentage"] <= 100
    assert 0 < sample["system/system_memory_usage_percentage"] <= 100
    assert 0 < sample["system/run_memory_usage_megabytes"] < sample["system/system_memory_usage_megabytes"] * 10


def test_the_memory_of_child_processes_is_included() -> None:
    alone = system_metrics()["system/run_memory_usage_megabytes"]
    code = "import sys; hold = bytearray(200_000_000); print('ready', flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        together = system_metrics()["system/run_memory_usage_megabytes"]
        child.communicate()
    assert together > alone + 150


def test_a_monitor_samples_repeatedly_until_it_is_stopped() -> None:
    samples: list[Mapping[str, float]] = []
    enough = threading.Event()

    def note(values: Mapping[str, float]) -> None:
        samples.append(values)
        if len(samples) == 3:
            enough.set()

    monitor = SystemMonitor(every_s=0.001, on_sample=note)
    monitor.start()
    assert enough.wait(TIMEOUT_S)
    monitor.stop()
    assert all("system/cpu_utilization_percentage" in values for values in samples)
    assert not any(thread.name == "system-monitor" for thread in threading.enumerate())


def test_a_run_shorter_than_the_interval_is_sampled_once_with_the_cpu_it_used(monkeypatch: pytest.MonkeyPatch) -> None:
    known_threads: set[int] = set()

    def cpu_percent() -> float:
        """Return 0 in the first call of a thread, like psutil, which has no interval to measure then."""
        first = threading.get_ident() not in known_threads
        known_threads.add(threading.get_ident())
        return 0.0 if first else 50.0

    monkeypatch.setattr("runner.tracking.system_monitor.psutil.cpu_percent", cpu_percent)
    samples: list[Mapping[str, float]] = []
    monitor = SystemMonitor(every_s=NEVER_S, on_sample=samples.append)
    monitor.start()
    monitor.stop()
    assert [sample["system/cpu_utilization_percentage"] for sample in samples] == [50.0]
