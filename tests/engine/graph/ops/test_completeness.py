"""Every op has a kernel, a checked gradient decision, a function that adds it or a decomposition, and samples."""

import inspect
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import cast

import pytest

from runner.engine.graph import ops
from runner.engine.graph.op import OPS, ByDecomposition, NotDifferentiable, OpDef
from runner.engine.graph.ops.common import MADE_BY_PASSES
from runner.engine.run.kernel_table import load_kernels
from runner.kernels.registry import Registry
from tests.op_cases import CASES
from tests.samples import Case

CHECKED_BY_HAND = {"stop_gradient"}
"""Ops whose gradient is deliberately not the derivative; test_gradient_rules checks them."""


def gaps(table: Mapping[str, OpDef], cases: Mapping[str, Sequence[Case]], kernels: Registry) -> list[str]:
    """Return what the table lacks, one sentence for each gap."""
    found = [f"{op}: samples for an op that does not exist" for op in cases if op not in table]
    for op, definition in table.items():
        if definition.gradient is not MADE_BY_PASSES and not inspect.isfunction(getattr(ops, op, None)):
            found.append(f"{op}: no function in runner.engine.graph.ops")
        if definition.executed_by != "kernel":
            continue
        if "cpu" not in kernels.device_types(op):
            found.append(f"{op}: no reference kernel")
        if not cases.get(op):
            found.append(f"{op}: no case in tests/op_cases.py")
        found.extend(_gradient_gaps(definition, cases.get(op, [])))
    return found


def _gradient_gaps(definition: OpDef, cases: Sequence[Case]) -> list[str]:
    gradient = definition.gradient
    if isinstance(gradient, NotDifferentiable):
        return [] if gradient.reason else [f"{definition.name}: not differentiable, but no reason"]
    if not isinstance(gradient, ByDecomposition) and not callable(gradient):
        return [f"{definition.name}: no gradient decision"]
    checked = definition.name in CHECKED_BY_HAND or any(case.orders > 0 for case in cases)
    return [] if checked else [f"{definition.name}: no case checks its gradient"]


def test_the_table_of_ops_is_complete() -> None:
    assert gaps(OPS, CASES, load_kernels()) == []


def test_op_without_kernel_function_samples_and_gradient_fails_the_check() -> None:
    newcomer = replace(OPS["relu"], name="swish", gradient=cast("NotDifferentiable", None))
    assert gaps({**OPS, "swish": newcomer}, CASES, load_kernels()) == [
        "swish: no function in runner.engine.graph.ops",
        "swish: no reference kernel",
        "swish: no case in tests/op_cases.py",
        "swish: no gradient decision",
    ]


@pytest.mark.parametrize(
    ("orders", "gradient", "gap"),
    [
        (0, OPS["relu"].gradient, "relu: no case checks its gradient"),
        (0, NotDifferentiable(""), "relu: not differentiable, but no reason"),
    ],
)
def test_an_unchecked_gradient_fails_the_check(orders: int, gradient: NotDifferentiable, gap: str) -> None:
    table = {**OPS, "relu": replace(OPS["relu"], gradient=gradient)}
    cases = {**CASES, "relu": [replace(case, orders=orders) for case in CASES["relu"]]}
    assert gaps(table, cases, load_kernels()) == [gap]


def test_samples_of_a_removed_op_fail_the_check() -> None:
    table = {op: definition for op, definition in OPS.items() if op != "relu"}
    assert gaps(table, CASES, load_kernels()) == ["relu: samples for an op that does not exist"]


def test_every_differentiable_op_is_checked_to_second_order() -> None:
    shallow = {
        op
        for op, cases in CASES.items()
        if not isinstance(OPS[op].gradient, NotDifferentiable) and max(case.orders for case in cases) < 2
    }
    assert shallow == {"sign", "stop_gradient"}, "the derivatives of these are constant"


def test_every_op_is_documented() -> None:
    functions = {op: getattr(ops, op) for op in OPS if inspect.isfunction(getattr(ops, op, None))}
    assert [op for op, function in functions.items() if not function.__doc__] == []
    for op in OPS.keys() - functions.keys():
        assert OPS[op].gradient is MADE_BY_PASSES
        assert OPS[op].decompose
        assert f"``{op}``: " in str(sys.modules[OPS[op].infer.__module__].__doc__)
