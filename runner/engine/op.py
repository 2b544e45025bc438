"""What an op *is*: its shape rule, its gradient, its cost, its attributes. How it is computed is a kernel's business.

Facts about mathematics live here once. The table ``OPS`` is filled when :mod:`runner.engine.ops` is imported
and, at the start of a process, by plugins; it never changes afterwards.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from runner.engine.tensor import DTYPES, Tensor, TensorSpec

if TYPE_CHECKING:
    from runner.engine.graph import Graph, Node

Attributes = Mapping[str, Any]
InferRule = Callable[[Sequence[TensorSpec], Attributes], Sequence[TensorSpec]]
GradientRule = Callable[["Graph", "Node", Sequence[Tensor | None]], Sequence[Tensor | None]]
Decomposition = Callable[["Graph", Sequence[Tensor], Attributes], Sequence[Tensor]]
FlopsRule = Callable[[Sequence[TensorSpec], Sequence[TensorSpec], Attributes], int]


class ShapeError(ValueError):
    """Inputs or attributes of a node break the op's rule."""


@dataclass(frozen=True)
class NotDifferentiable:
    """The decision that no gradient flows through an op, with its reason."""

    reason: str


@dataclass(frozen=True)
class ByDecomposition:
    """The decision to differentiate an op through its ``decompose`` rule, as if its parts stood in the graph."""


@dataclass(frozen=True)
class Cost:
    """Work of one node: floating-point operations and bytes read plus written."""

    flops: int
    nbytes: int


def _elementwise_flops(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], attributes: Attributes) -> int:
    return outputs[0].size if outputs else 0


def no_flops(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], attributes: Attributes) -> int:
    """Cost of an op that only moves data."""
    return 0


@dataclass(frozen=True)
class OpDef:
    """Definition of one op.

    name: the key kernels are registered under.
    infer: input specs and attributes -> output specs; raises :class:`ShapeError` with the named condition broken.
    gradient: adds nodes that map gradients of the outputs (None where there is none) to gradients of the inputs;
        or the decision :class:`NotDifferentiable` or :class:`ByDecomposition`.
    attributes: attribute name -> kind; the set is closed. Kinds: int, float, bool, str, dtype, bytes, ints.
    arity: number of inputs, or None for any number of at least one.
    flops: floating-point operations as a function of shapes.
    stateful: reads or writes something beside its inputs; never merged, never folded.
    decompose: the same mathematics in simpler ops: second gradients and an oracle for fused kernels.
    executed_by: "kernel"; "executor" for the few ops that are the engine's own instructions; or "communicator" for what
        a library between devices does, which has kernels only where that library is.
    """

    name: str
    infer: InferRule
    gradient: GradientRule | NotDifferentiable | ByDecomposition
    arity: int | None
    attributes: Mapping[str, str] = field(default_factory=dict)
    flops: FlopsRule = _elementwise_flops
    stateful: bool = False
    decompose: Decomposition | None = None
    executed_by: str = "kernel"

    def cost(self, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], attributes: Attributes) -> Cost:
        """Work of a node with these specs."""
        moved = sum(spec.nbytes for spec in (*inputs, *outputs))
        return Cost(self.flops(inputs, outputs, attributes), moved)


OPS: dict[str, OpDef] = {}


def register(definition: OpDef) -> OpDef:
    """Add an op to the table; a second op of the same name is an error."""
    if definition.name in OPS:
        raise ValueError(f"op {definition.name!r} is defined twice")
    if isinstance(definition.gradient, ByDecomposition) and definition.decompose is None:
        raise ValueError(f"op {definition.name!r}: gradient is by decomposition, but it has no decompose rule")
    OPS[definition.name] = definition
    return definition


def lookup(name: str) -> OpDef:
    """Return the definition of an op; raises ShapeError listing near names when there is none."""
    try:
        return OPS[name]
    except KeyError:
        raise ShapeError(f"unknown op {name!r}; the ops are: {', '.join(sorted(OPS))}") from None


def check_attributes(definition: OpDef, attributes: Attributes) -> dict[str, Any]:
    """Return the attributes in canonical form (lists become tuples); raises ShapeError on any deviation."""
    unknown = sorted(set(attributes) - set(definition.attributes))
    missing = sorted(set(definition.attributes) - set(attributes))
    if unknown or missing:
        raise ShapeError(
            f"op {definition.name!r}: unknown attributes {unknown}, missing attributes {missing}; "
            f"it takes {dict(definition.attributes)}"
        )
    return {
        name: _canonical(definition.name, name, kind, attributes[name]) for name, kind in definition.attributes.items()
    }


def _canonical(op: str, name: str, kind: str, value: object) -> object:
    if kind == "ints" and isinstance(value, list | tuple) and all(type(v) is int for v in value):
        return tuple(value)
    if kind == "float" and type(value) is int and abs(value) <= sys.float_info.max:
        return float(value)
    if kind == "float" and type(value) is float:
        return value
    if kind == "dtype" and value in DTYPES:
        return value
    plain = {"int": int, "bool": bool, "str": str, "bytes": bytes}
    if kind in plain and type(value) is plain[kind]:
        return value
    raise ShapeError(f"op {op!r}: attribute {name}={value!r} is not of kind {kind!r}")


def expect(condition: bool, op: str, named: str, came: object) -> None:
    """Raise ShapeError naming the broken condition and what came instead; shape rules are written with it."""
    if not condition:
        raise ShapeError(f"op {op!r}: expected {named}, came {came}")
