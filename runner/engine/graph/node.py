"""The nodes of a graph, and the stamps that record the layers of nodes."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from runner.engine.graph.tensor import Tensor, TensorSpec

NODE_NAME = re.compile(r"[A-Za-z0-9_.][A-Za-z0-9_./-]*")


@dataclass(frozen=True)
class LayerStamp:
    """The layer that a node belongs to. Strategies read these stamps and have no access to the model.

    kind: for example "conv", "dense", "embedding", "lstm", "norm", "activation", "pool", "merge" or "loss".
    recomputed: whether outputs of the layer may be computed again in the backward pass instead of staying in memory.
    """

    name: str
    kind: str
    recomputed: bool = False

    def selected_by(self, item: str) -> bool:
        """Return whether ``item`` is the kind of the layer, or a shell pattern that matches its name."""
        return item == self.kind or fnmatchcase(self.name, item)


@dataclass(frozen=True)
class Node:
    """One operation. Nodes are immutable: a pass that changes a node adds a new node to a new graph.

    device: full or partial device name, "" for no constraint. control_inputs: names of the nodes that must run before
    this node although it does not read their outputs. colocate_with: names of the nodes that must be on the same
    device. backward: whether the node belongs to a backward pass. needed: names of all nodes that must run before this
    node: the nodes of ``inputs`` and ``control_inputs``.
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
    backward: bool = False
    needed: tuple[str, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "needed", (*[tensor.node for tensor in self.inputs], *self.control_inputs))

    def changed(self, **fields: Any) -> "Node":
        """Return a copy in which some fields are replaced.

        This method is faster than ``dataclasses.replace``, which sets each field; passes copy most nodes of a graph.
        """
        copy = object.__new__(Node)
        copy.__dict__.update(self.__dict__, **fields)
        copy.__post_init__()
        return copy

    def __getitem__(self, port: int) -> Tensor:
        if not 0 <= port < len(self.outputs):
            raise IndexError(f"node {self.name!r} ({self.op}) has {len(self.outputs)} outputs, but no port {port}")
        return Tensor(self.name, port)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All outputs, in port order."""
        return tuple(Tensor(self.name, port) for port in range(len(self.outputs)))
