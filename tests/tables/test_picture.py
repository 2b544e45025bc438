"""The picture of a table: its texts, curves, the places of its texts, and the command that writes it."""

import io
import math
import random
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.image import imread
from matplotlib.transforms import Bbox

from runner.cli import main
from runner.system.schema import LenientRecord
from runner.tables.cells import TableState, state_of
from runner.tables.picture import picture_of
from runner.tables.results import Evaluation, Result, RunResults
from runner.tables.table import Table
from runner.tracking.table_picture import TablePicture, Text, table_figure
from tests.refusal import Capture, refused

TABLE: dict[str, Any] = yaml.safe_load("""
title: Two optimizers
kind: measured
seeds: [1, 2]
papers: {book: {cite: A book}}
columns:
  accuracy: {title: accuracy, read: test/accuracy, unit: "%", best: highest}
  early: {title: early, read: test/accuracy, at: {updates: 10}, unit: "%"}
  time: {title: time, read: step_time_s, unit: ms}
runs: {sgd: {}, adam: {}}
rows:
  sgd:
    title: SGD
    run: sgd
    cells:
      accuracy:
        published:
        - {printed: 25 %, paper: book, confidence: S, tolerance: "30"}
        - {printed: 90 %, paper: book, confidence: C, tolerance: "10"}
      early: {}
      time: {}
  adam: {title: Adam, run: adam, cells: {accuracy: {}, time: {}}}
  none: {title: None, missing: no network, cells: {accuracy: {}}}
claims:
  time: {text: fast, cells: [sgd/time], relation: at_most, limit: 1.0}
  open: {text: better, cells: [sgd/accuracy, adam/accuracy], relation: highest}
""")


def result(seed: int, last: float) -> Result:
    """Return a result whose accuracy is 0.1 after 10 updates, and ``last`` after 20."""
    evaluations = (Evaluation(10, 40, {"test/accuracy": 0.1}), Evaluation(20, 80, {"test/accuracy": last}))
    return Result("measured", {}, {"step_time_s": 0.002}, seed, evaluations)


def state(**values: list[float]) -> TableState:
    """Return the state of the table. values: run -> last accuracy with each seed."""
    table = LenientRecord(Table, complete=False).read(TABLE)
    runs = {name: enumerate(values.get(name, []), 1) for name in table.runs}
    results = {name: RunResults({seed: result(seed, last) for seed, last in each}) for name, each in runs.items()}
    return state_of(table, results)


def test_a_picture_has_the_values_the_published_ones_and_the_verdicts_of_the_table() -> None:
    picture = picture_of(state(sgd=[0.24, 0.26], adam=[0.5]))
    assert picture.title == "Two optimizers (measured)"
    assert [list(row) for row in picture.grid] == [
        [Text(""), *(Text(each, bold=True) for each in ("accuracy", "published", "early", "time"))],
        [
            Text("SGD"),
            Text("25.0 ± 1.4 %"),
            Text("25 % [S] passes\n90 % [C] differs", bad=True),
            Text("10 ± 0 %"),
            Text("2 ± 0 ms"),
        ],
        [Text("Adam"), Text("50 %\nincomplete (n=1)", bold=True), Text(""), Text(""), Text("2 ms\nincomplete (n=1)")],
        [Text("None"), Text("missing"), Text(""), Text(""), Text("")],
    ]
    assert list(picture.sentences) == [
        Text("holds: fast"),
        Text("undecided at 1 seed: better"),
        Text("Measured: mean ± standard deviation over 2 seeds. Curves have a band of one standard deviation."),
        Text("Published: A book. [S] read in the paper; [C] computed from a published specification."),
    ]


def test_a_curve_is_the_mean_over_seeds_with_a_gap_where_a_value_is_not_finite() -> None:
    panels = picture_of(state(sgd=[0.25, 0.75], adam=[0.5, math.nan])).panels
    assert list(panels) == ["test/accuracy (%)"]
    curves = panels["test/accuracy (%)"]
    assert list(curves) == [("sgd", "SGD"), ("adam", "Adam")]
    for run, last in (("sgd", (20, 50, 100 * math.sqrt(0.125))), ("adam", (20, math.nan, 0))):
        [points] = [points for (name, _), points in curves.items() if name == run]
        assert points[0] == pytest.approx((10, 10, 0))
        assert points[1] == pytest.approx(last, nan_ok=True)


WORDS = ("a", "é", "50 %", "$x$ and $y$", "_b", "W" * 12, "asynchronous", "of\n the", "[S]", "&", "1.234 ± 0.056")


