"""What an op *is*: its shape rule, gradient, cost and attributes. Kernels say how it is computed.

The mathematics of an op is stated once, here. The table ``OPS`` is filled when :mod:`runner.engine.graph.ops` is
imported and, at the start of a process, by plugins; it never changes afterwards.
"""

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

from runner.engine.graph.node import Node
from runner.engine.graph.tensor import DTYPES, Tensor, TensorSpec


class Builder(Protocol):
    """What rules of ops use of a :class:`~runner.engine.graph.graph.Graph`."""

    def add(
        self,
        op: str,
        inputs: Sequence[Tensor] = (),
        attributes: Mapping[str, Any] | None = None,
        *,
        name: str | None = None,
        colocate_with: Iterable[str] = (),
    ) -> Node:
        """Append a node and return it."""
        ...

    def spec(self, tensor: Tensor) -> TensorSpec:
        """Return shape and dtype of a tensor of the graph."""
        ...

    def name_scope(self, scope: str) -> AbstractContextManager[None]:
        """Prefix names of nodes added inside with ``scope/``."""
        ...


Attributes = Mapping[str, Any]
InferRule = Callable[[Sequence[TensorSpec], Attributes], Sequence[TensorSpec]]
GradientRule = Callable[[Builder, Node, Sequence[Tensor | None]], Sequence[Tensor | None]]
Decomposition = Callable[[Builder, Sequence[Tensor], Attributes], Sequence[Tensor]]
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


def output_flops(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], attributes: Attributes) -> int:
    """Cost of an op that computes each element of its first output in one operation."""
    return outputs[0].size


def no_flops(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], attributes: Attributes) -> int:
    """Cost of an op that only moves data."""
    return 0


@dataclass(frozen=True)
class OpDef:
    """Definition of one op.

    name: the key kernels are registered under.
    infer: input specs and attributes -> output specs; states its conditions by :func:`expect`.
    gradient: adds nodes that map gradients of the outputs (None if no gradient reaches one) to gradients of the inputs;
        or the decision :class:`NotDifferentiable` or :class:`ByDecomposition`.
    attributes: attribute name -> kind; the set is closed. Kinds: int, float, bool, str, dtype, bytes, ints.
    arity: number of inputs, or None for any number of at least one.
    flops: floating-point operations as a function of shapes.
    stateful: reads or writes something besides its inputs; never merged, never folded.
    decompose: the same mathematics in simpler ops, for second gradients and as the oracle of fused kernels.
    executed_by: "kernel"; "executor" for the engine's own instructions; or "communicator" for what a library between
        devices does, which has kernels only on devices with that library.
    """

    name: str
    infer: InferRule
    gradient: GradientRule | NotDifferentiable | ByDecomposition
    arity: int | None
    attributes: Mapping[str, str] = field(default_factory=dict)
    flops: FlopsRule = output_flops
    stateful: bool = False
    decompose: Decomposition | None = None
    executed_by: str = "kernel"

    def cost(self, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], attributes: Attributes) -> Cost:
        """Work of a node with these specs."""
        moved = sum(spec.nbytes for spec in (*inputs, *outputs))
        return Cost(self.flops(inputs, outputs, attributes), moved)

    def output_specs(self, inputs: Sequence[TensorSpec], attributes: Attributes) -> tuple[TensorSpec, ...]:
        """Apply arity and shape rule; raises ShapeError naming the op and the condition that is broken."""
        try:
            if self.arity is None:
                expect(len(inputs) > 0, "at least one input", "none")
            else:
                expect(len(inputs) == self.arity, f"{self.arity} inputs", len(inputs))
            return tuple(self.infer(inputs, attributes))
        except ShapeError as error:
            raise ShapeError(f"op {self.name!r}: {error}") from None

    def canonical(self, attributes: Attributes) -> dict[str, Any]:
        """Return the attributes in canonical form (lists become tuples); raises ShapeError for a wrong name or kind."""
        unknown = sorted(set(attributes) - set(self.attributes))
        missing = sorted(set(self.attributes) - set(attributes))
        if unknown or missing:
            raise ShapeError(
                f"op {self.name!r}: unknown attributes {unknown}, missing attributes {missing}; "
                f"it takes {dict(self.attributes)}"
            )
        return {name: _canonical(self.name, name, kind, attributes[name]) for name, kind in self.attributes.items()}


OPS: dict[str, OpDef] = {}


def register(*definitions: OpDef) -> None:
    """Add ops to the table; a second op of the same name is an error."""
    for definition in definitions:
        if definition.name in OPS:
            raise ValueError(f"op {definition.name!r} is defined twice")
        if isinstance(definition.gradient, ByDecomposition) and definition.decompose is None:
            raise ValueError(f"op {definition.name!r}: gradient is by decomposition, but it has no decompose rule")
        OPS[definition.name] = definition


def lookup(name: str) -> OpDef:
    """Return the definition of an op; raises ShapeError listing all ops if it is unknown."""
    try:
        return OPS[name]
    except KeyError:
        raise ShapeError(f"unknown op {name!r}; the ops are: {', '.join(sorted(OPS))}") from None


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


def expect(condition: bool, named: str, came: object) -> None:
    """Raise ShapeError with what was expected and what came instead, unless the condition holds.

    Shape rules state their conditions by it; :meth:`OpDef.output_specs` adds the name of the op to the message.
    """
    if not condition:
        raise ShapeError(f"expected {named}, came {came}")
