"""The statistics of batch normalisation if several workers compute one batch.

Each option of ``parallelism.statistics`` is a function from the replicas and their forward passes to
:class:`Normalised`. If a network has no batch normalisation, all options give the same program.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from runner.engine.compile.passes.rewriting import Moved, Rewrite, rewired
from runner.engine.graph import Graph, Node, StateUpdate, Tensor, ops
from runner.strategies.replica import Gradients, Pass, Replica, Share, differentiate_together, ordered_sum

_SCOPE = "train"


@dataclass(frozen=True)
class Normalised:
    """The statistics of the workers' passes, one item per worker.

    parts: updates of moving averages whose values must be summed over the workers. settled: updates of moving averages
    whose values are final and equal on all workers. moved: tensor of the passes -> tensor that replaces it; if the
    map is not empty, the outputs of a worker depend on the examples of all workers.
    """

    parts: Sequence[Sequence[StateUpdate]]
    settled: Sequence[Sequence[StateUpdate]]
    moved: Moved = field(default_factory=dict)


Statistics = Callable[[Sequence[Replica], Sequence[Pass]], Normalised]
"""A function of the replicas of one graph and their forward passes, which are not yet differentiated.

The function may rewrite the graph; afterwards, ``replica.graph`` is the rewritten graph.
"""


def of_shares(replicas: Sequence[Replica], passes: Sequence[Pass]) -> Normalised:
    """Normalise each share by its own statistics; update the moving averages with the mean of these statistics.

    The mean is weighted by share size; the weighted statistics are summed together with the gradients.
    """
    parts = [replica.weighted(passed) for replica, passed in zip(replicas, passes, strict=True)]
    return Normalised(parts, [[] for _ in replicas])


def of_first_worker(replicas: Sequence[Replica], passes: Sequence[Pass]) -> Normalised:
    """Normalise each share by its own statistics; update the moving averages with the first share's statistics.

    On Cloud TPU (Inception v3 guide, "Batch normalization") only shard 0 updates the averages, once a step. The
    decay ``a`` of a network assumes that K workers update the averages one after the other, K times a step. Here, the
    decay is a^K, because K updates with decay a equal one with a^K if all shares have the same statistics: 0.9997 for
    eight GPUs becomes 0.9997^8 = 0.9976 for eight shards.

    The first worker sends its n statistics of b bytes each in one message to each other worker: (K - 1) n b bytes.
    If parameter servers keep the averages, the first worker sends its statistics only to the servers, n b bytes.
    """
    received = _sent_by_first(replicas, passes[0])
    settled = []
    for passed, values in zip(passes, received, strict=True):
        pairs = zip(passed.state_updates, values, strict=True)
        settled.append([replace(own, batch_value=value, decay=own.decay ** len(replicas)) for own, value in pairs])
    return Normalised([[] for _ in replicas], settled)


def of_batch(replicas: Sequence[Replica], passes: Sequence[Pass]) -> Normalised:
    """Normalise by the statistics of the whole batch, so that the workers compute the same results as one worker.

    Bytes: see :func:`pool_normalizations`. Nothing more is sent for the moving averages, because every worker already
    has the statistics of the batch.
    """
    graph, moved = pool_normalizations(replicas[0].graph, [replica.device for replica in replicas])
    if not moved:
        return of_shares(replicas, passes)
    for replica in replicas:
        replica.move_to(graph)
    settled = [
        [replace(each, batch_value=moved.get(each.batch_value, each.batch_value)) for each in passed.state_updates]
        for passed in passes
    ]
    return Normalised([[] for _ in replicas], settled, moved)


STATISTICS: dict[str, Statistics] = {"shares": of_shares, "first_worker": of_first_worker, "pooled": of_batch}


Compute = Callable[[Sequence[Replica], Sequence[Share]], list[Gradients]]
"""Function that adds the forward and backward pass of each replica over its share and returns their gradients."""


def compute_gradients(replicas: Sequence[Replica], shares: Sequence[Share], statistics: Statistics) -> list[Gradients]:
    """Add the forward and backward pass of each replica over its share; return the gradients of each replica.

    If the outputs of a worker depend on the examples of all workers, the sum of all losses is differentiated once, with
    respect to the variables of all replicas. Each worker then has the gradient of the batch's loss with respect to its
    copy of the variables, and the sum over the workers is the gradient of the network.
    """
    passes = [replica.forward(share, _SCOPE) for replica, share in zip(replicas, shares, strict=True)]
    normalised = statistics(replicas, passes)
    if normalised.moved:
        moved = normalised.moved
        passes = [replace(each, metrics={k: moved.get(v, v) for k, v in each.metrics.items()}) for each in passes]
        variables = [each.variables.trainable for each in replicas]
        pairs, _ = differentiate_together(replicas, variables, _SCOPE, [passed.loss for passed in passes])
    else:
        pairs = [replica.differentiate(passed) for replica, passed in zip(replicas, passes, strict=True)]
    return [
        Gradients(passed.metrics, own, parts, settled)
        for passed, own, parts, settled in zip(passes, pairs, normalised.parts, normalised.settled, strict=True)
    ]


def _sent_by_first(replicas: Sequence[Replica], passed: Pass) -> list[list[Tensor]]:
    """Return the first worker's statistics as received by each worker."""
    graph, own = replicas[0].graph, [update.batch_value for update in passed.state_updates]
    if not own or len(replicas) == 1:
        return [own for _ in replicas]
    held = []
    with graph.layer(passed.state_updates[0].variable.layer), graph.absolute_scope(f"{_SCOPE}/statistics"):
        with graph.device(replicas[0].device):
            sent = ops.concat(graph, own, axis=0, name="sent")
        # The first worker also uses the sent values, because compression may have changed them.
        for replica in replicas:
            with graph.device(replica.device):
                held.append(list(ops.split(graph, sent, 0, [graph.spec(each).size for each in own])))
    return held


