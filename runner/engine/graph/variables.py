"""The variables of one replica of a network, on one or more devices, named as in the unsharded network."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

from runner.engine.graph import ops
from runner.engine.graph.graph import Graph
from runner.engine.graph.initializers import Constant, Initializer, Uniform
from runner.engine.graph.node import LayerStamp
from runner.engine.graph.op import ShapeError
from runner.engine.graph.tensor import Tensor, TensorSpec


@dataclass(frozen=True)
class Part:
    """A shard of a variable: entries begin..end-1 along ``axis`` of an unsharded variable with spec ``whole``."""

    whole: TensorSpec
    axis: int
    begin: int
    end: int

    @property
    def spec(self) -> TensorSpec:
        """Spec of the shard."""
        shape = list(self.whole.shape)
        shape[self.axis] = self.end - self.begin
        return TensorSpec(tuple(shape), self.whole.dtype)

    @property
    def elements(self) -> tuple[int, int, int]:
        """Positions of the shard in the unsharded variable, as argument ``part`` of ``random_uniform``."""
        row = math.prod(self.whole.shape[self.axis + 1 :])
        return (self.end - self.begin) * row, self.whole.shape[self.axis] * row, self.begin * row

    def cut(self, graph: Graph, whole: Tensor) -> Tensor:
        """Add a node that cuts this part from ``whole``: a value of the unsharded variable, or some of its rows."""
        begin, size = [0] * self.whole.rank, list(graph.spec(whole).shape)
        begin[self.axis], size[self.axis] = self.begin, self.end - self.begin
        return ops.slice(graph, whole, begin=begin, size=size)


class _MaybePart:
    """The spec of a variable, and its part of the unsharded variable (None if the variable is not sharded)."""

    spec: TensorSpec
    part: Part | None

    @property
    def whole(self) -> TensorSpec:
        """Spec of the unsharded variable."""
        return self.spec if self.part is None else self.part.whole


@dataclass(frozen=True)
class Variable(_MaybePart):
    """State that stays on a device across steps.

    name: name in the unsharded network and in checkpoints, e.g. "conv1/weights". tensor: the value at the start of a
    step. initial: name of the node that assigns the initial value. trainable: updated by gradients. decayed: subject to
    weight decay (weights, but not biases and normalization parameters). part: the part of the unsharded variable
    that this variable holds; None if not sharded. source: the tensor whose initial value this variable copies, or None.
    """

    name: str
    tensor: Tensor
    spec: TensorSpec
    initial: str
    trainable: bool
    decayed: bool
    layer: LayerStamp | None
    part: Part | None = None
    source: Tensor | None = None


@dataclass(frozen=True)
class CopyOf:
    """The initializer that copies the initial value of another variable."""

    variable: Variable

    def build(self, graph: Graph, spec: TensorSpec, *, seed: int, key: str) -> Tensor:
        """Return the initial value of the other variable; spec, seed and key are not used."""
        return Tensor(self.variable.initial)


@dataclass(frozen=True)
class Declaration(_MaybePart):
    """A request for a variable; see :class:`Variable`."""

    name: str
    spec: TensorSpec
    initializer: Initializer
    trainable: bool
    decayed: bool
    layer: LayerStamp | None
    part: Part | None = None


class Variables:
    """A store that creates the variables of one replica on first request. A name denotes a whole variable or its parts.

    prefix: prefix of node names, so that replicas can share a graph. Initial values do not depend on the prefix.
    device: default device constraint of the variables; "" for none.
    """

    def __init__(self, graph: Graph, *, seed: int, prefix: str = "", device: str = "") -> None:
        self.graph = graph
        self.seed = seed
        self.prefix = prefix
        self.device = device
        self._by_name: dict[str, dict[Part | None, Variable]] = {}

    def __iter__(self) -> Iterator[Variable]:
        """Iterate over the variables, grouped by name; names, and the parts of a name, are in order of creation."""
        return chain.from_iterable(parts.values() for parts in self._by_name.values())

    def __getitem__(self, name: str) -> Variable:
        """Return the variable of a name; raises KeyError if there is none, ShapeError if there are several parts."""
        first, *others = self._by_name[name].values()
        if others:
            raise ShapeError(f"variable {name!r} is divided into {1 + len(others)} parts; expected a whole variable")
        return first

    def __contains__(self, name: str) -> bool:
        return name in self._by_name

    def parts(self, name: str) -> list[Variable]:
        """Return the unsharded variable of a name, or its parts in order of creation; [] for an unknown name."""
        return list(self._by_name.get(name, {}).values())

    def counterpart(self, variable: Variable) -> Variable:
        """Return this store's variable with the name and the part of ``variable``; raises KeyError if there is none."""
        return self._by_name[variable.name][variable.part]

    @property
    def trainable(self) -> list[Variable]:
        """Variables that gradients update, in order of creation."""
        return [variable for variable in self if variable.trainable]

    def get(
        self,
        name: str,
        spec: TensorSpec,
        initializer: Initializer,
        *,
        trainable: bool = True,
        decayed: bool = False,
        layer: LayerStamp | None = None,
        device: str | None = None,
    ) -> Variable:
        """Return the variable called ``name``; the first request creates it.

        device: device of a new variable; None for the device of the store. Raises ShapeError if the variable exists
        with another shape or dtype, or in parts.
        """
        declared = Declaration(name, spec, initializer, trainable, decayed, layer)
        return self.declare(declared, self.device if device is None else device)

    def declare(self, declared: Declaration, device: str) -> Variable:
        """Return the variable of a declaration; the first request creates it on ``device``. See :meth:`get`."""
        for held in self.parts(declared.name):
            _expect_consistent(held, declared)
            if held.part == declared.part:
                return held
        created = self._create(declared, device)
        self._by_name.setdefault(declared.name, {})[declared.part] = created
        return created

    def lookup(self, table: Variable, indices: Tensor) -> Tensor:
        """Add a node for table[indices] along axis 0: (R, ...), integers of shape I -> I + (...)."""
        return ops.gather(self.graph, table.tensor, indices)

    def slot(self, of: Variable, name: str, initial: float = 0.0) -> Variable:
        """Return an optimizer variable, e.g. "conv1/weights/momentum", with the spec, part and device of ``of``."""
        declared = Declaration(f"{of.name}/{name}", of.spec, Constant(initial), False, False, of.layer, of.part)
        return self.declare(declared, self.device_of(of))

    def copy(self, of: Variable, name: str) -> Variable:
        """Return a variable, e.g. "conv1/weights/average", that starts as a copy of ``of`` on its device.

        If ``of`` is restored, the copy starts with the restored value; otherwise, with the initial value of ``of``.
        """
        declared = Declaration(f"{of.name}/{name}", of.spec, CopyOf(of), False, False, of.layer, of.part)
        return self.declare(declared, self.device_of(of))

    def device_of(self, variable: Variable) -> str:
        """Return the device constraint of a variable of the store's graph."""
        return self.graph.nodes[variable.tensor.node].device

    def _create(self, declared: Declaration, device: str) -> Variable:
        graph, name, spec = self.graph, declared.name, declared.spec
        with graph.absolute_scope(self.prefix), graph.device(device), graph.layer(declared.layer):
            tensor = ops.variable(graph, spec.shape, spec.dtype, name=name)
            with graph.name_scope(f"init/{name}"):
                value = _initial(graph, declared, self.seed)
                initial = ops.assign(graph, tensor, value)
        attributes = (declared.trainable, declared.decayed, declared.layer, declared.part)
        source = declared.initializer.variable.tensor if isinstance(declared.initializer, CopyOf) else None
        return Variable(name, tensor, spec, initial.node, *attributes, source)


