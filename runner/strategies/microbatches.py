"""One copy of a network that computes a batch in parts, with one update for all parts or one after each part."""

from dataclasses import replace

from runner.engine.compile.program import Program
from runner.engine.graph import Gradient, Graph, Variable, ops
from runner.engine.graph.rows import mapped
from runner.strategies.base import Workload
from runner.strategies.clients import program
from runner.strategies.latest import Latest
from runner.strategies.replica import Forward, Gradients, Replica, advanced, batch_metrics, shares, summed, total_of


def in_microbatches(workload: Workload, device: str) -> Program:
    """Return the program of one copy: forward and backward passes of all parts, ordered sums, one update.

    device: the full name of a device, or a partial name, such as ``/job:worker``, that leaves the choice open.
    """
    return updating(*computed_in_parts(workload, device))


def updating(replica: Replica, computed: Gradients) -> Program:
    """Return the program that applies the gradients and statistics of a batch."""
    targets = replica.apply(computed.gradients, computed.state_updates)
    return program(replica.graph, [replica], metrics=computed.metrics, targets=targets)


def computed_in_parts(workload: Workload, device: str) -> tuple[Replica, Gradients]:
    """Add the passes of all parts and their ordered sums to a new graph; return the replica and the sums."""
    graph = Graph()
    replica = Replica(graph, workload, device=device)
    computed = [
        replica.compute_gradients(share, _scope_of_part(workload, k))
        for k, share in enumerate(shares(workload.batch_size, workload.microbatches))
    ]
    metrics = batch_metrics(replica, computed)
    with replica.within("train/total"):
        totals = summed(computed, lambda _, parts: total_of(graph, parts))
    return replica, replace(totals, metrics=metrics)


def in_stale_parts(workload: Workload, device: str) -> Program:
    """Return the program of one copy that updates after each of ``workload.microbatches`` parts.

    All gradients are computed at the step's initial weights, as in the concurrent steps of TensorFlow's Figure 9
    (whitepaper 2016, section 7): n small steps run concurrently on the same devices, as in asynchronous data
    parallelism, and no small step waits for another's update. Here the small steps start together and their updates are
    applied in a fixed order, so that the result is deterministic.

    Staleness: let w_0 be the weights at the start of a step. Part i of n (i = 0..n-1) computes its gradient g_i at w_0.
    The optimizer's update U gives w_(i+1) = U(w_i, g_i). The staleness of g_i is therefore i updates: 0 for the first
    part, n - 1 for the last, (n - 1) / 2 on average. Slots of the optimizer (velocity, moments), weight decay and
    moving averages are never stale, because each update continues from the previous one. No gradient of one step is
    applied in another. g_i is the gradient of the mean loss over part i, as if the part were a whole batch. All updates
    use the learning rate of the step, and update i of step s has number s n + i. With n = 1, the result equals that of
    ``single``.

    device: as for :func:`in_microbatches`. The loss and the metrics of a step are computed over the whole batch at w_0.
    """
    graph = Graph()
    replica = Replica(graph, workload, device=device)
    passes, gradients = [], []
    for k, share in enumerate(shares(workload.batch_size, workload.microbatches)):
        passes.append(replica.forward(share, _scope_of_part(workload, k)))
        gradients.append(_gradients_of_mean(replica, passes[-1]))
    metrics = batch_metrics(replica, passes)
    latest = Latest(replica.variables)
    for k, (passed, pairs) in enumerate(zip(passes, gradients, strict=True)):
        with replica.within(f"update/part_{k}"):
            clipped = workload.optimizer.clipped(graph, pairs)
            number = replica.number_of_update(workload.microbatches, k)
            latest.update(workload.optimizer, clipped, replica.learning_rate, number)
            for update in passed.state_updates:
                now = replace(update, variable=latest.now(update.variable))
                with graph.name_scope(update.variable.name), graph.layer(update.variable.layer):
                    latest.advance([(now.variable, advanced(graph, now))])
    with replica.within("update"):
        targets = latest.assign()
    return program(graph, [replica], metrics=metrics, targets=targets)


def _gradients_of_mean(replica: Replica, passed: Forward) -> list[tuple[Variable, Gradient]]:
    """Return the gradient of a part's mean loss: the part's summand of the batch gradient, times batch / part size."""
    graph, (lo, hi) = replica.graph, passed.share
    weighted = replica.differentiate(passed)
    if hi - lo == replica.workload.batch_size:
        return weighted
    with replica.within(f"{passed.scope}/own_mean"):
        return [
            (variable, mapped(gradient, lambda each: ops.scale(graph, each, replica.workload.batch_size / (hi - lo))))
            for variable, gradient in weighted
        ]


def _scope_of_part(workload: Workload, part: int) -> str:
    return f"train/share_{part}" if workload.microbatches > 1 else "train"
