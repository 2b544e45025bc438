"""Schemas of records: one mechanism reads and writes every kind of value, and refuses everything else."""

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.bounds import Bounds
from runner.errors import DataError
from runner.system.json_file import JsonFile, parse_json
from runner.system.schema import Integer, LenientRecord, ListOf, MapOf, Number, OneOf, Record, Text, Violation


@dataclass(frozen=True)
class Inner:
    """A record within a record."""

    word: Annotated[str, OneOf(("a", "b"))] = "a"


@dataclass(frozen=True)
class Everything:
    """A record with every kind of field."""

    flag: bool
    whole: int
    real: float
    text: str
    maybe: int | None
    either: int | str
    bounded: Annotated[int, Bounds(1, 9)]
    words: list[str]
    sizes: tuple[int, ...]
    pair: tuple[int, int]
    named: dict[str, float]
    inner: Inner
    inners: tuple[Inner, ...]
    short: Annotated[str, Text(3, "[a-z]+")] = "abc"
    few: Annotated[tuple[int, ...], ListOf(Integer(0, 5), 2)] = ()
    some: Annotated[dict[str, float], MapOf(Text(2), Number(0, 1), 2)] = field(default_factory=dict)
    anything: Any = None


SCHEMA = Record(Everything)
VALUE = Everything(
    True, 1, 0.5, "x", None, "y", 9, ["a"], (1, 2), (3, 4), {"k": 1.0}, Inner("b"), (Inner(),), "abc", (5,), {"k": 1}
)
PLAIN = SCHEMA.write(VALUE)
VALUES = st.builds(
    Everything,
    flag=st.booleans(),
    whole=st.integers(),
    text=st.text(),
    maybe=st.none() | st.integers(),
    real=st.floats(allow_nan=False),
    either=st.one_of(st.integers(), st.text()),
    bounded=st.integers(1, 9),
    words=st.lists(st.text()),
    sizes=st.lists(st.integers()).map(tuple),
    pair=st.tuples(st.integers(), st.integers()),
    named=st.dictionaries(st.text(), st.floats(allow_nan=False)),
    inner=st.builds(Inner, st.sampled_from("ab")),
    inners=st.lists(st.builds(Inner, st.sampled_from("ab"))).map(tuple),
)


@given(VALUES)
def test_a_record_is_read_back_from_strict_json(value: Everything) -> None:
    assert SCHEMA.read(json.loads(json.dumps(SCHEMA.write(value), allow_nan=False))) == value


def test_a_number_that_is_not_finite_is_stored_as_text() -> None:
    plain = SCHEMA.write(SCHEMA.read(PLAIN | {"real": "nan", "named": {"k": "-inf"}}))
    assert (plain["real"], plain["named"]) == ("nan", {"k": "-inf"})
    assert math.isnan(SCHEMA.read(plain).real)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"flag": 1}, "at.flag: 1, expected true or false"),
        ({"whole": True}, "at.whole: True, expected a whole number"),
        ({"whole": 1.0}, "at.whole: 1.0, expected a whole number"),
        ({"real": True}, 'at.real: True, expected a number, "nan", "inf" or "-inf"'),
        ({"real": "1"}, "at.real: '1', expected a number"),
        ({"text": 1}, "at.text: 1, expected text"),
        ({"maybe": "1"}, "at.maybe: '1', expected a whole number"),
        ({"either": 1.5}, "at.either: 1.5, expected a whole number or str"),
        ({"bounded": 10}, "at.bounded: 10, expected 1 to 9"),
        ({"words": ["a", 1]}, "at.words[1]: 1, expected text"),
        ({"words": "ab"}, "at.words: 'ab', expected a list"),
        ({"pair": [1]}, "at.pair: [1], expected a list of at least 2 and of at most 2"),
        ({"named": [1]}, "at.named: [1], expected a map"),
        ({"named": {"k": None}}, "at.named[k]: None, expected a number"),
        ({"inner": {}}, "at.inner: missing ['word'], expected the fields word"),
        ({"inner": [1]}, "at.inner: [1], expected a map of word"),
        ({"inners": [{"word": "c"}]}, "at.inners[0].word: 'c', expected one of a, b"),
        ({"short": "abcd"}, "at.short: 'abcd', expected text of at most 3 characters matching [a-z]+"),
        ({"short": "A"}, "at.short: 'A', expected text of at most 3"),
        ({"few": [6]}, "at.few[0]: 6, expected a whole number from 0 to 5"),
        ({"few": [1, 2, 3]}, "at.few: [1, 2, 3], expected a list of at most 2"),
        ({"some": {"k": 1.5}}, "at.some[k]: 1.5, expected a finite number from 0 up to 1"),
        ({"some": {"k": 10**400}}, "at.some[k]: 1000"),
        ({"some": {"abc": 1}}, "name in at.some: 'abc', expected text of at most 2"),
        ({"some": dict.fromkeys("abc", 1)}, "expected a map of at most 2 entries"),
        ({"\x1b[2J": 1}, r"at: unknown ['\\x1b[2J'], expected the fields flag, whole"),
    ],
)
def test_invalid_values_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(Violation) as caught:
        SCHEMA.read(PLAIN | change, "at")
    assert str(caught.value).startswith(message) or message in str(caught.value)


