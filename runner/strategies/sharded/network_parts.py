"""The parts of a network for hybrid parallelism: the layers below the dense layers, the dense layers, and the loss."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from runner.engine.graph.tensor import Node, Tensor
from runner.errors import ConfigError
from runner.strategies.base import Task
from runner.strategies.sharded.blueprint import Blueprint


@dataclass(frozen=True)
class Parts:
    """A forward pass in three parts, each in graph order.

    body: the layers up to ``boundary`` (N, features), the input of the first dense layer. dense: the layers from there
    to ``logits`` (N, classes), which read the boundary, the step and the indices of examples. head: the layers stamped
    "loss", which read logits and labels.
    """

    blueprint: Blueprint
    body: Sequence[Node]
    boundary: Tensor
    dense: Sequence[Node]
    logits: Tensor
    head: Sequence[Node]

    @classmethod
    def of(cls, blueprint: Blueprint) -> "Parts":
        """Cut a forward pass by its layer stamps.

        Raises ConfigError if there is no dense layer, or if a part reads anything but the results of the part before.
        """
        outputs = blueprint.outputs
        needed = blueprint.needed_for((outputs.losses, outputs.logits, outputs.predictions, outputs.correct))
        boundary = _boundary(needed)
        body = blueprint.needed_for([boundary])
        head = {name: node for name, node in needed.items() if _is(node, "loss")}
        dense = {name: node for name, node in needed.items() if name not in body and name not in head}
        given = {blueprint.step, blueprint.batch["index"], boundary}
        _expect_reads(dense, given, "only the first dense layer reads what is before it")
        logits = _only([tensor for tensor in _read(head) if tensor.node in dense], "logits that the loss reads")
        _expect_reads(head, {logits, blueprint.batch["y"]}, "the loss reads logits and labels only")
        return cls(blueprint, list(body.values()), boundary, list(dense.values()), logits, list(head.values()))


class PartsOf:
    """The parts of a task's network over any number of examples."""

    def __init__(self, task: Task, *, training: bool) -> None:
        self._task = task
        self._training = training
        self._drawn: dict[int, Parts] = {}

    def __call__(self, examples: int) -> Parts:
        """Return the parts of the network over this number of examples; they are built once."""
        if examples not in self._drawn:
            self._drawn[examples] = Parts.of(Blueprint.of(self._task, examples, training=self._training))
        return self._drawn[examples]


def _boundary(needed: Mapping[str, Node]) -> Tensor:
    """Return the input of the first dense layer."""
    above: set[str] = set()
    found: list[Tensor] = []
    for node in needed.values():
        later = any(tensor.node in above for tensor in node.inputs)
        product = node.op == "matmul" and _is(node, "dense")
        if product and not later:
            found.append(node.inputs[0])
        if product or later:
            above.add(node.name)
    if not found:
        raise ConfigError("parallelism=hybrid: the network has no dense layers to shard; use parallelism=sync_data")
    return _only(found, "tensor that dense layers read first")


def _is(node: Node, kind: str) -> bool:
    return node.layer is not None and node.layer.kind == kind


def _read(nodes: Mapping[str, Node]) -> list[Tensor]:
    """Return the tensors that nodes read from other nodes."""
    return [tensor for node in nodes.values() for tensor in node.inputs if tensor.node not in nodes]


def _only(tensors: Iterable[Tensor], what: str) -> Tensor:
    found = list(dict.fromkeys(tensors))
    if len(found) != 1:
        named = ", ".join(map(str, found)) or "none"
        raise ConfigError(f"parallelism=hybrid: expected one {what}, found {named}; use parallelism=sync_data")
    return found[0]


def _expect_reads(nodes: Mapping[str, Node], allowed: set[Tensor], rule: str) -> None:
    for node in nodes.values():
        for tensor in node.inputs:
            if tensor.node not in nodes and tensor not in allowed:
                layer = node.layer.name if node.layer is not None else node.name
                raise ConfigError(
                    f"parallelism=hybrid: layer {layer!r} reads {tensor}; expected a network where {rule}; "
                    "use parallelism=sync_data"
                )
