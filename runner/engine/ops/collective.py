"""Sums over workers, a node for each of them: as plain mathematics, and as a library between cards has them."""

from __future__ import annotations

from collections.abc import Sequence

from runner.engine.graph import Graph, Node
from runner.engine.op import Attributes, NotDifferentiable, OpDef, expect, register
from runner.engine.ops.common import NUMERIC, expect_dtype, expect_same_dtype, single_output
from runner.engine.tensor import Tensor, TensorSpec


def all_reduce(graph: Graph, parts: Sequence[Tensor], *, group: str, rank: int, name: str | None = None) -> Tensor:
    """Add y = ((p0 + p1) + p2) + ...: the parts of all workers, of one shape and dtype, as worker ``rank`` has the sum.

    group: the same for the nodes of all workers that sum these parts, and for no others. It says what belongs
    together and changes no value.
    """
    return graph.add("all_reduce", parts, {"group": group, "rank": rank}, name=name)[0]


def collective_sum(graph: Graph, part: Tensor, *, group: str, rank: int, size: int, name: str | None = None) -> Tensor:
    """Add the sum of the parts that ``size`` devices give under ``group``, this one as number ``rank``.

    Made by :func:`~runner.engine.passes.lower_collectives.lower_collectives` of ``all_reduce``. In what order is
    summed is the library's business; all devices have the same bits.
    """
    return graph.add("collective_sum", [part], {"group": group, "rank": rank, "size": size}, name=name)[0]


def _infer_all_reduce(specs: Sequence[TensorSpec], attributes: Attributes) -> Sequence[TensorSpec]:
    expect_same_dtype("all_reduce", specs)
    expect_dtype("all_reduce", specs[0], NUMERIC)
    expect(len({spec.shape for spec in specs}) == 1, "all_reduce", "parts of one shape", [s.shape for s in specs])
    _expect_rank("all_reduce", attributes["rank"], len(specs))
    return [specs[0]]


def _infer_collective_sum(specs: Sequence[TensorSpec], attributes: Attributes) -> Sequence[TensorSpec]:
    expect_dtype("collective_sum", specs[0], NUMERIC)
    _expect_rank("collective_sum", attributes["rank"], attributes["size"])
    return [specs[0]]


def _expect_rank(op: str, rank: int, size: int) -> None:
    expect(0 <= rank < size, op, f"a rank of {size} parts, from 0", rank)


def _copy_to_all(graph: Graph, node: Node, dy: Tensor) -> Sequence[Tensor | None]:
    return [dy] * len(node.inputs)


def _sum_flops(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], attributes: Attributes) -> int:
    return (len(inputs) - 1) * outputs[0].size


_LOWERED = NotDifferentiable("it is made of all_reduce by a pass, after gradients exist")
_GROUP = {"group": "str", "rank": "int"}

register(
    OpDef("all_reduce", _infer_all_reduce, single_output(_copy_to_all), arity=None, attributes=_GROUP, flops=_sum_flops)
)
register(
    OpDef(
        "collective_sum",
        _infer_collective_sum,
        _LOWERED,
        arity=1,
        attributes={**_GROUP, "size": "int"},
        stateful=True,
        executed_by="communicator",
    )
)
