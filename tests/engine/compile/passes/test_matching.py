"""The notation of rules, and the laws that hold for every rule."""

from functools import partial

import pytest

from runner.engine.compile.passes.matching import Rule, rewrite
from tests.engine.compile.passes.graph_text import Case, check

MOVING = "x = input(3); d = exp(x); e = tanh(d)"
LATER = Rule("s = square(x); t = abs(s)", "t = sqrt(x)")
CASES = {
    "a node is matched by one statement": (
        [Rule("a = neg(x); b = neg(x)", "a = exp(x)")],
        Case("x = input(3); a = neg(x)"),
    ),
    "a tensor keeps its shape": (
        [Rule("y = sub(a, b)", "y = neg(a)")],
        Case("a = input(3); b = input(2, 3); y = sub(a, b)"),
    ),
    "a fetched tensor that has moved stays": (
        [Rule("d = exp(x); e = tanh(d)", "e = square(x, like=d, at=d)"), LATER],
        Case(
            "x = input(3); d = exp(x); e = tanh(d); t = abs(e)", "x = input(3); d = square(x); t = abs(d)", fetch="e t"
        ),
    ),
    "a moved tensor that is not fetched goes": (
        [Rule("d = exp(x); e = tanh(d)", "e = square(x, like=d, at=d)"), LATER],
        Case(f"{MOVING}; t = abs(e)", "x = input(3); t = sqrt(x)"),
    ),
    "the first rule that fits": (
        [Rule("y = neg(neg(x))", "y = exp(x)"), Rule("y = neg(x)", "y = tanh(x)")],
        Case("x = input(3); a = neg(x); y = neg(a)", "x = input(3); y = exp(x)"),
    ),
    "any number of inputs": (
        [Rule("y = add_n(*some, neg(x), *others)", "y = add_n(x, *others, *some)")],
        Case(
            "a = input(3); b = input(3); n = neg(b); y = add_n(a, n, b)",
            "a = input(3); b = input(3); y = add_n(b, b, a)",
        ),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_rule_is_applied_as_the_table_says(name: str) -> None:
    rules, case = CASES[name]
    check(case, partial(rewrite, rules=rules), same_bits=False)


def test_text_without_a_statement_is_refused() -> None:
    with pytest.raises(ValueError, match=r"rule 'y \+ 1': expected OUTPUTS = OP\(INPUTS, ATTRIBUTE=VALUE\)"):
        _ = Rule("y + 1", "y = neg(x)").statements
