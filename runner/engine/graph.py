"""The dataflow graph: named nodes, joined by tensors, with devices and layers stamped on them.

A graph only grows: gradients, optimizers and strategies extend it, passes return new graphs. Insertion order
is a topological order by construction, because a node's inputs must exist before it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from runner.engine import op as op_table
from runner.engine.op import ShapeError
from runner.engine.tensor import Tensor, TensorSpec

NAME = re.compile(r"[A-Za-z0-9_.][A-Za-z0-9_./-]*")


@dataclass(frozen=True)
class LayerStamp:
    """The layer a node belongs to: strategies see these, never models.

    kind: "conv", "dense", "norm", "activation", "pool", "regularizer", "merge", "loss" or "shape".
    """

    name: str
    kind: str


@dataclass(frozen=True)
class Node:
    """One operation. Immutable: a pass that changes a node puts a new one in a new graph.

    device: full or partial device name, "" when free. control_inputs: nodes that must have run before.
    colocate_with: nodes that must share its device.
    """

    name: str
    op: str
    inputs: tuple[Tensor, ...]
    attributes: Mapping[str, Any]
    outputs: tuple[TensorSpec, ...]
    device: str = ""
    control_inputs: tuple[str, ...] = ()
    colocate_with: tuple[str, ...] = ()
    layer: LayerStamp | None = None

    def __getitem__(self, port: int) -> Tensor:
        if not 0 <= port < len(self.outputs):
            raise IndexError(f"node {self.name!r} ({self.op}) has {len(self.outputs)} outputs, not port {port}")
        return Tensor(self.name, port)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All outputs, in port order."""
        return tuple(Tensor(self.name, port) for port in range(len(self.outputs)))


@dataclass(frozen=True)
class _Context:
    """What the surrounding ``with`` blocks say about nodes added now."""

    scope: str = ""
    device: str = ""
    layer: LayerStamp | None = None
    control_inputs: tuple[str, ...] = ()


@dataclass
class Graph:
    """A growing set of nodes in topological order."""

    nodes: dict[str, Node] = field(default_factory=dict)
    _context: _Context = field(default_factory=_Context, repr=False)
    _taken: dict[str, int] = field(default_factory=dict, repr=False, compare=False)

    def __contains__(self, name: str) -> bool:
        return name in self.nodes

    def __len__(self) -> int:
        return len(self.nodes)

    def __iter__(self) -> Iterator[Node]:
        return iter(self.nodes.values())

    def add(
        self,
        op: str,
        inputs: Sequence[Tensor] = (),
        attributes: Mapping[str, Any] | None = None,
        *,
        name: str | None = None,
        colocate_with: Iterable[str] = (),
    ) -> Node:
        """Append a node and return it.

        Its name is the current scope plus ``name`` (the op's by default), made unique by a counter. Raises
        ShapeError naming the node when inputs or attributes break the op's rule.
        """
        definition = op_table.lookup(op)
        full_name = self._unique(self._scoped(name or op))
        try:
            specs = [self.spec(tensor) for tensor in inputs]
            checked = op_table.check_attributes(definition, attributes or {})
            outputs = infer(definition, specs, checked)
        except ValueError as error:
            raise ShapeError(f"node {full_name!r}: {error}") from None
        node = Node(
            name=full_name,
            op=op,
            inputs=tuple(inputs),
            attributes=checked,
            outputs=outputs,
            device=self._context.device,
            control_inputs=self._context.control_inputs,
            colocate_with=tuple(colocate_with),
            layer=self._context.layer,
        )
        return self.insert(node)

    def insert(self, node: Node) -> Node:
        """Append a complete node as it is; used by passes. Its name must be new and its inputs present."""
        if node.name in self.nodes:
            raise ShapeError(f"node {node.name!r} is already in the graph")
        for needed in (*(t.node for t in node.inputs), *node.control_inputs, *node.colocate_with):
            if needed not in self.nodes:
                raise ShapeError(f"node {node.name!r} refers to {needed!r}, which is not in the graph yet")
        self.nodes[node.name] = node
        return node

    def spec(self, tensor: Tensor) -> TensorSpec:
        """Shape and dtype of a tensor of this graph."""
        node = self.nodes.get(tensor.node)
        if node is None:
            raise ShapeError(f"tensor {tensor} is not in the graph")
        if not 0 <= tensor.port < len(node.outputs):
            raise ShapeError(f"tensor {tensor}: node {node.name!r} ({node.op}) has {len(node.outputs)} outputs")
        return node.outputs[tensor.port]

    def input_specs(self, node: Node) -> list[TensorSpec]:
        """Specs of a node's inputs."""
        return [self.spec(tensor) for tensor in node.inputs]

    def consumers(self) -> dict[Tensor, list[Node]]:
        """For every consumed tensor the nodes that read it, in graph order."""
        readers: dict[Tensor, list[Node]] = {}
        for node in self:
            for tensor in dict.fromkeys(node.inputs):
                readers.setdefault(tensor, []).append(node)
        return readers

    @contextmanager
    def name_scope(self, scope: str) -> Iterator[None]:
        """Prefix names of nodes added inside with ``scope/``."""
        with self._within(scope=self._scoped(scope)):
            yield

    @contextmanager
    def absolute_scope(self, scope: str) -> Iterator[None]:
        """Like :meth:`name_scope`, but forgetting the scopes around it."""
        with self._within(scope=scope):
            yield

    @contextmanager
    def device(self, device: str) -> Iterator[None]:
        """Constrain nodes added inside to a full or partial device name; "" lifts the constraint."""
        with self._within(device=device):
            yield

    @contextmanager
    def layer(self, stamp: LayerStamp | None) -> Iterator[None]:
        """Stamp nodes added inside with the layer they belong to."""
        with self._within(layer=stamp):
            yield

    @contextmanager
    def control_dependencies(self, names: Iterable[str]) -> Iterator[None]:
        """Let nodes added inside run only after the named ones."""
        combined = tuple(dict.fromkeys((*self._context.control_inputs, *names)))
        with self._within(control_inputs=combined):
            yield

    @contextmanager
    def _within(self, **changes: Any) -> Iterator[None]:
        outer = self._context
        self._context = replace(outer, **changes)
        try:
            yield
        finally:
            self._context = outer

    def _scoped(self, name: str) -> str:
        if not NAME.fullmatch(name):
            raise ShapeError(f"name {name!r}: expected letters, digits and the characters _ . / -")
        return f"{self._context.scope}/{name}" if self._context.scope else name

    def _unique(self, name: str) -> str:
        if name not in self.nodes:
            return name
        # Nodes are never taken out, so what was taken once is taken for good.
        count = self._taken.get(name, 0) + 1
        while f"{name}_{count}" in self.nodes:
            count += 1
        self._taken[name] = count
        return f"{name}_{count}"


def infer(
    definition: op_table.OpDef, specs: Sequence[TensorSpec], attributes: Mapping[str, Any]
) -> tuple[TensorSpec, ...]:
    """Apply an op's arity and shape rule."""
    arity = definition.arity
    if arity is None:
        op_table.expect(len(specs) > 0, definition.name, "at least one input", "none")
    else:
        op_table.expect(len(specs) == arity, definition.name, f"{arity} inputs", len(specs))
    return tuple(definition.infer(specs, attributes))
