"""Variables of one copy of a network: named as the unsharded network names them, wherever the copy lives."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

from runner.engine import ops
from runner.engine.graph import Graph, LayerStamp
from runner.engine.initializers import Constant, Initializer
from runner.engine.op import ShapeError
from runner.engine.tensor import Tensor, TensorSpec


@dataclass(frozen=True)
class Part:
    """A shard of a variable: entries begin..end-1 along ``axis`` of one like ``whole``."""

    whole: TensorSpec
    axis: int
    begin: int
    end: int

    @property
    def spec(self) -> TensorSpec:
        """What the shard is."""
        shape = list(self.whole.shape)
        shape[self.axis] = self.end - self.begin
        return TensorSpec(tuple(shape), self.whole.dtype)

    def cut(self, graph: Graph, whole: Tensor) -> Tensor:
        """Add this part of a value of the whole variable."""
        begin = [0] * self.whole.rank
        begin[self.axis] = self.begin
        return ops.slice(graph, whole, begin=begin, size=self.spec.shape)


class _MaybePart:
    """A variable, or a part of one."""

    spec: TensorSpec
    part: Part | None

    @property
    def whole(self) -> TensorSpec:
        """Spec of the unsharded variable."""
        return self.spec if self.part is None else self.part.whole


@dataclass(frozen=True)
class Variable(_MaybePart):
    """State that lives on a device across steps.

    name: name in the unsharded network, e.g. "conv1/weights"; checkpoints speak it. tensor: the value at the start
    of the step. initial: name of the node that assigns the initial value. trainable: updated by gradients.
    decayed: subject to weight decay (weights are, biases and normalisation parameters are not). part: which part of
    the unsharded variable it is; None: all of it.
    """

    name: str
    tensor: Tensor
    spec: TensorSpec
    initial: str
    trainable: bool
    decayed: bool
    layer: LayerStamp | None
    part: Part | None = None


@dataclass(frozen=True)
class Declaration(_MaybePart):
    """What a variable is asked for as; see :class:`Variable`."""

    name: str
    spec: TensorSpec
    initializer: Initializer
    trainable: bool
    decayed: bool
    layer: LayerStamp | None
    part: Part | None = None


class Variables:
    """Get-or-create store of the variables of one replica: under each name all of one, or parts of it.

    prefix: put before node names so that replicas can share a graph; initial values do not depend on it.
    device: device constraint of the variables, "" for none.
    """

    def __init__(self, graph: Graph, *, seed: int, prefix: str = "", device: str = "") -> None:
        self.graph = graph
        self.seed = seed
        self.prefix = prefix
        self.device = device
        self._by_name: dict[str, dict[Part | None, Variable]] = {}

    def __iter__(self) -> Iterator[Variable]:
        """Names in order of creation, and parts of one name in theirs."""
        return chain.from_iterable(parts.values() for parts in self._by_name.values())

    def __getitem__(self, name: str) -> Variable:
        """The one variable of a name; raises KeyError without one, ShapeError where there are several parts."""
        first, *others = self._by_name[name].values()
        if others:
            raise ShapeError(f"variable {name!r} is held in {1 + len(others)} parts; expected one")
        return first

    def __contains__(self, name: str) -> bool:
        return name in self._by_name

    def parts(self, name: str) -> list[Variable]:
        """What the store has of a name, in order of creation; nothing for a name it does not know."""
        return list(self._by_name.get(name, {}).values())

    def counterpart(self, variable: Variable) -> Variable:
        """This store's variable with the name and the part of another store's; raises KeyError without one."""
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
        """Return the variable called ``name``, creating it the first time.

        device: where to create it; that of the store if None. Raises ShapeError when it exists with another shape or
        dtype, or in parts.
        """
        declared = Declaration(name, spec, initializer, trainable, decayed, layer)
        return self.declare(declared, self.device if device is None else device)

    def declare(self, declared: Declaration, device: str) -> Variable:
        """Return the variable of a declaration, creating it on ``device`` the first time; see :meth:`get`."""
        for held in self.parts(declared.name):
            _expect_of_one(held, declared)
            if held.part == declared.part:
                return held
        created = self._create(declared, device)
        self._by_name.setdefault(declared.name, {})[declared.part] = created
        return created

    def slot(self, of: Variable, name: str, initial: float = 0.0) -> Variable:
        """Optimizer state of ``of``'s shape on its device, e.g. "conv1/weights/momentum"."""
        declared = Declaration(f"{of.name}/{name}", of.spec, Constant(initial), False, False, of.layer, of.part)
        return self.declare(declared, self.device_of(of))

    def device_of(self, variable: Variable) -> str:
        """The device constraint of a variable of the store's graph."""
        return self.graph.nodes[variable.tensor.node].device

    def _create(self, declared: Declaration, device: str) -> Variable:
        graph, name, spec = self.graph, declared.name, declared.spec
        with graph.absolute_scope(self.prefix), graph.device(device), graph.layer(declared.layer):
            tensor = ops.variable(graph, spec.shape, spec.dtype, name=name)
            with graph.name_scope(f"init/{name}"):
                value = _initial(graph, declared, self.seed)
                initial = ops.assign(graph, tensor, value)
        attributes = (declared.trainable, declared.decayed, declared.layer, declared.part)
        return Variable(name, tensor, spec, initial.node, *attributes)


def _expect_of_one(held: Variable, declared: Declaration) -> None:
    """Require that what is held and what is asked for are all, or parts along one axis, of one variable."""
    if held.whole != declared.whole:
        raise ShapeError(f"variable {declared.name!r} is {held.whole}, but is asked for as {declared.whole}")
    axes = [None if part is None else part.axis for part in (held.part, declared.part)]
    if axes[0] != axes[1]:
        cut = ["whole" if axis is None else f"cut along axis {axis}" for axis in axes]
        raise ShapeError(f"variable {declared.name!r} is {cut[0]}, but is asked for {cut[1]}")


def _initial(graph: Graph, declared: Declaration, seed: int) -> Tensor:
    """The value a variable begins with; a shard begins with its part of the whole's."""
    if declared.part is None:
        return declared.initializer.build(graph, declared.spec, seed=seed, key=declared.name)
    whole = declared.initializer.build(graph, declared.part.whole, seed=seed, key=declared.name)
    return declared.part.cut(graph, whole)
