"""The parts of a network and of a batch for hybrid parallelism.

A network is split into the layers below the dense layers, the dense layers, and the loss. The schemes of Krizhevsky
2014, section 4, define which examples go through the dense layers together.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate

from runner.engine.graph import Node, Tensor
from runner.errors import ConfigError
from runner.strategies.base import Workload
from runner.strategies.replica import Share, shares
from runner.strategies.sharded.blueprint import Blueprint, read_from_outside

SCHEMES = ("a", "b", "c")

Examples = tuple[Share, ...]
"""The examples of one pass: for each worker, the range (lo, hi) within its share of the batch."""


@dataclass(frozen=True)
class Parts:
    """A forward pass in three parts, each in graph order.

    body: the layers up to ``boundary`` (N, features), the input of the first dense layer. dense: the layers that read
    the boundary, the step and the indices of examples. head: the layers of kind "loss", which read outputs of the dense
    layers and the batch. fields: the names of the batch's fields that dense layers and head read; the index of examples
    is first.
    """

    blueprint: Blueprint
    body: Sequence[Node]
    boundary: Tensor
    dense: Sequence[Node]
    head: Sequence[Node]
    fields: Sequence[str]

    @classmethod
    def of(cls, blueprint: Blueprint) -> "Parts":
        """Split a forward pass by the layers that are recorded on its nodes.

        Raises ConfigError if there is no dense layer, or if a part has inputs that :class:`Parts` does not list.
        """
        needed = blueprint.needed_for(blueprint.outputs.tensors)
        boundary = _boundary(needed)
        body = blueprint.needed_for([boundary])
        head = {name: node for name, node in needed.items() if _is(node, "loss")}
        dense = {name: node for name, node in needed.items() if name not in body and name not in head}
        read_by_head = read_from_outside(head.values())
        logits = [tensor for tensor in read_by_head if tensor.node in dense]
        if not logits:
            raise ConfigError(
                "parallelism=hybrid: no layer of kind 'loss' reads an output of the dense layers; compute the loss in "
                "such a layer, as runner's tasks do, or use parallelism=sync_data"
            )
        given = {blueprint.step, blueprint.batch["index"], boundary}
        _expect_reads(dense, given, "only the first dense layer reads from the layers before it")
        batch = blueprint.batch.values()
        rule = "the loss reads logits and labels, or other fields of the batch, and nothing else"
        _expect_reads(head, {*logits, *batch, blueprint.step}, rule)
        _expect_answers(blueprint, {*dense, *head})
        read = {*read_by_head, *(tensor for _, tensor in blueprint.answers)} - {boundary}
        fields = ["index", *(name for name, each in blueprint.batch.items() if each in read and name != "index")]
        return cls(blueprint, list(body.values()), boundary, list(dense.values()), list(head.values()), fields)


PartsOf = Callable[[int], Parts]
"""Function that returns the parts of a network over this number of examples."""


def splitting(workload: Workload, *, training: bool) -> PartsOf:
    """Return a function that builds and splits the network of a workload, once for each number of examples."""
    return cache(lambda examples: Parts.of(Blueprint.of(workload, examples, training=training)))


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
    first, *others = dict.fromkeys(found)
    if others:
        named = ", ".join(map(str, (first, *others)))
        raise ConfigError(
            f"parallelism=hybrid: expected one tensor that dense layers read first, found {named}; use "
            "parallelism=sync_data"
        )
    return first


def _is(node: Node, kind: str) -> bool:
    return node.layer is not None and node.layer.kind == kind


def _expect_answers(blueprint: Blueprint, computed: set[str]) -> None:
    """Raise ConfigError for a loss, metric or collected value from below the dense layers."""
    for name, tensor in blueprint.answers:
        if tensor.node not in computed and tensor not in blueprint.batch.values():
            raise ConfigError(
                f"parallelism=hybrid: the network returns {tensor} as {name!r}; expected losses, metrics and collected "
                "values computed by the dense layers and the loss, or fields of the batch; use parallelism=sync_data"
            )


def _expect_reads(nodes: Mapping[str, Node], allowed: set[Tensor], rule: str) -> None:
    for node in nodes.values():
        for tensor in node.inputs:
            if tensor.node not in nodes and tensor not in allowed:
                layer = node.layer.name if node.layer is not None else node.name
                raise ConfigError(
                    f"parallelism=hybrid: layer {layer!r} reads {tensor}; expected a network where {rule}; "
                    "use parallelism=sync_data"
                )


def dense_passes(scheme: str, batch_size: int, workers: int, fc_batch: int | None) -> list[Examples]:
    """Return the passes of a batch through the dense layers, in order.

    a: one pass of all examples. b: the examples of all workers, one worker after another. c: in each pass, the same
    fraction of every worker's examples, rounded to whole examples. In b and c, K workers make K passes if one
    update of the dense layers uses the whole batch (``fc_batch`` None or the batch size); pass i of b is then the share
    of worker i. Otherwise there are batch_size / fc_batch passes of fc_batch examples, with an update after each. A
    pass of b then has examples of several workers if fc_batch exceeds a share, or if it does not divide the shares and
    the pass has the last examples of one worker and the first of the next.

    Raises ConfigError if fc_batch does not divide the batch, or if it is smaller than the batch in scheme a.
    """
    held = [hi - lo for lo, hi in shares(batch_size, workers)]
    updates = updates_per_batch(scheme, batch_size, fc_batch)
    if scheme == "a":
        return [tuple((0, count) for count in held)]
    sizes = held if updates == 1 else [batch_size // updates] * updates
    return _cut(_in_order(scheme, held), sizes, workers)


def updates_per_batch(scheme: str, batch_size: int, fc_batch: int | None) -> int:
    """Return the number of updates of the dense layers in a step. Raises ConfigError like :func:`dense_passes`."""
    if fc_batch is None or fc_batch == batch_size:
        return 1
    if scheme == "a":
        raise ConfigError(
            f"parallelism.fc_batch={fc_batch} with parallelism.scheme=a and train.batch_size={batch_size}: scheme a "
            "has one pass of the whole batch; use scheme=b or c, or fc_batch=null"
        )
    if batch_size % fc_batch:
        raise ConfigError(
            f"parallelism.fc_batch={fc_batch}: expected a divisor of train.batch_size={batch_size}, "
            "or null for the whole batch"
        )
    return batch_size // fc_batch


def _in_order(scheme: str, held: Sequence[int]) -> list[int]:
    """Return the owner of each example, in the order in which examples go through the dense layers."""
    if scheme == "b":
        return [worker for worker, count in enumerate(held) for _ in range(count)]
    # All workers proceed at the same relative pace: example i of a share of n has the position i / n.
    places = [(i / count, worker) for worker, count in enumerate(held) for i in range(count)]
    return [worker for _, worker in sorted(places)]


def _cut(owners: Sequence[int], sizes: Sequence[int], workers: int) -> list[Examples]:
    gone = [0] * workers
    passes = []
    for end, size in zip(accumulate(sizes), sizes, strict=True):
        members = owners[end - size : end]
        counts = [members.count(worker) for worker in range(workers)]
        passes.append(tuple((lo, lo + count) for lo, count in zip(gone, counts, strict=True)))
        gone = [lo + count for lo, count in zip(gone, counts, strict=True)]
    return passes
