"""The picture of a table: its texts, tones and curves, the places of its texts, and the command that writes it."""

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
from matplotlib.text import Text as Drawn
from matplotlib.transforms import Bbox

from runner.cli import main
from runner.system.schema import LenientRecord
from runner.tables.cells import TableState, state_of
from runner.tables.picture import picture_of
from runner.tables.results import Evaluation, Result, RunResults
from runner.tables.table import Table
from runner.tracking.table_picture import (
    BAD,
    FAINT,
    GOOD,
    OPEN,
    PLAIN,
    Curve,
    GridRow,
    Group,
    Panel,
    TablePicture,
    Text,
    table_figure,
)
from tests.refusal import Capture, refused

TABLE: dict[str, Any] = {
    "title": "Two optimizers",
    "kind": "measured",
    "seeds": [1, 2],
    "papers": {"book": {"cite": "A book"}},
    "columns": {
        "accuracy": {"title": "accuracy", "read": "test/accuracy", "unit": "%", "best": "highest"},
        "early": {"title": "early", "read": "test/accuracy", "at": {"updates": 10}, "unit": "%"},
        "time": {"title": "time", "read": "step_time_s", "unit": "ms"},
    },
    "runs": {"sgd": {}, "adam": {}},
    "rows": {
        "sgd": {
            "title": "SGD",
            "run": "sgd",
            "cells": {
                "accuracy": {
                    "published": [
                        {"printed": "25 %", "paper": "book", "confidence": "S", "tolerance": "0.3"},
                        {"printed": "90 %", "paper": "book", "confidence": "C", "tolerance": "0.1"},
                    ]
                },
                "early": {},
                "time": {},
            },
        },
        "adam": {"title": "Adam", "run": "adam", "cells": {"accuracy": {}, "time": {}}},
        "none": {"title": "None", "missing": "no network", "cells": {"accuracy": {}}},
    },
    "claims": {
        "time": {"text": "fast", "cells": ["sgd/time"], "relation": "at_most", "limit": 1.0},
        "open": {"text": "better", "cells": ["sgd/accuracy", "adam/accuracy"], "relation": "highest"},
    },
}


def result(seed: int, last: float) -> Result:
    """Return a result whose accuracy is 0.1 after 10 updates, and ``last`` after 20."""
    evaluations = (Evaluation(10, 40, {"test/accuracy": 0.1}), Evaluation(20, 80, {"test/accuracy": last}))
    return Result("measured", {}, {"step_time_s": 0.002}, seed, evaluations)


def state(**values: list[float]) -> TableState:
    """Return the state of the table. values: run -> last accuracy with each seed."""
    table = LenientRecord(Table, complete=False).read(TABLE)
    runs = {name: dict(enumerate(values.get(name, []), 1)) for name in table.runs}
    return state_of(
        table, {name: RunResults({seed: result(seed, each[seed]) for seed in each}) for name, each in runs.items()}
    )


def test_a_picture_has_the_values_the_published_ones_and_the_verdicts_of_the_table() -> None:
    picture = picture_of(state(sgd=[0.24, 0.26], adam=[0.5]))
    assert picture.title == "Two optimizers (measured)"
    assert [(group.title, list(group.headers)) for group in picture.groups] == [
        ("accuracy", ["ours", "published", ""]),
        ("early", [""]),
        ("time", [""]),
    ]
    rows = {row.title: row.columns for row in picture.rows}
    assert list(rows["SGD"]) == [
        [Text("25.0 ± 1.4 %")],
        [Text("25 % [S]", FAINT), Text("90 % [C]", FAINT)],
        [Text("passes", GOOD), Text("differs", BAD)],
        [Text("10 ± 0 %")],
        [Text("2 ± 0 ms")],
    ]
    assert list(rows["Adam"]) == [
        [Text("50 %", bold=True), Text("incomplete (n=1)", OPEN)],
        [],
        [],
        [],
        [Text("2 ms"), Text("incomplete (n=1)", OPEN)],
    ]
    assert list(rows["None"]) == [[Text("missing", FAINT)], [], [], [], []]
    assert list(picture.sentences) == [
        (Text("holds:", GOOD, bold=True), "fast"),
        (Text("undecided at 1 seed:", OPEN, bold=True), "better"),
        (
            Text(""),
            "Measured: mean ± standard deviation over 2 seeds. Curves: mean, with a band of one standard deviation.",
        ),
        (Text(""), "Published: A book. [S] read in the paper; [C] computed from a published specification."),
    ]


