"""What processes that open cards are told, and what they refuse to be told."""

from __future__ import annotations

import pytest

from runner.engine.card_use import CardUse


def test_it_comes_out_of_its_document_as_it_went_in() -> None:
    use = CardUse(tf32=True, compare_plans=True, code_folder="/kept")
    assert CardUse.from_document(use.to_document()) == use


@pytest.mark.parametrize(
    "document",
    [
        None,
        {},
        {"tf32": True},
        {**CardUse().to_document(), "more": 1},
        {**CardUse().to_document(), "tf32": 1},
        {**CardUse().to_document(), "compare_plans": None},
        {**CardUse().to_document(), "code_folder": b"/kept"},
    ],
)
def test_a_document_that_is_none_is_refused(document: object) -> None:
    with pytest.raises(ValueError, match=r"use of cards .*: expected 'tf32' and 'compare_plans', booleans, and"):
        CardUse.from_document(document)