def random_picture(draw: random.Random) -> TablePicture:
    """Return a picture of random texts; some are long, and some have none but their title."""

    def text(most: int) -> str:
        return " ".join(draw.choices(WORDS, k=draw.randint(1, most)))

    columns = draw.randint(1, 5)
    grid = [
        [Text(text(20)), *(Text(text(6) * draw.randint(0, 1), draw.random() < 0.3) for _ in range(columns))]
        for _ in range(draw.randint(1, 8))
    ]
    runs = [(str(number), text(20)) for number in range(draw.randint(1, 20))]
    curves = {run: [(10, draw.random(), 0.0), (10 * draw.randint(2, 99), draw.random(), 0.1)] for run in runs}
    panels = {"W" * 40: curves, "_test/$_$ (%)": curves} if draw.random() < 0.7 else {}
    return TablePicture(text(30), grid, [Text(text(60)) for _ in range(draw.randint(0, 4))], panels)


def places(figure: Figure) -> list[tuple[str, Bbox]]:
    """Return the rectangle, in pixels, of each text of a figure, and of the axes of each panel."""
    FigureCanvasAgg(figure).draw()
    page, *panels = figure.axes
    [table] = page.tables
    texts = [*page.texts, *(cell.get_text() for cell in table.get_celld().values())]
    found = list[tuple[str, Bbox]]()
    for axes in panels:
        texts += [axes.title, axes.xaxis.label, *(axes.get_legend().get_texts() if axes.get_legend() else ())]
        found += [("axis", axes.yaxis.get_tightbbox()), ("axes", axes.patch.get_window_extent())]
    return found + [(text.get_text(), text.get_window_extent()) for text in texts if text.get_text()]


@pytest.mark.parametrize("seed", [3, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (0, 1, 2, 4, 5))])
def test_no_text_of_a_picture_overlaps_another_or_is_cut_off(seed: int) -> None:
    picture = random_picture(random.Random(seed))
    figure = table_figure(picture)
    found = places(figure)
    shown = {" ".join(text.replace(r"\$", "$").split()) for text, _ in found}
    titles = [title for curves in picture.panels.values() for _, title in curves]
    for each in [picture.title, *titles, *(text.text for row in [*picture.grid, picture.sentences] for text in row)]:
        assert "".join(each.split()) in {"".join(text.split()) for text in shown} | {""}
    for (text, box), (other, second) in combinations(found, 2):
        overlap = Bbox.intersection(box, second)
        assert overlap is None or overlap.width < 1 or overlap.height < 1, (text, other)
    stream = io.BytesIO()
    figure.savefig(stream, format="png", bbox_inches="tight")
    whole = Bbox.union([box for _, box in found])
    saved = imread(io.BytesIO(stream.getvalue()))[..., :3]
    assert saved.shape[0] > whole.height
    assert saved.shape[1] > whole.width
    for edge in (saved[:5], saved[-5:], saved[:, :5], saved[:, -5:]):
        assert edge.min() == 1, "something is drawn up to the edge"


@pytest.mark.parametrize(("ends", "scale"), [((100, 499), "linear"), ((100, 500), "log"), ((7,), "linear")])
def test_curves_of_different_length_have_a_logarithmic_axis_and_each_its_colour(ends: list[int], scale: str) -> None:
    curves = {(str(end), "same"): [(1, 0.5, 0.1), (end, 0.7, 0.2)] for end in ends}
    figure = table_figure(TablePicture("", [[Text("a"), Text("b")]], [], {"loss": curves}))
    axes = figure.axes[1]
    assert axes.get_xscale() == scale
    drawn = [line for line in axes.lines if len(line.get_xydata())]
    assert len({line.get_color() for line in drawn}) == len(ends)
    assert [line.get_color() for line in axes.get_legend().get_lines()] == [line.get_color() for line in drawn]
    for band, end in zip(axes.collections, ends, strict=True):
        assert band.get_paths()[0].get_extents().extents == pytest.approx((1, 0.4, end, 0.9))


def test_a_picture_is_written_to_a_file(tmp_path: Path, capsys: Capture) -> None:
    own = tmp_path / "conf" / "table" / "mine.yaml"
    own.parent.mkdir(parents=True)
    own.write_text(yaml.safe_dump({**TABLE, "base": ["cluster.threads_per_worker=1"]}, sort_keys=False))
    command = ["table", "export", "mine", "--config-dir", str(own.parents[1]), "--format", "png"]
    path = tmp_path / "mine.png"
    assert main([*command, "--output", str(path)]) == 0
    assert min(imread(path).shape[:2]) > 200
    assert "--format png: expected also --output FILE, such as --output table.png" in refused(command, capsys)
    unwritable = str(tmp_path / "none" / "mine.png")
    assert f"cannot write {unwritable}: " in refused([*command, "--output", unwritable], capsys, code=4)
