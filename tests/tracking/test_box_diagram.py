from __future__ import annotations

import struct
from pathlib import Path

import pytest

from runner.tracking.plots import Box, box_diagram


def size(picture: Path) -> tuple[int, int]:
    """Width and height of a PNG in pixels."""
    width, height = struct.unpack(">II", picture.read_bytes()[16:24])
    return width, height


@pytest.mark.parametrize(("columns", "rows"), [(1, 1), (2, 3), (4, 12)])
def test_there_is_room_for_every_column_and_row(columns: int, rows: int, tmp_path: Path) -> None:
    boxes: dict[Box, str] = {(f"layer{y}", f"device{x}"): "9 nodes" for x in range(columns) for y in range(rows)}
    assert size(box_diagram(boxes, {}, tmp_path / "graph.png")) == (420 * columns, 85 * (rows + 1))


def test_an_arrow_and_its_way_back_are_two_lines(tmp_path: Path) -> None:
    a, b = ("top", "left"), ("bottom", "left")
    boxes: dict[Box, str] = {a: "a", b: "b"}
    there = box_diagram(boxes, {(a, b): "1"}, tmp_path / "there.png").read_bytes()
    back = box_diagram(boxes, {(b, a): "1"}, tmp_path / "back.png").read_bytes()
    both = box_diagram(boxes, {(a, b): "1", (b, a): "1"}, tmp_path / "both.png").read_bytes()
    assert len({there, back, both}) == 3


def test_an_arrow_needs_boxes_at_both_ends(tmp_path: Path) -> None:
    with pytest.raises(KeyError):
        box_diagram({("a", "x"): "a"}, {(("a", "x"), ("b", "x")): "1"}, tmp_path / "graph.png")
