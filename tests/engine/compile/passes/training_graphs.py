"""Training steps of real networks and optimizers, as inputs of passes."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from runner.engine.compile.passes.rewriting import Roots
from runner.engine.compile.passes.simplification import prune
from runner.engine.compile.placement import place
from runner.engine.graph import Constant, Graph, NetworkFunction, Tensor, Variable, Variables, local_cluster
from runner.fields import labelled
from runner.models import CifarConvNet, LeNet
from runner.optimizers import Optimizer
from runner.strategies import Single, Strategy, Workload
from runner.tasks.classification import classifier
from tests.engine.compile.passes.graph_text import Array

CLASSES, BATCH = 3, 4
IMAGE = (2, 8, 8)

NETWORKS: dict[str, NetworkFunction] = {
    "lenet": classifier(LeNet(filters=[3, 4], units=5), CLASSES),
    "cifar_convnet": classifier(CifarConvNet(widths=[3, 4], units=6), CLASSES),
}


@dataclass(frozen=True)
class TrainingStep:
    """A pruned graph, its roots, and values for its placeholders and variables."""

    graph: Graph
    roots: Roots
    feeds: dict[Tensor, Array]

    @property
    def fetches(self) -> list[Tensor]:
        """Return the fetches in sorted order."""
        return sorted(self.roots.fetches)


def training_step(
    network: NetworkFunction, optimizer: Optimizer, dtype: str = "float32", strategy: Strategy | None = None
) -> TrainingStep:
    """Return one training step of ``network`` on small images, as built by ``strategy``."""
    strategy = strategy or Single()
    program = strategy.build(Workload(network, optimizer, labelled(IMAGE), dtype, 0, BATCH, BATCH))
    client = program.clients["train"]
    placed = place(program.graph, local_cluster(strategy.workers), lambda node: None)
    fed = [slot.tensor for slot in client.inputs] + [tensor for tensors in client.feeds.values() for tensor in tensors]
    graph, moved = prune(placed, list(client.fetches.values()), client.targets, fed)
    fetches = [moved.get(tensor, tensor) for tensor in client.fetches.values()]
    return TrainingStep(graph, Roots.of(fetches, client.targets), values_for(graph))


def update_step(optimizer: Optimizer, shapes: Sequence[tuple[int, ...]]) -> TrainingStep:
    """Return the update, with weight decay, of float32 weights that have the given shapes; the gradients are fed."""
    graph = Graph()
    variables = Variables(graph, seed=0)
    pairs: list[tuple[Variable, Tensor]] = []
    for number, shape in enumerate(shapes):
        with graph.name_scope("placeholders"):
            gradient = graph.add("placeholder", (), {"shape": shape, "dtype": "float32"}, name=f"gradient_{number}")[0]
        spec = graph.spec(gradient)
        weights = variables.get(f"fc{number}/weights", spec, Constant(0.0), decayed=True)
        pairs.append((weights, gradient))
    learning_rate = graph.add("placeholder", (), {"shape": (), "dtype": "float32"}, name="rate")[0]
    step = graph.add("placeholder", (), {"shape": (), "dtype": "int64"}, name="step")[0]
    with graph.name_scope("update"):
        clipped = optimizer.clipped(graph, pairs)
        targets = optimizer.assign(variables, clipped, learning_rate=learning_rate, step=step)
    fed = [node[0] for node in graph if node.op == "placeholder"]
    pruned, _ = prune(graph, [], targets, fed)
    return TrainingStep(pruned, Roots.of([], targets), values_for(pruned))


def values_for(graph: Graph) -> dict[Tensor, Array]:
    """Return random values for placeholders and variables: floats in [0.1, 1), integers in [0, ``CLASSES``), bools.

    Floats are positive because optimizers take square roots of averages.
    """
    rng = np.random.default_rng(0)
    feeds: dict[Tensor, Array] = {}
    for node in graph:
        if node.op in ("placeholder", "variable"):
            (spec,) = node.outputs
            drawn = rng.uniform(0.1, 1.0, spec.shape) if spec.is_float else rng.integers(0, CLASSES, spec.shape)
            feeds[node[0]] = np.asarray(drawn, spec.dtype)
    return feeds
