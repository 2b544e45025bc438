"""Cells and claims of a table with given results: readings, ratios, relations and evidence."""

import math
from dataclasses import replace
from typing import Any

import pytest

from runner.system.schema import LenientRecord
from runner.tables.cells import TableState, reading, state_of, values_of
from runner.tables.rendering import value_text
from runner.tables.results import Evaluation, Result, ResultOrigin, RunResults
from runner.tables.table import Column, Table


def result(seed: int = 1, *, failure: str = "", **values: float) -> Result:
    """Return a result with the accuracies 0.1, 0.2 and 0.3 after 10, 20 and 30 updates of 4 examples."""
    evaluations = tuple(Evaluation(n, 4 * n, {"test/accuracy": n / 100}) for n in (10, 20, 30))
    return Result("measured", {}, values, seed, evaluations, failure)


@pytest.mark.parametrize(
    ("column", "failure", "expected"),
    [
        ({}, "", 0.3),
        ({"at": {"updates": 20}}, "", 0.2),
        ({"at": {"examples": 40}}, "", 0.1),
        ({"at": {"updates": 25}}, "", None),
        ({"at": {"examples": 119}}, "", 0.2),
        ({"at": {"examples": 121}}, "", None),
        ({"at": {"updates": 20}}, "nan at 35", 0.2),
        ({"at": {"updates": 40}}, "nan at 35", math.nan),
        ({}, "nan at 35", math.nan),
        ({"read": "step_time_s"}, "", 0.5),
        ({"read": "examples_per_s"}, "", None),
    ],
)
def test_a_column_reads_a_metric_at_a_place(column: dict[str, Any], failure: str, expected: float | None) -> None:
    read = Column(**{"title": "x", "read": "test/accuracy", **column})
    found = reading(result(failure=failure, step_time_s=0.5), read)
    assert found == pytest.approx(expected, nan_ok=True) if expected is not None else found is None


def state_with(claims: dict[str, Any], **steps: list[float]) -> TableState:
    """Return the state of a table whose runs have these step times, one for each seed."""
    cells: dict[str, Any] = {"step": {}, "ratio": {}, "gain": {"factor": 0.5}}
    document = {
        "title": "t",
        "kind": "measured",
        "seeds": [1, 2, 3, 4, 5, 6],
        "papers": {"book": {"cite": "A book"}},
        "columns": {
            "step": {"title": "step", "read": "step_time_s"},
            "ratio": {"title": "ratio", "read": "step_time_s", "relative_to": "a"},
            "gain": {"title": "gain", "read": "step_time_s", "relative_to": "a", "gain": True},
        },
        "runs": {name: {} for name in steps},
        "rows": {name: {"title": name, "run": name, "cells": cells} for name in steps},
        "claims": {name: {"text": name, **claim} for name, claim in claims.items()},
    }
    table = LenientRecord(Table, complete=False).read(document)
    results = {
        name: RunResults({seed: result(seed, step_time_s=value) for seed, value in enumerate(values, 1)})
        for name, values in steps.items()
    }
    return state_of(table, results)


LOW, MIDDLE, HIGH = ([base + seed / 100 for seed in range(6)] for base in (1.0, 2.0, 3.0))


@pytest.mark.parametrize(
    ("claim", "verdict"),
    [
        ({"cells": ["a/step", "b/step", "c/step"], "relation": "ascending"}, "holds"),
        ({"cells": ["a/step", "c/step", "b/step"], "relation": "ascending"}, "fails"),
        ({"cells": ["a/step", "b/step", "c/step"], "relation": "lowest"}, "holds"),
        ({"cells": ["b/step", "a/step", "c/step"], "relation": "lowest"}, "fails"),
        ({"cells": ["c/step", "b/step", "a/step"], "relation": "highest"}, "holds"),
        ({"cells": ["a/step", "b/step"], "relation": "equivalent", "margin": 1.1}, "holds"),
        ({"cells": ["a/step", "b/step"], "relation": "equivalent", "margin": 0.5}, "fails"),
        ({"cells": ["a/step"], "relation": "at_most", "limit": 1.05}, "holds"),
        ({"cells": ["a/step", "b/step"], "relation": "at_most", "limit": 1.05}, "fails"),
        ({"cells": ["d/step"], "relation": "at_most", "limit": 0.5}, "fails"),
        ({"cells": ["d/step"], "relation": "at_most", "limit": 5.0}, "undecided"),
        ({"cells": ["a/step", "d/step"], "relation": "ascending"}, "undecided at 5 seeds"),
        ({"cells": ["a/step", "b/step"], "relation": "ascending", "test": "permutation"}, "holds"),
    ],
)
def test_a_claim_is_decided_by_its_relation(claim: dict[str, Any], verdict: str) -> None:
    state = state_with({"claim": claim}, a=LOW, b=MIDDLE, c=HIGH, d=LOW[:5])
    assert state.claims[0].verdict == verdict


def test_the_evidence_of_a_claim_has_the_sign_of_the_first_cell_minus_the_other() -> None:
    higher, lower = ({"cells": ["c/step", "a/step"], "relation": name} for name in ("highest", "ascending"))
    for claim in state_with({"higher": higher, "lower": lower}, a=LOW, c=HIGH).claims:
        assert "difference 2, 95% interval 1.98 to 2.02, Hedges' g 9" in claim.evidence


def test_a_value_that_is_not_finite_fails_a_claim_of_a_limit() -> None:
    claim = {"cells": ["a/step"], "relation": "at_most", "limit": 5.0}
    [found] = state_with({"claim": claim}, a=[*LOW[:5], math.nan]).claims
    assert (found.verdict, found.evidence) == ("fails", "1 of 6 values not finite, limit 5")