@pytest.mark.parametrize(("name", "value"), [("whole", 1.5), ("inner", Inner("c")), ("few", (6,)), ("short", "A")])
def test_a_value_out_of_bounds_is_not_written(name: str, value: Any) -> None:
    with pytest.raises(Violation, match=name):
        SCHEMA.write(Everything(**{**vars(VALUE), name: value}))


def test_missing_fields_have_defaults_and_open_records_ignore_unknown_fields() -> None:
    lacking = {name: value for name, value in PLAIN.items() if name not in ("short", "few", "some", "anything")}
    read = LenientRecord(Everything, complete=False).read(lacking | {"inner": {}})
    assert (read.short, read.few, read.some, read.inner) == ("abc", (), {}, Inner())
    with pytest.raises(Violation, match="short"):
        SCHEMA.read(lacking)
    with pytest.raises(Violation, match=r"missing \['flag', "):
        LenientRecord(Everything, complete=False).read({})
    assert LenientRecord(Inner, closed=False).read({"word": "a", "more": 1}) == Inner("a")


@pytest.mark.parametrize(
    ("raw", "message"),
    [(b"{", "not JSON"), (b"[" * 9_000, "not JSON"), (b"\xff", "not JSON"), (b" " * 10_001, "exceeds")],
)
def test_hostile_json_is_refused(raw: bytes, message: str) -> None:
    with pytest.raises(Violation, match=message):
        parse_json(raw, 10_000)


FILE: JsonFile[Inner] = JsonFile(Record(Inner), DataError, "write it again", version=3)


def test_a_file_is_read_back_and_a_damaged_one_is_refused_with_advice(tmp_path: Path) -> None:
    path = tmp_path / "inner.json"
    FILE.write(path, Inner("b"), mode=0o600)
    assert (FILE.read(path), path.stat().st_mode & 0o777) == (Inner("b"), 0o600)
    assert json.loads(path.read_text()) == {"version": 3, "word": "b"}
    for text, fault in (
        ("[]", r"version: None, expected 3"),
        ('{"version": true, "word": "b"}', "version: True, expected 3"),
        ('{"version": 3}', r"missing \['word'\]"),
    ):
        path.write_text(text)
        with pytest.raises(DataError, match=rf"inner\.json is damaged: {fault}.*; write it again"):
            FILE.read(path)
        with pytest.raises(DataError, match=r"^key=x is damaged"):
            FILE.read(path, called="key=x")
    with pytest.raises(DataError, match=r"inner\.json/x cannot be read: Not a directory; write it again"):
        FILE.read(path / "x")
