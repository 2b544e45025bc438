from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread

from runner.tracking.plots import staleness_histogram, staleness_table


def test_the_table_has_a_row_for_each_staleness_and_a_column_for_each_server(tmp_path: Path) -> None:
    table = tmp_path / "plots" / "s.csv"
    assert staleness_table([{"0": 3, "2": 1}, {"1": 4}], table) == table
    assert table.read_text().splitlines() == ["staleness,server 0,server 1", "0,3,0", "1,0,4", "2,1,0"]


@pytest.mark.parametrize("counts", [[{}], [{}, {}], [{"0": 1}]])
def test_few_pushes_make_a_picture_too(counts: list[dict[str, int]], tmp_path: Path) -> None:
    picture = staleness_histogram(counts, tmp_path / "s.png")
    assert np.asarray(imread(picture)).ndim == 3