def _expect_consistent(held: Variable, declared: Declaration) -> None:
    """Raise ShapeError unless both have the same unsharded spec and are both whole or cut along the same axis."""
    if held.whole != declared.whole:
        raise ShapeError(f"variable {declared.name!r} is {held.whole}, but is requested as {declared.whole}")
    axes = [None if part is None else part.axis for part in (held.part, declared.part)]
    if axes[0] != axes[1]:
        cut = ["whole" if axis is None else f"cut along axis {axis}" for axis in axes]
        raise ShapeError(f"variable {declared.name!r} is {cut[0]}, but is requested {cut[1]}")


def _initial(graph: Graph, declared: Declaration, seed: int) -> Tensor:
    """Add nodes for the initial value. A shard receives its part of the unsharded variable's initial value.

    For constants and uniform draws, a shard needs no memory for the unsharded value.
    """
    if declared.part is None or isinstance(declared.initializer, CopyOf):
        return declared.initializer.build(graph, declared.spec, seed=seed, key=declared.name)
    if isinstance(declared.initializer, Uniform) and declared.spec.size:
        where = declared.part.elements
        return declared.initializer.build(graph, declared.spec, seed=seed, key=declared.name, part=where)
    whole = declared.initializer.build(graph, declared.part.whole, seed=seed, key=declared.name)
    return declared.part.cut(graph, whole)
