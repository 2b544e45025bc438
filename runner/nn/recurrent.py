"""Layers over the steps of sequences. A sequence (T, N, features) is given as a list of consecutive parts along T."""

from collections.abc import Sequence
from dataclasses import dataclass

from runner.engine.graph import Graph, Initializer, NetworkBuilder, Tensor, TensorSpec, Uniform, ops
from runner.nn.activation import dropout
from runner.nn.layer import expect_rank, in_use, new_layer

_GATES = 4


def embedding_of_steps(
    net: NetworkBuilder,
    x: Tensor,
    entries: int,
    features: int,
    *,
    name: str,
    chunks: int = 1,
    initializer: Initializer | None = None,
) -> list[Tensor]:
    """Add an embedding of x (N, T), integers below ``entries``: ``chunks`` parts of (T, N, features).

    initializer: of the variable table (entries, features); None for uniform numbers from -0.1 to 0.1.
    """
    with new_layer(net, name, "embedding"):
        expect_rank(net, x, 2, "(N, T)")
        table = net.parameter("table", (entries, features), initializer or Uniform(-0.1, 0.1), decayed=True)
        turned, steps = ops.transpose(net.graph, x, (1, 0)), net.graph.spec(x).shape[1]
        sizes = [steps // chunks + (part < steps % chunks) for part in range(chunks)]
        parts = [turned] if chunks == 1 else ops.split(net.graph, turned, 0, sizes)
        found = [ops.as_dtype(net.graph, net.lookup(table, each), net.dtype) for each in parts]
        net.output(found[-1])
        return found


def lstm(
    net: NetworkBuilder,
    parts: Sequence[Tensor],
    units: int,
    *,
    name: str,
    forget_bias: float = 1.0,
    initializer: Initializer | None = None,
) -> list[Tensor]:
    """Add a long short-term memory (LSTM) layer: parts of (T, N, features) -> parts of (T, N, units).

    The formulas are those of :func:`runner.engine.graph.ops.lstm`. The output and the cell of the last step are the
    initial state of the next batch, except in rows that begin a new sequence (``net.begins``), where the state is 0. No
    gradient flows from one batch to another (truncated back-propagation, Williams and Peng 1990). The recurrence is
    computed in the network's state dtype.

    forget_bias: initial bias of the forget gates. initializer: of the weights (features, 4 units) and the recurrent
    weights (units, 4 units), whose columns are those of the input, forget, candidate and output gates; None for
    uniform numbers between -1 / sqrt(units) and 1 / sqrt(units), as in PyTorch.
    """
    with new_layer(net, name, "lstm"):
        graph, scale = net.graph, units**-0.5
        for part in parts:
            expect_rank(net, part, 3, "(T, N, features)")
        initializer = initializer or Uniform(-scale, scale)
        features = graph.spec(parts[0]).shape[2]
        weights = in_use(net, net.parameter("weights", (features, _GATES * units), initializer, decayed=True))
        recurrent = net.parameter("recurrent", (units, _GATES * units), initializer, decayed=True).tensor
        bias = in_use(net, net.parameter("bias", (_GATES * units,), _GateBiases(forget_bias)))
        kept = [net.state(state, units) for state in ("output", "cell")]
        h, c = (_begun(net, state.tensor) for state in kept)
        found = []
        for part in parts:
            steps, rows, _ = graph.spec(part).shape
            flat = ops.matmul(graph, ops.reshape(graph, part, (steps * rows, features)), weights)
            added = ops.as_dtype(graph, ops.add(graph, flat, bias), net.state_dtype)
            inputs = ops.reshape(graph, added, (steps, rows, _GATES * units))
            outputs, cells, _ = ops.lstm(graph, inputs, recurrent, h, c)
            h, c = _last(graph, outputs), _last(graph, cells)
            found.append(ops.as_dtype(graph, outputs, net.dtype))
        for state, value in zip(kept, (h, c), strict=True):
            net.carry(state, value)
        net.output(found[-1])
        return found


def dropout_of_steps(net: NetworkBuilder, parts: Sequence[Tensor], rate: float, *, name: str) -> list[Tensor]:
    """Add inverted dropout to parts of (T, N, features); no layer in evaluation, or if ``rate`` is 0."""
    if not rate or not net.training:
        return list(parts)
    # The rows of a dropout mask belong to examples, so the mask has the examples as its first axis.
    turned = [ops.transpose(net.graph, part, (1, 0, 2)) for part in parts]
    names = [name] if len(parts) == 1 else [f"{name}/part_{number}" for number in range(len(parts))]
    dropped = [dropout(net, part, rate, name=each) for part, each in zip(turned, names, strict=True)]
    return [ops.transpose(net.graph, part, (1, 0, 2)) for part in dropped]


@dataclass(frozen=True)
class _GateBiases:
    """The initializer of the biases (4 H,): ``forget`` for the forget gates, 0 for the others."""

    forget: float

    def build(self, graph: Graph, spec: TensorSpec, *, seed: int, key: str) -> Tensor:
        """Add the biases; seed and key are not used."""
        units = spec.size // _GATES
        values = (0.0, self.forget, 0.0, 0.0)
        return ops.concat(graph, [ops.fill(graph, value, (units,), spec.dtype) for value in values], 0)


def _begun(net: NetworkBuilder, state: Tensor) -> Tensor:
    """Return a state (N, units), with zeros in the rows where a new sequence begins."""
    if net.begins is None:
        return state
    zero = ops.fill(net.graph, 0.0, (), net.state_dtype)
    column = ops.reshape(net.graph, net.begins, (-1, 1))
    fresh = ops.greater(net.graph, column, ops.fill(net.graph, 0.0, (), "int64"))
    return ops.select(net.graph, fresh, zero, state)


def _last(graph: Graph, x: Tensor) -> Tensor:
    """Return the last step of x (T, N, units)."""
    steps, *shape = graph.spec(x).shape
    return ops.reshape(graph, ops.slice(graph, x, (steps - 1, 0, 0), (1, *shape)), shape)
