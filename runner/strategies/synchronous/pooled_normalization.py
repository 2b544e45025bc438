"""The rewrite by which batch normalisation on several workers uses the statistics of the whole batch."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from runner.engine.compile.passes.rewriting import Moved, Rewrite, rewired
from runner.engine.graph import ops
from runner.engine.graph.graph import Graph
from runner.engine.graph.tensor import Node, Tensor
from runner.strategies.replica import ordered_sum


def pool_normalizations(graph: Graph, devices: Sequence[str]) -> Rewrite:
    """Return the graph in which each ``batch_norm`` uses the statistics of all workers, and the replaced tensors.

    graph: K forward passes of one network, one on each of ``devices``, in training and not yet differentiated. The
    added nodes can be differentiated; gradients take the same route back. Shares may differ in size, and other devices
    may hold variables. The i-th batch_norm of each worker belong together; their outputs (y, mean, variance) are
    replaced by those of the whole batch. Without a batch_norm, or with one worker, the graph is returned unchanged.

    For each layer, worker k computes mean m_k and variance v_k of its n_k values per channel and sends both to the
    first worker, which pools them in worker order (Chan, Golub and LeVeque 1979) and sends the result to the others::

        mean = sum(n_k m_k) / n        variance = sum(n_k (v_k + (m_k - mean)^2)) / n

    Unlike E[x^2] - mean^2, this keeps its precision if the mean is much larger than the deviation. In the backward
    pass, the gradients of mean and variance are sent to the first worker and summed there from the last worker to the
    first; the gradients of m_k and v_k are sent back.

    Bytes on the wire in a step, C channels of b bytes: every other worker sends 4 C b and the first 4 (K - 1) C b,
    half of it forward and half backward; in total 8 (K - 1) C b for each layer.
    """
    if len(devices) == 1 or not any(node.op == _OP for node in graph):
        return graph, {}
    result = Graph()
    moved: Moved = {}
    for node in graph:
        if node.device not in devices:
            # Variables of parameter servers depend on no worker.
            result.insert(node)
    # A layer needs the preceding layers of every worker, so the workers' passes are inserted stage by stage.
    by_worker = [_stages(node for node in graph if node.device == device) for device in devices]
    for stage in zip(*by_worker, strict=True):
        added = [result.insert(rewired(node, moved)) for nodes in stage for node in nodes]
        norms = [node for node in added if node.op == _OP]
        if norms:
            moved.update(_pool(result, norms))
    return result, moved


_OP = "batch_norm"


def _stages(nodes: Iterable[Node]) -> list[list[Node]]:
    """Cut one worker's nodes after every batch_norm."""
    stages: list[list[Node]] = [[]]
    for node in nodes:
        stages[-1].append(node)
        if node.op == _OP:
            stages.append([])
    return stages


def _pool(graph: Graph, norms: Sequence[Node]) -> Moved:
    """Add one layer's normalisation by pooled statistics; norms: its node on each worker. Returns replaced tensors."""
    sent = []
    for k, node in enumerate(norms):
        with _on_worker(graph, norms, k):
            # Nothing reads the y of this node, but the kernels compute both statistics together with y.
            sent.append(ops.concat(graph, node.tensors[1:], axis=0, name="sent"))
    with _on_worker(graph, norms, 0):
        counts = [graph.spec(y).size // graph.spec(mean).size for y, mean, _ in (node.tensors for node in norms)]
        common = _pooled(graph, sent, counts)
    moved: Moved = {}
    for k, node in enumerate(norms):
        with _on_worker(graph, norms, k):
            mean, variance = _halves(graph, common)
            x, gamma, beta = node.inputs
            epsilon = node.attributes["epsilon"]
            y = ops.batch_norm_inference(graph, x, gamma, beta, mean, variance, epsilon=epsilon)
        moved.update(zip(node.tensors, (y, mean, variance), strict=True))
    return moved


@contextmanager
def _on_worker(graph: Graph, norms: Sequence[Node], k: int) -> Iterator[None]:
    """Add nodes to the layer on worker k."""
    (layer,) = {node.layer for node in norms}  # replicas are copies of one network
    assert layer is not None, "batch normalisation is a layer"
    with graph.device(norms[k].device), graph.layer(layer), graph.absolute_scope(f"pool/{layer.name}/worker_{k}"):
        yield


def _pooled(graph: Graph, sent: Sequence[Tensor], counts: Sequence[int]) -> Tensor:
    """Pool (mean, variance) of ``counts`` values each; each pair, and the result, is one tensor (2 C,)."""
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
