"""Sums over workers, with a node for each worker: as plain mathematics, and as a library between GPUs sums."""

from collections.abc import Sequence

from runner.engine.graph.op import Attributes, Builder, NotDifferentiable, OpDef, expect, register
from runner.engine.graph.ops.common import (
    NUMERIC,
    copy_to_all,
    expect_dtype,
    expect_same_dtype,
    expect_same_shape,
    single_output,
    sum_flops,
)
from runner.engine.graph.tensor import Tensor, TensorSpec


def all_reduce(graph: Builder, parts: Sequence[Tensor], *, group: str, rank: int, name: str | None = None) -> Tensor:
    """Add y = ((p0 + p1) + p2) + ..., the sum of the parts of all workers on worker ``rank``; of one shape and dtype.

    group: names the sum; the same for the nodes of all workers that sum these parts, and for no others. It changes no
    value.
    """
    return graph.add("all_reduce", parts, {"group": group, "rank": rank}, name=name)[0]


def collective_sum(
    graph: Builder, part: Tensor, *, group: str, rank: int, size: int, name: str | None = None
) -> Tensor:
    """Add the sum of the parts that ``size`` devices contribute under ``group``, this device as number ``rank``.

    Made from ``all_reduce`` by :mod:`runner.engine.compile.passes.lower_collectives`. The library chooses the order
    of the sum; all devices receive the same bits.
    """
    return graph.add("collective_sum", [part], {"group": group, "rank": rank, "size": size}, name=name)[0]


def _infer_all_reduce(specs: Sequence[TensorSpec], attributes: Attributes) -> Sequence[TensorSpec]:
    expect_same_dtype(specs)
    expect_dtype(specs[0], NUMERIC)
    expect_same_shape(specs, "parts")
    _expect_rank(attributes["rank"], len(specs))
    return [specs[0]]


def _infer_collective_sum(specs: Sequence[TensorSpec], attributes: Attributes) -> Sequence[TensorSpec]:
    expect_dtype(specs[0], NUMERIC)
    _expect_rank(attributes["rank"], attributes["size"])
    return [specs[0]]


def _expect_rank(rank: int, size: int) -> None:
    expect(0 <= rank < size, f"a rank of {size} parts, from 0", rank)


_LOWERED = NotDifferentiable("it is made of all_reduce by a pass, after gradients exist")
_GROUP = {"group": "str", "rank": "int"}

register(
    OpDef("all_reduce", _infer_all_reduce, single_output(copy_to_all), arity=None, attributes=_GROUP, flops=sum_flops)
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
