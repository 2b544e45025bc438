import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.system.text import ascii_only, printable, printable_lines, text_table


def test_terminal_escapes_and_direction_overrides_become_visible() -> None:
    assert printable("\x1b[2J\u202eoops\n") == "\\x1b[2J\\u202eoops\\n"


def test_long_text_is_cut_with_its_length() -> None:
    assert printable("x" * 500, limit=3) == "xxx... (500 characters)"


@given(st.text(st.characters()))
def test_printable_text_is_printable_for_every_input(text: str) -> None:
    assert printable(text, limit=10_000).isprintable()


def test_last_lines_are_kept_one_by_one() -> None:
    assert printable_lines("one\ntwo\tx\nthree\x00\n", lines=2) == ["two x", "three\\x00"]


@given(st.text(st.characters()))
def test_ascii_only_has_one_byte_per_character(text: str) -> None:
    assert len(ascii_only(text).encode("ascii")) == len(ascii_only(text))


def test_ascii_only_keeps_newlines() -> None:
    assert ascii_only("é\n") == "\\xe9\n"


@pytest.mark.parametrize(
    ("headers", "rows", "ruled", "expected"),
    [
        (
            ("layer", "size", "n"),
            [("conv", "1,000", "-"), ("dense", "20", "3")],
            False,
            ["layer   size  n", "conv   1,000  -", "dense     20  3"],
        ),
        (("layer", "n"), [("conv", "12")], True, ["layer   n", "-----  --", "conv   12"]),
        (("layer", "size"), [], False, ["layer  size"]),
    ],
)
def test_a_table_aligns_text_to_the_left_and_numbers_to_the_right(
    headers: tuple[str, ...], rows: list[tuple[str, ...]], ruled: bool, expected: list[str]
) -> None:
    assert text_table(headers, rows, ruled=ruled).splitlines() == expected
