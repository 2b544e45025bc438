"""The definition of an op: its shape rule, gradient, cost and attributes, but not its kernels.

The mathematics of an op is defined once, by its :class:`OpDef`. Importing :mod:`runner.engine.graph.ops` fills the
table ``OPS``. Plugins extend the table when a process starts; afterwards, the table never changes.
"""

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

from runner.engine.graph.node import Node
from runner.engine.graph.tensor import DTYPES, Tensor, TensorSpec


class Builder(Protocol):
    """The methods of a :class:`~runner.engine.graph.graph.Graph` that the rules of ops call."""

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

    def spec(self, tensor: Tensor) -> TensorSpec:
        """Return the shape and dtype of a tensor of the graph."""

    def name_scope(self, scope: str) -> AbstractContextManager[None]:
        """Prefix the names of nodes added inside the block with ``scope/``."""


Attributes = Mapping[str, Any]
Specs = Sequence[TensorSpec]
InferRule = Callable[..., Specs]
"""A function that takes the input specs, and the attributes as keywords, and returns the output specs."""
GradientRule = Callable[[Builder, Node, Sequence[Tensor | None]], Sequence[Tensor | None]]
Decomposition = Callable[[Builder, Sequence[Tensor], Attributes], Sequence[Tensor]]
FlopsRule = Callable[[Specs, Specs, Attributes], int]
BytesRule = Callable[[Specs, Specs], int]


class ShapeError(ValueError):
    """Inputs or attributes of a node violate the op's rule."""


@dataclass(frozen=True)
class NotDifferentiable:
    """The declaration that no gradient flows through an op, with the reason."""

    reason: str


@dataclass(frozen=True)
class ByDecomposition:
    """The declaration that the gradient of an op is the gradient of the nodes that its ``decompose`` rule adds."""


@dataclass(frozen=True)
class Cost:
    """Work of one node: floating-point operations, and bytes read and written."""

    flops: int
    nbytes: int


def output_flops(inputs: Specs, outputs: Specs, attributes: Attributes) -> int:
    """Return the number of floating-point operations of an op that needs one per element of its first output."""
    return outputs[0].size


def no_flops(inputs: Specs, outputs: Specs, attributes: Attributes) -> int:
    """Return 0, the number of floating-point operations of an op that only moves data."""
    return 0


def all_bytes(inputs: Specs, outputs: Specs) -> int:
    """Return the number of bytes of an op that reads all its inputs and writes all its outputs."""
    return sum(spec.nbytes for spec in (*inputs, *outputs))


@dataclass(frozen=True)
class OpDef:
    """Definition of one op.

    name: the key under which kernels are registered.
    infer: returns the output specs; checks its conditions with :func:`expect`.
    gradient: a function that adds nodes for the gradients of the inputs, given the gradients of the outputs (None for
        an output without a gradient); or the declaration :class:`NotDifferentiable` or :class:`ByDecomposition`.
    attributes: attribute name -> kind (int, float, bool, str, dtype, bytes or ints). A node has all of these.
    arity: number of inputs, or None for any number of at least one.
    flops: number of floating-point operations as a function of input specs, output specs and attributes.
    moved: number of bytes read and written, as a function of input specs and output specs.
    stateful: whether nodes read or change anything besides their inputs and outputs. Passes never merge or fold
        stateful nodes.
    decompose: adds simpler nodes that compute the same outputs, for second derivatives and as reference for kernels.
    executed_by: "kernel"; "executor" for the engine's own instructions; or "communicator" for operations of a
        communication library, which have kernels only on devices with that library.
    """

    name: str
    infer: InferRule
    gradient: GradientRule | NotDifferentiable | ByDecomposition
    arity: int | None
    attributes: Mapping[str, str] = field(default_factory=dict)
    flops: FlopsRule = output_flops
    moved: BytesRule = all_bytes
    stateful: bool = False
    decompose: Decomposition | None = None
    executed_by: str = "kernel"

    def cost(self, inputs: Specs, outputs: Specs, attributes: Attributes) -> Cost:
        """Return the work of a node with these specs."""
        return Cost(self.flops(inputs, outputs, attributes), self.moved(inputs, outputs))

    def output_specs(self, inputs: Specs, attributes: Attributes) -> tuple[TensorSpec, ...]:
        """Return the output specs; raises ShapeError naming the op and the condition that does not hold."""
        try:
            if self.arity is None:
                expect(len(inputs) > 0, "at least one input", "none")
            else:
                expect(len(inputs) == self.arity, f"{self.arity} inputs", len(inputs))
            return tuple(self.infer(*inputs, **attributes))
        except ShapeError as error:
            raise ShapeError(f"op {self.name!r}: {error}") from None

    def canonical(self, attributes: Attributes) -> dict[str, Any]:
        """Return the attributes in canonical form (lists become tuples); raises ShapeError for a wrong name or kind."""
        if attributes.keys() != self.attributes.keys():
            unknown = sorted(attributes.keys() - self.attributes.keys())
            missing = sorted(self.attributes.keys() - attributes.keys())
            raise ShapeError(
                f"op {self.name!r}: unknown attributes {unknown}, missing attributes {missing}; "
                f"expected {dict(self.attributes)}"
            )
        return {name: _canonical(self.name, name, kind, attributes[name]) for name, kind in self.attributes.items()}


OPS: dict[str, OpDef] = {}


def register(*definitions: OpDef) -> None:
    """Add ops to the table; raises ValueError for a second op of the same name or a missing decompose rule."""
    for definition in definitions:
        if definition.name in OPS:
            raise ValueError(f"op {definition.name!r} is defined twice")
        if isinstance(definition.gradient, ByDecomposition) and definition.decompose is None:
            raise ValueError(f"op {definition.name!r}: a gradient by decomposition needs a decompose rule")
        OPS[definition.name] = definition


def lookup(name: str) -> OpDef:
    """Return the definition of an op; raises ShapeError listing all ops if the name is unknown."""
    try:
        return OPS[name]
    except KeyError:
        raise ShapeError(f"unknown op {name!r}; expected one of {', '.join(sorted(OPS))}") from None


_PLAIN = {"int": int, "bool": bool, "str": str, "bytes": bytes}


def _canonical(op: str, name: str, kind: str, value: object) -> object:
    if kind == "ints" and isinstance(value, list | tuple) and all(type(v) is int for v in value):
        return tuple(value)
    if kind == "float" and type(value) is int and abs(value) <= sys.float_info.max:
        return float(value)
    if kind == "float" and type(value) is float:
        return value
    if kind == "dtype" and value in DTYPES:
        return str(value)  # a dtype of NumPy equals its name, but has another hash
    if type(value) is _PLAIN.get(kind):
        return value
    raise ShapeError(f"op {op!r}: attribute {name}={value!r}: expected a value of kind {kind!r}")


def expect(condition: bool, named: str, actual: object) -> None:
    """Raise ShapeError if the condition does not hold. named: the expected value, in words. actual: the actual value.

    Shape rules call this function; :meth:`OpDef.output_specs` adds the name of the op to the message.
    """
    if not condition:
        raise ShapeError(f"expected {named}, got {actual}")
