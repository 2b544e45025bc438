"""Ops that connect steps and devices: feeds, variables, transfers, and sums over workers.

Only the sums have kernels; the executor runs the other ops itself. Added by passes:

* ``collective_sum``: maps the part of device ``rank`` to the sum of the parts of all ``size`` devices with nodes of the
  same ``group``. The communication library chooses the order of the additions; all devices receive equal bits. See
  :mod:`runner.engine.compile.passes.lower_collectives`.
"""

from collections.abc import Sequence

from runner.engine.graph.op import Builder, NotDifferentiable, OpDef, Specs, expect, no_flops, register
from runner.engine.graph.ops.common import (
    MADE_BY_PASSES,
    NO_INPUTS,
    copy_to_all,
    declared,
    expect_terms,
    single_output,
    sum_flops,
)
from runner.engine.graph.tensor import Tensor, TensorSpec


def placeholder(graph: Builder, shape: Sequence[int], dtype: str, *, name: str | None = None) -> Tensor:
    """Add a tensor whose value is fed in each step."""
    return graph.add("placeholder", (), {"shape": tuple(shape), "dtype": dtype}, name=name)[0]


def variable(graph: Builder, shape: Sequence[int], dtype: str, *, name: str | None = None) -> Tensor:
    """Add a variable, which stays on its device across steps; the output is its value at the start of the step."""
    return graph.add("variable", (), {"shape": tuple(shape), "dtype": dtype}, name=name)[0]


def assign(graph: Builder, variable: Tensor, value: Tensor, *, name: str | None = None) -> Tensor:
    """Add a node that stores ``value``, which has the variable's shape and dtype, in the variable for the next step.

    The node runs on the variable's device, after all nodes that read the variable. The output is ``value``.
    """
    return graph.add("assign", [variable, value], name=name, colocate_with=[variable.node])[0]


def send(graph: Builder, x: Tensor, *, key: str, destination: str, name: str | None = None) -> str:
    """Add a node that sends ``x`` to the recv node with the same key on ``destination``; return the new node's name."""
    return graph.add("send", [x], {"key": key, "destination": destination}, name=name).name


def recv(graph: Builder, *, key: str, source: str, shape: Sequence[int], dtype: str, name: str | None = None) -> Tensor:
    """Add a node that receives the tensor that device ``source`` sends with the key ``key`` in this step."""
    attributes = {"key": key, "source": source, "shape": tuple(shape), "dtype": dtype}
    return graph.add("recv", (), attributes, name=name)[0]


def _infer_assign(variable: TensorSpec, value: TensorSpec) -> Specs:
    expect(value == variable, f"a value like the variable, {variable}", value)
    return [value]


def all_reduce(graph: Builder, parts: Sequence[Tensor], *, group: str, rank: int, name: str | None = None) -> Tensor:
    """Add a node for worker ``rank`` that sums one part per worker, of equal specs, as ((p0 + p1) + p2) + ...

    group: a name that only the nodes of this sum share, one node on each worker. The name does not affect values.
    """
    return graph.add("all_reduce", parts, {"group": group, "rank": rank}, name=name)[0]


def _infer_all_reduce(*specs: TensorSpec, group: str, rank: int) -> Specs:
    expect_terms(specs, "parts")
    _expect_rank(rank, len(specs))
    return [specs[0]]


def _infer_collective_sum(part: TensorSpec, *, group: str, rank: int, size: int) -> Specs:
    expect_terms([part], "parts")
    _expect_rank(rank, size)
    return [part]


def _expect_rank(rank: int, size: int) -> None:
    expect(0 <= rank < size, f"a rank from 0 to {size - 1}", rank)


_SPEC = {"shape": "ints", "dtype": "dtype"}
_SENT = {"key": "str", "destination": "str"}
_RECEIVED = {"key": "str", "source": "str", **_SPEC}
_GROUP = {"group": "str", "rank": "int"}
_MEMBER = {**_GROUP, "size": "int"}
_COMMITS = NotDifferentiable("it commits a value for the next step; differentiate the value instead")
_IS_CUT = NotDifferentiable("gradients are added before a graph is partitioned among devices")

register(
    OpDef("placeholder", declared, NO_INPUTS, 0, _SPEC, no_flops, executed_by="executor"),
    OpDef("variable", declared, NO_INPUTS, 0, _SPEC, no_flops, stateful=True, executed_by="executor"),
    OpDef("assign", _infer_assign, _COMMITS, 2, {}, no_flops, stateful=True, executed_by="executor"),
    OpDef("send", lambda x, **attributes: (), _IS_CUT, 1, _SENT, no_flops, stateful=True, executed_by="executor"),
    OpDef("recv", declared, _IS_CUT, 0, _RECEIVED, no_flops, stateful=True, executed_by="executor"),
    OpDef("all_reduce", _infer_all_reduce, single_output(copy_to_all), None, _GROUP, sum_flops),
    OpDef(
        "collective_sum", _infer_collective_sum, MADE_BY_PASSES, 1, _MEMBER, stateful=True, executed_by="communicator"
    ),
)