def pool_normalizations(graph: Graph, devices: Sequence[str]) -> Rewrite:
    """Return the graph in which each ``batch_norm`` uses the statistics of all workers, and a map of moved tensors.

    graph: K forward passes of one network in training mode, one on each of ``devices``, not yet differentiated. The
    added nodes can be differentiated. Shares may differ in size, and other devices may hold variables. The i-th
    batch_norm nodes of all workers belong to one layer. The map contains their outputs (y, mean, variance) -> the
    outputs for the whole batch. Without a batch_norm, or with one worker, the graph is unchanged and the map empty.

    For each layer, worker k computes mean m_k and variance v_k of its n_k values per channel and sends both to the
    first worker, which pools them in worker order (Chan, Golub and LeVeque 1979) and sends the result to the others::

        mean = sum(n_k m_k) / n        variance = sum(n_k (v_k + (m_k - mean)^2)) / n

    where n = sum(n_k). Unlike E[x^2] - mean^2, this is accurate even if the mean far exceeds the standard deviation. In
    the backward pass, the gradients of mean and variance are sent to the first worker and summed there from the last
    worker to the first; the gradients of m_k and v_k are sent back.

    Bytes on the wire in a step, for C channels of b bytes: the first worker sends 4 (K - 1) C b and each of the
    others 4 C b, half of it forward and half backward; in total 8 (K - 1) C b for each layer.
    """
    if len(devices) == 1 or not any(node.op == "batch_norm" for node in graph):
        return graph, {}
    result = Graph()
    moved: Moved = {}
    for node in graph:
        if node.device not in devices:
            # Variables of parameter servers depend on no worker.
            result.insert(node)
    # Pooled statistics depend on the preceding layers of every worker, so passes are inserted stage by stage.
    by_worker = [_stages(node for node in graph if node.device == device) for device in devices]
    for stage in zip(*by_worker, strict=True):
        added = [result.insert(rewired(node, moved)) for nodes in stage for node in nodes]
        norms = [node for node in added if node.op == "batch_norm"]
        if norms:
            moved.update(_pool(result, norms))
    return result, moved


def _stages(nodes: Iterable[Node]) -> list[list[Node]]:
    """Split one worker's nodes into lists that end after each batch_norm."""
    stages: list[list[Node]] = [[]]
    for node in nodes:
        stages[-1].append(node)
        if node.op == "batch_norm":
            stages.append([])
    return stages


def _pool(graph: Graph, norms: Sequence[Node]) -> Moved:
    """Add a layer's normalisation by pooled statistics; return tensor -> replacement. norms: a node per worker."""
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
    """Add nodes to the layer of ``norms``, on worker k."""
    (layer,) = {node.layer for node in norms}  # replicas are copies of one network
    assert layer is not None, "batch normalisation is a layer"
    with graph.device(norms[k].device), graph.layer(layer), graph.absolute_scope(f"pool/{layer.name}/worker_{k}"):
        yield


def _pooled(graph: Graph, sent: Sequence[Tensor], counts: Sequence[int]) -> Tensor:
    """Pool pairs (mean, variance), each a tensor (2 C,), into one pair. counts: values per channel of each pair."""
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
