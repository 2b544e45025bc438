"""The nodes of a graph, and the layers they are stamped with."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import ml_dtypes  # noqa: F401 - teaches NumPy the dtype bfloat16

from runner.engine.graph.tensor import Tensor, TensorSpec

NODE_NAME = re.compile(r"[A-Za-z0-9_.][A-Za-z0-9_./-]*")


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
