"""The dataflow graph: named nodes, connected by tensors; each node records a device and a layer.

A graph only grows. Gradients, optimizers and strategies extend a graph, and passes return new graphs. The insertion
order is a topological order, because the inputs of a node must exist before the node is added.
"""

import gc
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from itertools import count, islice
from typing import Any, NamedTuple

from runner.engine.graph import op as op_table
from runner.engine.graph.node import NODE_NAME, LayerStamp, Node
from runner.engine.graph.op import ShapeError
from runner.engine.graph.tensor import Tensor, TensorSpec
from runner.errors import ResourceError

_MOST_BYTES = 2**63


@contextmanager
def without_collection() -> Iterator[None]:
    """Pause the garbage collector, which would scan all nodes again and again while large graphs are built.

    Nodes, graphs and plans form no reference cycles, so there is nothing to collect.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class _Context(NamedTuple):
    """The settings that the enclosing ``with`` blocks apply to the nodes added inside."""

    scope: str = ""
    device: str = ""
    layer: LayerStamp | None = None
    control_inputs: tuple[str, ...] = ()
    backward: bool = False


@dataclass
class Graph:
    """A growing set of nodes in topological order."""

    nodes: dict[str, Node] = field(default_factory=dict)
    _context: _Context = field(default_factory=_Context, repr=False)
    _taken: dict[str, int] = field(default_factory=dict, repr=False, compare=False)
    _positions: dict[str, int] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, nodes: Iterable[Node]) -> "Graph":
        """Return a graph of complete nodes, which must be in topological order and are not checked."""
        return cls({node.name: node for node in nodes})

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

        The name of the node is the current scope plus ``name`` (by default the op's name), made unique by a counter.
        Raises ShapeError naming the node if inputs or attributes violate the op's rule, and ResourceError if an output
        takes 2**63 bytes or more.
        """
        definition = op_table.lookup(op)
        full_name = self._unique(self._scoped(name or op))
        try:
            specs = [self.spec(tensor) for tensor in inputs]
            checked = definition.canonical(attributes or {})
            outputs = definition.output_specs(specs, checked)
        except ValueError as error:
            raise ShapeError(f"node {full_name!r}: {error}") from None
        for spec in outputs:
            if spec.nbytes >= _MOST_BYTES:
                raise ResourceError(
                    f"node {full_name!r}: its output {spec} takes {spec.nbytes:,} bytes, more than any machine has; "
                    "use a smaller model, smaller images or a smaller batch"
                )
        within = self._context
        where = (within.device, within.control_inputs, tuple(colocate_with), within.layer, within.backward)
        return self.insert(Node(full_name, op, tuple(inputs), checked, outputs, *where))

    def insert(self, node: Node) -> Node:
        """Append a complete node unchanged; raises ShapeError if its name is taken or a referenced node is missing."""
        if node.name in self.nodes:
            raise ShapeError(f"node {node.name!r} is already in the graph")
        for needed in (*node.needed, *node.colocate_with) if node.colocate_with else node.needed:
            if needed not in self.nodes:
                raise ShapeError(f"node {node.name!r} refers to {needed!r}, which is not in the graph yet")
        self.nodes[node.name] = node
        return node

    def position(self, name: str) -> int:
        """Return the number of nodes that were added before a node."""
        if len(self._positions) < len(self.nodes):
            known = len(self._positions)
            self._positions.update(zip(islice(self.nodes, known, None), count(known)))
        return self._positions[name]

    def spec(self, tensor: Tensor) -> TensorSpec:
        """Return the shape and dtype of a tensor of this graph."""
        node = self.nodes.get(tensor.node)
        if node is None:
            raise ShapeError(f"tensor {tensor} is not in the graph")
        if not 0 <= tensor.port < len(node.outputs):
            raise ShapeError(f"tensor {tensor}: node {node.name!r} ({node.op}) has {len(node.outputs)} outputs")
        return node.outputs[tensor.port]

    def input_specs(self, node: Node) -> list[TensorSpec]:
        """Return the specs of a node's inputs."""
        return [self.spec(tensor) for tensor in node.inputs]

    def consumers(self) -> dict[Tensor, list[Node]]:
        """Return the nodes that read each tensor, in graph order; tensors without readers are omitted."""
        readers: dict[Tensor, list[Node]] = {}
        for node in self:
            for tensor in node.inputs:
                found = readers.setdefault(tensor, [])
                if not found or found[-1] is not node:
                    found.append(node)
        return readers

    def name_scope(self, scope: str) -> AbstractContextManager[None]:
        """Prefix the names of nodes added inside the block with ``scope/``."""
        return self._within(scope=self._scoped(scope))

    def absolute_scope(self, scope: str) -> AbstractContextManager[None]:
        """Prefix the names of nodes added inside the block with ``scope/``, without the enclosing scopes."""
        return self._within(scope=scope)

    def device(self, device: str) -> AbstractContextManager[None]:
        """Constrain nodes added inside the block to a full or partial device name; "" lifts the constraint."""
        return self._within(device=device)

    def layer(self, stamp: LayerStamp | None) -> AbstractContextManager[None]:
        """Record ``stamp`` as the layer of nodes added inside the block."""
        return self._within(layer=stamp)

    def backward(self) -> AbstractContextManager[None]:
        """Record on nodes added inside the block that they belong to a backward pass."""
        return self._within(backward=True)

    def control_dependencies(self, names: Iterable[str]) -> AbstractContextManager[None]:
        """Make nodes added inside the block run after the nodes ``names``."""
        return self._within(control_inputs=tuple(dict.fromkeys((*self._context.control_inputs, *names))))

    @contextmanager
    def _within(self, **changes: Any) -> Iterator[None]:
        outer = self._context
        self._context = outer._replace(**changes)
        try:
            yield
        finally:
            self._context = outer

    def _scoped(self, name: str) -> str:
        if not NODE_NAME.fullmatch(name):
            raise ShapeError(f"name {name!r}: expected letters, digits and the characters _ . / -")
        return f"{self._context.scope}/{name}" if self._context.scope else name

    def _unique(self, name: str) -> str:
        if name not in self.nodes:
            return name
        # Nodes are never removed, so the search can start after the last number that was appended to this name.
        count = self._taken.get(name, 0) + 1
        while f"{name}_{count}" in self.nodes:
            count += 1
        self._taken[name] = count
        return f"{name}_{count}"