def test_the_changed_keys_are_those_of_the_nearest_earlier_design() -> None:
    earlier = [(result(), ["model.hidden", "seed 9, which was removed"]), (result(), ["train.steps"])]
    assert {RunResults(earlier=each).changed_keys for each in (earlier, earlier[::-1])} == {"train.steps"}


def test_claims_of_a_benchmark_are_decided_by_pairs_of_rounds() -> None:
    """Two libraries in slow and fast rounds; the second library is always a little slower."""
    cells: dict[str, Any] = {"a": {}, "b": {}}
    document = {
        "title": "t",
        "kind": "benchmark",
        "seeds": [1, 2, 3, 4, 5],
        "columns": {name: {"title": name, "read": name, "unit": "ms"} for name in cells},
        "runs": {"net": {}},
        "rows": {"net": {"title": "net", "run": "net", "cells": cells}},
        "claims": {"faster": {"text": "faster", "cells": ["net/a", "net/b"], "relation": "lowest"}},
    }
    table = LenientRecord(Table, complete=False).read(document)
    noise = [0.01, -0.01, 0.02, 0.0, 0.01]
    times = [(each, each + 0.1 + noise[each - 1]) for each in (1, 2, 3, 4, 5)]
    results = {each: replace(result(each, a=a, b=b), kind="benchmark") for each, (a, b) in enumerate(times, 1)}
    [claim] = state_of(table, {"net": RunResults(results)}).claims
    assert claim.verdict == "holds"
    assert claim.evidence.startswith("paired t-test, p = ")
    [claim] = state_of(table, {"net": RunResults({each: results[each] for each in (1, 2)})}).claims
    assert (claim.verdict, claim.evidence) == ("undecided at 2 rounds", "rounds without a value in net/a, net/b")


def test_claims_without_values_count_in_the_correction() -> None:
    clear = {"cells": ["a/step", "b/step"], "relation": "ascending"}
    close = [value + 0.025 for value in LOW]
    assert state_with({"one": clear}, a=LOW, b=close).claims[0].verdict == "holds"
    missing = {f"missing{n}": {"cells": ["a/step", "c/step"], "relation": "ascending"} for n in range(9)}
    state = state_with({"one": clear, **missing}, a=LOW, b=close, c=[])
    assert state.claims[0].verdict == "undecided at 6 seeds"
    assert "would decide it with a power of 80 %" in state.claims[0].evidence
    assert state.claims[1].evidence == "seeds without a value in c/step"


def test_speeds_of_two_kinds_of_machines_are_not_averaged() -> None:
    claims = {"faster": {"cells": ["a/step", "b/step"], "relation": "ascending"}}
    state, other = state_with(claims, a=LOW, b=HIGH), ResultOrigin(machine={"cpu": "Z80"})
    assert state.claims[0].verdict == "holds"
    moved = {seed: replace(each, origin=other) for seed, each in state.results["a"].current.items()}
    reason, relative = "the speeds are from 2 kinds of machines", {"b/ratio", "b/gain"}
    for seeds, mixed in (({1}, {"a/step", "a/ratio", "a/gain", *relative}), ({*moved}, relative)):
        found = {seed: (moved if seed in seeds else state.results["a"].current)[seed] for seed in moved}
        now = state_of(state.table, {**state.results, "a": RunResults(found)})
        reasons = {line.cell: line.reason for line in now.lines if line.verdict == "incomplete"}
        assert reasons == dict.fromkeys(mixed, reason)
        assert (now.claims[0].verdict, now.claims[0].evidence) == ("undecided at 6 seeds", reason)


def test_a_weight_difference_holds_for_the_weights_that_were_compared() -> None:
    document = {
        "title": "t",
        "kind": "measured",
        "seeds": [1, 2, 3],
        "columns": {"difference": {"title": "difference", "read": "weight_difference"}},
        "runs": {"a": {}, "b": {"against": "a"}},
        "rows": {"b": {"title": "b", "run": "b", "cells": {"difference": {}}}},
    }
    table = LenientRecord(Table, complete=False).read(document)
    references = {seed: replace(result(seed), origin=ResultOrigin(weights_sha256=f"w{seed}")) for seed in (1, 2, 3)}
    others = {
        1: replace(result(1, weight_difference=0.5), against="w1"),
        2: replace(result(2, weight_difference=0.25), against="other weights"),
        3: replace(result(3, weight_difference=math.nan, failure="nan"), against="w3"),
    }
    found = values_of(table, {"a": RunResults(references), "b": RunResults(others)}, "b", "difference")
    assert found == pytest.approx({1: 0.5, 3: math.nan}, nan_ok=True)


def test_a_median_is_shown_with_its_range() -> None:
    state = state_with({}, a=[1.0, 2.0, 4.0])
    columns = {**state.table.columns, "step": replace(state.table.columns["step"], statistic="median")}
    [line, *_] = state_of(replace(state.table, columns=columns), state.results).lines
    assert value_text(line) == "median 2, range 1 to 4"


def test_ratios_are_of_equal_seeds() -> None:
    state = state_with({}, a=[1.0, 2.0, 4.0], b=[2.0, 4.0])
    assert values_of(state.table, state.results, "b", "ratio") == {1: 2.0, 2: 2.0}
    assert values_of(state.table, state.results, "b", "gain") == {1: -0.75, 2: -0.75}
    assert values_of(state.table, state.results, "a", "gain") == {1: -0.5, 2: -0.5, 3: -0.5}
    incomplete = [line for line in state.lines if line.cell == "b/ratio"]
    assert [line.verdict for line in incomplete] == ["incomplete"]
    assert incomplete[0].reason == "2 of 6 seeds have a value"
