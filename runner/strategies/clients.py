"""The clients of a program whose replicas all compute the whole network: to start, train, score, save and restore."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from runner.engine import ops
from runner.engine.graph import Graph
from runner.engine.program import Client, Program
from runner.engine.tensor import Tensor
from runner.engine.variables import Variables
from runner.strategies.base import Replica, ordered_sum, shares


class Fed(Protocol):
    """Who is told the number of a training step and its learning rate."""

    step: Tensor
    learning_rate: Tensor


def program(
    graph: Graph,
    replicas: Sequence[Replica],
    *,
    loss: Tensor,
    accuracy: Tensor,
    targets: Sequence[str],
    variables: Variables | None = None,
    servers: Sequence[Fed] = (),
) -> Program:
    """Assemble the clients of replicas that all compute the whole network.

    variables: the one store of them all, kept by ``servers``; None where every replica holds its own.
    """
    stores = [replica.variables for replica in replicas] if variables is None else [variables]
    fed: list[Fed] = [*replicas, *servers]
    scalars = {
        "step": tuple(each.step for each in fed),
        "learning_rate": tuple(each.learning_rate for each in fed),
    }
    train = Client(
        "train",
        fetches={"loss": loss, "accuracy": accuracy},
        targets=tuple(targets),
        inputs=tuple(slot for replica in replicas for slot in replica.train_inputs),
        feeds=scalars,
        slowed=True,
    )
    clients = [train, *standing_clients(graph, replicas, stores)]
    return Program(
        graph,
        {client.name: client for client in clients},
        {variable.name: variable.spec for variable in stores[0]},
        workers=len(replicas),
        servers=len(servers),
    )


def standing_clients(graph: Graph, replicas: Sequence[Replica], stores: Sequence[Variables]) -> list[Client]:
    """What every program has, however it trains: "init", "eval", "save" and "restore".

    replicas: score a share of each evaluation batch. stores: of the variables; each holds all of them.
    """
    return [
        Client("init", targets=tuple(v.initial for store in stores for v in store), exact=True),
        _evaluation(graph, replicas),
        Client("save", fetches={variable.name: variable.tensor for variable in stores[0]}, exact=True),
        _restore(graph, stores),
    ]


def _evaluation(graph: Graph, replicas: Sequence[Replica]) -> Client:
    """Every replica scores its share; the first gathers: sums of loss and hits over real examples, and predictions."""
    task = replicas[0].task
    gathered: dict[str, list[Tensor]] = {"loss": [], "correct": [], "predictions": [], "labels": [], "mask": []}
    for replica, share in zip(replicas, shares(task.eval_batch_size, len(replicas)), strict=True):
        outputs, batch = replica.evaluate(share)
        scope = f"{replica.prefix}/eval" if replica.prefix else "eval"
        with graph.absolute_scope(scope), graph.device(replica.device):
            for name, values in (("loss", outputs.losses), ("correct", outputs.correct)):
                masked = ops.mul(graph, values, batch["mask"])
                gathered[name].append(ops.reduce_sum(graph, masked, axes=(0,)))
        gathered["predictions"].append(outputs.predictions)
        gathered["labels"].append(batch["y"])
        gathered["mask"].append(batch["mask"])
    with graph.absolute_scope("eval/gathered"), graph.device(replicas[0].device):
        fetches = {name: ordered_sum(graph, gathered[name], name) for name in ("loss", "correct")}
        for name in ("predictions", "labels", "mask"):
            parts = gathered[name]
            fetches[name] = parts[0] if len(parts) == 1 else ops.concat(graph, parts, axis=0, name=name)
    return Client(
        "eval",
        fetches=fetches,
        inputs=tuple(slot for replica in replicas for slot in replica.eval_inputs),
        feeds={"step": tuple(replica.step for replica in replicas)},
        exact=True,
    )


def _restore(graph: Graph, stores: Sequence[Variables]) -> Client:
    feeds: dict[str, tuple[Tensor, ...]] = {}
    targets: list[str] = []
    for store in stores:
        scope = f"{store.prefix}/restore" if store.prefix else "restore"
        for variable in store:
            with graph.absolute_scope(scope), graph.device(store.device_of(variable)):
                value = ops.placeholder(graph, variable.spec.shape, variable.spec.dtype, name=variable.name)
                feeds[variable.name] = (*feeds.get(variable.name, ()), value)
                with graph.name_scope(variable.name):
                    targets.append(ops.assign(graph, variable.tensor, value).node)
    return Client("restore", targets=tuple(targets), feeds=feeds, exact=True)
