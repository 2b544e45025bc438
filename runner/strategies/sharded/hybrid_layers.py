"""Layers of a hybrid network: a body (the layers below the dense layers) per worker, sharded dense layers, losses."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from runner.engine.graph import StateUpdate, Tensor, Variables, ops
from runner.engine.graph.network import Answers
from runner.strategies.replica import Pass, Replica, Share
from runner.strategies.sharded.blueprint import add_copies
from runner.strategies.sharded.dense_loss import DenseLoss
from runner.strategies.sharded.dense_sharding import Cut, ShardedLayers, Spread
from runner.strategies.sharded.network_parts import Examples, Parts, PartsOf


@dataclass(frozen=True)
class Body(Pass):
    """The layers below the dense layers on one worker, applied to the worker's share of a batch.

    batch: placeholders of the share. boundary: the input of the first dense layer, (examples, features). fields: the
    names of fields that later layers read.
    """

    batch: Mapping[str, Tensor]
    boundary: Tensor
    fields: Sequence[str]


@dataclass(frozen=True)
class Rows:
    """The inputs of one pass through the dense layers, by worker; workers without examples are left out.

    counts: each worker's number of examples, 0 included. boundary: (count, features). fields: name -> worker -> the
    field of these examples, (count, ...), for each of ``Parts.fields``.
    """

    counts: Sequence[int]
    boundary: Mapping[int, Tensor]
    fields: Mapping[str, Mapping[int, Tensor]]


@dataclass(frozen=True)
class DensePass:
    """A pass through the dense layers and the loss.

    outputs: worker -> answers for its own examples of the pass. state_updates: worker -> statistics of all examples of
    the pass, for the worker's units.
    """

    outputs: Mapping[int, Answers]
    state_updates: Mapping[int, Sequence[StateUpdate]]


def add_body(replica: Replica, parts: Parts, split: str, share: Share, scope: str) -> Body:
    """Add the layers below the dense layers over a share of a batch. parts: the network for the share's size."""
    blueprint = parts.blueprint
    with replica.within(scope):
        batch = replica.inputs(split, share)
        given = {blueprint.step: replica.step, **{blueprint.batch[field]: fed for field, fed in batch.items()}}
        variables = replica.variables if split == "train" else replica.evaluated
        added = add_copies(blueprint, parts.body, variables, given)
    updates = [
        StateUpdate(replica.variables[each.variable.name], added[each.batch_value], each.decay)
        for each in blueprint.state_updates
        if each.batch_value in added
    ]
    return Body(share, scope, updates, batch, added[parts.boundary], parts.fields)


def rows_of(
    replicas: Sequence[Replica], bodies: Sequence[Body], passes: Sequence[Examples], *, turns: bool = False
) -> list[Rows]:
    """Split the outputs of the bodies into the inputs of each pass.

    Every tensor of ``boundary`` is a separate node, so that gradients can be taken with respect to it. turns: whether a
    worker makes its inputs of a pass available only when it has received the inputs of the previous pass.
    """
    counts = [[hi - lo for lo, hi in examples] for examples in passes]
    boundary = _by_pass(replicas, bodies, counts, [body.boundary for body in bodies], turns=turns)
    fields = {
        name: _by_pass(replicas, bodies, counts, [body.batch[name] for body in bodies]) for name in bodies[0].fields
    }
    return [Rows(own, boundary[i], {name: held[i] for name, held in fields.items()}) for i, own in enumerate(counts)]


def add_dense(
    replicas: Sequence[Replica], stores: Sequence[Variables], parts_of: PartsOf, rows: Rows, scope: str
) -> DensePass:
    """Add a pass through the sharded dense layers, and the loss of each worker's examples.

    stores: each worker's store of variable shards. Bytes on the wire: see
    :class:`~runner.strategies.sharded.dense_sharding.ShardedLayers` and
    :class:`~runner.strategies.sharded.dense_loss.DenseLoss`.
    """
    parts = parts_of(sum(rows.counts))
    blueprint = parts.blueprint
    held = {
        parts.boundary: Spread(Cut.EXAMPLES, rows.boundary),
        **{blueprint.batch[name]: Spread(Cut.EXAMPLES, held) for name, held in rows.fields.items()},
        blueprint.step: Spread(Cut.COPIES, {k: replica.step for k, replica in enumerate(replicas)}),
    }
    layers = ShardedLayers(blueprint, replicas, stores, scope, held)
    layers.add(parts.dense)
    layers.add(parts.head, DenseLoss(layers, rows.counts).rules)
    answers = {tensor: layers.of_examples(tensor, rows.counts) for _, tensor in blueprint.answers}
    outputs = {}
    for k in rows.boundary:
        own = {tensor: by_worker[k] for tensor, by_worker in answers.items()}
        outputs[k] = blueprint.outputs.answers(own.__getitem__)
    return DensePass(outputs, _statistics(layers, parts, stores))


def _by_pass(
    replicas: Sequence[Replica],
    bodies: Sequence[Body],
    counts: Sequence[Sequence[int]],
    wholes: Sequence[Tensor],
    *,
    turns: bool = False,
) -> list[dict[int, Tensor]]:
    """Return, for each pass, the rows of each worker's tensor; workers without examples are left out."""
    cuts = [
        iter(_cut(replica, body.scope, whole, [own[k] for own in counts if own[k]]))
        for k, (replica, body, whole) in enumerate(zip(replicas, bodies, wholes, strict=True))
    ]
    found: list[dict[int, Tensor]] = []
    for own in counts:
        before = found[-1] if found and turns else {}
        found.append({k: _given(replicas[k], bodies[k], next(cuts[k]), before, k) for k, n in enumerate(own) if n})
    return found


def _cut(replica: Replica, scope: str, whole: Tensor, counts: Sequence[int]) -> list[Tensor]:
    graph = replica.graph
    with replica.within(scope), graph.layer(graph.nodes[whole.node].layer):
        return [whole] if len(counts) == 1 else list(ops.split(graph, whole, 0, counts, name="rows"))


def _given(replica: Replica, body: Body, rows: Tensor, before: Mapping[int, Tensor], worker: int) -> Tensor:
    """Add the rows of a pass as a node that waits until its worker has received ``before``, tensors by worker."""
    graph = replica.graph
    with replica.within(body.scope), graph.layer(graph.nodes[rows.node].layer):
        received = [ops.identity(graph, each, name="received").node for k, each in before.items() if k != worker]
        with graph.control_dependencies(received):
            return ops.identity(graph, rows, name="given")


def _statistics(layers: ShardedLayers, parts: Parts, stores: Sequence[Variables]) -> dict[int, list[StateUpdate]]:
    found: dict[int, list[StateUpdate]] = {k: [] for k in range(len(stores))}
    for each in parts.blueprint.state_updates:
        if each.batch_value in layers:
            for j, part in layers[each.batch_value].parts.items():
                found[j].append(StateUpdate(stores[j][each.variable.name], part, each.decay))
    return found
