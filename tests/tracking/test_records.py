import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.tracking.records import Artifact, End, Metrics, Params, Record, Tags, from_line, to_line

_texts = st.dictionaries(st.text(), st.text())
_records = st.one_of(
    st.builds(Metrics, st.integers(), st.integers(), st.dictionaries(st.text(), st.floats(allow_nan=False))),
    st.builds(Params, _texts),
    st.builds(Tags, _texts),
    st.builds(Artifact, st.text(), st.text()),
    st.builds(End, st.text(), st.integers()),
)


@given(_records)
def test_a_record_survives_its_line(record: Record) -> None:
    line = to_line(record)
    assert line.count("\n") == 1
    assert from_line(line) == record


def test_lines_are_strict_json_also_when_values_are_not_finite() -> None:
    line = to_line(Metrics(1, 2, {"train/loss": math.nan, "train/norm": -math.inf}))
    assert json.loads(line, parse_constant=pytest.fail)["values"] == {
        "train/loss": "nan",
        "train/norm": "-inf",
    }
    restored = from_line(line)
    assert isinstance(restored, Metrics)
    assert math.isnan(restored.values["train/loss"])
    assert restored.values["train/norm"] == -math.inf


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "[]",
        '{"kind": "shell"}',
        '{"kind": "tags"}',
        '{"kind": "metrics", "step": 1, "time_ms": 1, "values": 3}',
    ],
)
def test_anything_else_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match=r"expected|Expecting"):
        from_line(line)