def test_a_curve_is_the_mean_over_seeds_with_a_gap_where_a_value_is_not_finite() -> None:
    [panel] = picture_of(state(sgd=[0.25, 0.75], adam=[0.5, math.nan])).panels
    assert (panel.metric, panel.percent) == ("test/accuracy", True)
    sgd, adam = panel.curves
    assert (sgd.run, sgd.updates, sgd.means) == ("SGD", [10, 20], [0.1, 0.5])
    assert sgd.deviations == pytest.approx([0.0, math.sqrt(0.125)])
    assert adam.means == pytest.approx([0.1, math.nan], nan_ok=True)
    assert adam.deviations == pytest.approx([0.0, math.nan], nan_ok=True)


WORDS = ("a", "é", "50 %", "$x$ and $y$", "_b", "W" * 12, "asynchronous", "of\n the", "[S]", "&", "1.234 ± 0.056")


def random_picture(draw: random.Random) -> TablePicture:
    """Return a picture of random texts; some are long, and some have none but their title."""

    def text(most: int) -> str:
        return " ".join(draw.choices(WORDS, k=draw.randint(1, most)))

    def lines() -> list[Text]:
        return [
            Text(" ".join(text(3).split()), draw.choice((PLAIN, GOOD)), draw.random() < 0.3)
            for _ in range(draw.randint(0, 3))
        ]

    groups = [
        Group(text(8), ("ours", "published", "")[:columns], (True, True, False)[:columns])
        for columns in draw.choices((1, 3), k=draw.randint(1, 3))
    ]
    columns = sum(len(group.headers) for group in groups)
    rows = [GridRow(text(20), [lines() for _ in range(columns)]) for _ in range(draw.randint(1, 8))]
    runs = [f"{text(20)} {number}" for number in range(draw.randint(1, 20))]
    curves = [Curve(run, [10, 20, 30], [draw.random(), draw.random(), math.nan], [0.0, 0.1, math.nan]) for run in runs]
    panels = [Panel("test/loss", curves), Panel("test/accuracy", curves, percent=True)][: draw.randint(0, 2)]
    sentences = [(Text(draw.choice(("", "holds:")), GOOD, bold=True), text(60)) for _ in range(draw.randint(0, 4))]
    return TablePicture(text(30), groups, rows, sentences, panels)


def places(figure: Figure) -> list[tuple[str, Bbox]]:
    """Return the texts of a figure, without those of ticks, with the rectangles in pixels that they occupy."""
    FigureCanvasAgg(figure).draw()
    texts = list(figure.axes[0].texts)
    for axes in figure.axes[1:]:
        texts += [axes.xaxis.label, *(each for each in axes.get_children() if isinstance(each, Drawn))]
    texts += [text for legend in figure.legends for text in legend.get_texts()]
    return [(text.get_text(), text.get_window_extent()) for text in texts if text.get_text()]


@pytest.mark.parametrize("seed", range(6))
def test_no_text_of_a_picture_overlaps_another_or_is_cut_off(seed: int) -> None:
    picture = random_picture(random.Random(seed))
    figure = table_figure(picture)
    found = places(figure)
    assert len(found) > len(picture.rows) + len(picture.groups)
    width, height = figure.bbox.size
    for text, box in found:
        assert 0 <= box.x0 <= box.x1 <= width, text
        assert 0 <= box.y0 <= box.y1 <= height, text
    for (text, box), (other, second) in combinations(found, 2):
        overlap = Bbox.intersection(box, second)
        assert overlap is None or overlap.width < 1 or overlap.height < 1, (text, other)


def test_a_picture_is_written_to_a_file(tmp_path: Path, capsys: Capture) -> None:
    own = tmp_path / "conf" / "table" / "mine.yaml"
    own.parent.mkdir(parents=True)
    own.write_text(yaml.safe_dump({**TABLE, "base": ["cluster.threads_per_worker=1"]}, sort_keys=False))
    command = ["table", "export", "mine", "--config-dir", str(own.parents[1]), "--format", "png"]
    path = tmp_path / "mine.png"
    assert main([*command, "--output", str(path)]) == 0
    assert imread(path).shape[0] > 300
    assert "--format png: expected also --output FILE, such as --output table.png" in refused(command, capsys)
    unwritable = str(tmp_path / "none" / "mine.png")
    assert f"{unwritable}: cannot be written" in refused([*command, "--output", unwritable], capsys, code=4)
