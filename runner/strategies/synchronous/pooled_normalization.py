"""The rewrite that lets batch normalisation of several workers share one pair of statistics."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from runner.engine.compile.passes.rewriting import Moved, Rewrite, rewired
from runner.engine.graph import ops
from runner.engine.graph.graph import Graph
from runner.engine.graph.node import Node
from runner.engine.graph.tensor import Tensor
from runner.strategies.replica import ordered_sum


def pool_normalizations(graph: Graph, devices: Sequence[str]) -> Rewrite:
    """Return the graph with every ``batch_norm`` normalising by the statistics of all workers, and where tensors went.

    graph: K forward passes of one network, one on each of ``devices``, in training and not yet differentiated; what
    is added is differentiable, and its gradients cross the same wires back. Workers may have shares of different
    sizes, and other devices may hold variables. The i-th batch_norm of one worker meets the i-th of the others; its
    outputs (y, mean, variance) are replaced by those of the whole batch. Without a batch_norm, or with one worker, the
    graph comes back as it is.

    For each layer worker k takes mean m_k and variance v_k of its n_k values per channel and sends both to the first
    worker, which pools them in worker order (Chan, Golub and LeVeque 1979) and sends both to the others::

        mean = sum(n_k m_k) / n        variance = sum(n_k (v_k + (m_k - mean)^2)) / n

    Nothing is lost where the mean is large beside the deviation, as it would be in E[x^2] - mean^2. In the backward
    pass the gradients of mean and variance go to the first worker, are summed there from the last worker to the
    first, and those of m_k and v_k come back.

    Bytes on the wire in a step, C channels of b bytes: every other worker sends 4 C b and the first 4 (K - 1) C b,
    half of it forward and half backward; in total 8 (K - 1) C b for each layer.
    """
    if len(devices) == 1 or not any(node.op == _OP for node in graph):
        return graph, {}
    result = Graph()
    moved: Moved = {}
    for node in graph:
        if node.device not in devices:
            # Variables of parameter servers wait for no worker.
            result.insert(node)
    # A layer needs what came before it on every worker, so the workers' passes are laid side by side.
    by_worker = [_stages(node for node in graph if node.device == device) for device in devices]
    for stage in zip(*by_worker, strict=True):
        added = [result.insert(rewired(node, moved)) for nodes in stage for node in nodes]
        norms = [node for node in added if node.op == _OP]
        if norms:
            moved.update(_pool(result, norms))
    return result, moved


_OP = "batch_norm"


def _stages(nodes: Iterable[Node]) -> list[list[Node]]:
    """Cut one worker's nodes behind every batch_norm."""
    stages: list[list[Node]] = [[]]
    for node in nodes:
        stages[-1].append(node)
        if node.op == _OP:
            stages.append([])
    return stages


def _pool(graph: Graph, norms: Sequence[Node]) -> Moved:
    """Add one layer's normalisation by common statistics; norms: its node on each worker. Returns where outputs are."""
    sent = []
    for k, node in enumerate(norms):
        with _beside(graph, norms, k):
            # The y of the node is computed in vain: kernels give both statistics in one pass over x, with y.
            sent.append(ops.concat(graph, node.tensors[1:], axis=0, name="sent"))
    with _beside(graph, norms, 0):
        counts = [graph.spec(y).size // graph.spec(mean).size for y, mean, _ in (node.tensors for node in norms)]
        common = _pooled(graph, sent, counts)
    moved: Moved = {}
    for k, node in enumerate(norms):
        with _beside(graph, norms, k):
            mean, variance = _halves(graph, common)
            x, gamma, beta = node.inputs
            epsilon = node.attributes["epsilon"]
            y = ops.batch_norm_inference(graph, x, gamma, beta, mean, variance, epsilon=epsilon)
        moved.update(zip(node.tensors, (y, mean, variance), strict=True))
    return moved


@contextmanager
def _beside(graph: Graph, norms: Sequence[Node], k: int) -> Iterator[None]:
    """Put what is added within on worker k, as part of the layer."""
    (layer,) = {node.layer for node in norms}  # replicas are copies of one network
    assert layer is not None, "batch normalisation is a layer"
    with graph.device(norms[k].device), graph.layer(layer), graph.absolute_scope(f"pool/{layer.name}/worker_{k}"):
        yield


def _pooled(graph: Graph, sent: Sequence[Tensor], counts: Sequence[int]) -> Tensor:
    """Pool (mean, variance) of ``counts`` values each, both in one tensor of (2 C,); returns them alike."""
    weights = [count / sum(counts) for count in counts]
    means, variances = zip(*(_halves(graph, each) for each in sent), strict=True)
    mean = _weighted_sum(graph, means, weights)
    spreads = [
        ops.add(graph, variance, ops.square(graph, ops.sub(graph, own, mean)))
        for own, variance in zip(means, variances, strict=True)
    ]
    return ops.concat(graph, [mean, _weighted_sum(graph, spreads, weights)], axis=0, name="common")


def _weighted_sum(graph: Graph, tensors: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    return ordered_sum(
        graph, [ops.scale(graph, tensor, weight) for tensor, weight in zip(tensors, weights, strict=True)]
    )


def _halves(graph: Graph, packed: Tensor) -> tuple[Tensor, Tensor]:
    channels = graph.spec(packed).size // 2
    first, second = ops.split(graph, packed, 0, [channels, channels])
    return first, second
