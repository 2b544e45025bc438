"""``runner explain``: what a configuration amounts to, before anything runs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from runner.config.schema import Config
from runner.engine import ops
from runner.engine.cost import node_cost
from runner.engine.graph import Graph, Node
from runner.engine.kernel_table import load_kernels
from runner.engine.network import NetworkBuilder
from runner.engine.plan import DevicePlan
from runner.engine.program_plans import ProgramPlans
from runner.engine.tensor import Tensor
from runner.engine.transfer_times import Transfer, transfers
from runner.engine.variables import Variables
from runner.optimizers.lbfgs import Lbfgs
from runner.training.build import build
from runner.training.comparison import predicted_step_s, verdict
from runner.training.experiment import Experiment
from runner.training.placement import place_text, placement_text

_MULTIPLYING = ("matmul", "conv2d")
"""Ops whose floating-point operations come in pairs of a multiplication and an addition."""
_PASSING_ON = ("reshape", "identity")
"""Ops that give out their input's memory."""

_ESTIMATED = """\
Milliseconds are estimated by the cost model, summed over messages. In the hidden ones the receiver computes,
between a send and the first node that needs it. Messages may hide behind the same compute."""


_OVERLAPPING = """\
Clients of this strategy overlap: each is counted as often as it is run on average, when nobody is late, and what hides
behind another is not estimated."""

_EVALUATION = "Bytes and messages are those of one evaluation of the batch; an update makes two or more."


@dataclass(frozen=True)
class Sent:
    """A transfer, and how often a step makes it on average."""

    transfer: Transfer
    times: float = 1.0


@dataclass(frozen=True)
class LayerRow:
    """One layer: what it puts out for one example, holds and multiplies.

    output: extents. parameters: values that are trained. multiply_adds: of the forward pass, in convolutions and matrix
    products. activation_bytes: of the output; 0 where that is the input in another shape.
    """

    name: str
    kind: str
    output: str
    parameters: int
    multiply_adds: int
    activation_bytes: int


def explain(config: Config) -> str:
    """Describe layers, totals, devices, planned memory and transfers of a training step as text."""
    experiment = build(config)
    planned = _planned(experiment)
    rows = layer_rows(experiment)
    train = config.train
    per = "evaluation" if isinstance(config.optimizer, Lbfgs) else "step"
    lines = [
        f"model {config.model.name} on {config.data.name}, {config.precision}, "
        f"optimizer {config.optimizer.name}, parallelism {config.parallelism.name} "
        f"with {_processes(experiment)}",
        "",
        _layer_table(rows, experiment),
        "",
        f"parameters              {_n(sum(r.parameters for r in rows))}",
        f"multiply-adds/example   {_n(sum(r.multiply_adds for r in rows))} (forward)",
        f"activations/example     {_n(sum(r.activation_bytes for r in rows))} bytes (outputs of all layers)",
        f"steps                   {_n(experiment.total_steps)} of {train.batch_size} examples, "
        f"{experiment.steps_per_epoch:.1f} steps per epoch",
        *([f"network                 emulated: {experiment.emulation}"] if experiment.emulation else []),
        *_placed_lines(experiment),
        "",
        _table(
            ("device", "nodes", "planned peak bytes", "variable bytes", f"bytes sent per {per}", "messages"),
            [_device_row(device, plans) for device, plans in sorted(_training_plans(experiment, planned).items())],
        ),
        "",
        "Planned peak: largest sum of activations, gradients and inputs alive at once in a training step; "
        "variables come on top.",
        *([_OVERLAPPING] if any(client.deferred for client in experiment.program.training) else []),
        *([_EVALUATION] if per == "evaluation" else []),
        "",
        sent_text(_sent(experiment, planned), per),
    ]
    return "\n".join(lines)


def _layer_table(rows: Sequence[LayerRow], experiment: Experiment) -> str:
    """A row for each layer; with its device where layers were placed."""
    headers = ("layer", "kind", "output (one example)", "parameters", "multiply-adds", "activation bytes")
    cells = [(r.name, r.kind, r.output, _n(r.parameters), _n(r.multiply_adds), _n(r.activation_bytes)) for r in rows]
    if experiment.settled is None:
        return _table(headers, cells)
    placement = experiment.settled.placement
    return _table(
        (*headers, "device"), [(*cell, place_text(placement, row.name)) for row, cell in zip(rows, cells, strict=True)]
    )


def _placed_lines(experiment: Experiment) -> list[str]:
    """How the layers were placed, and the predicted time of a step beside that of other strategies."""
    if experiment.settled is None:
        return []
    predicted = predicted_step_s(experiment)
    return [
        "",
        *placement_text(experiment.settled.placement).splitlines(),
        "",
        _table(("strategy", "predicted ms per step"), [(name, f"{1e3 * s:,.3f}") for name, s in predicted.items()]),
        "",
        f"{verdict(predicted, 'predicted by the cost model')}.",
    ]


def sent_text(sent: Sequence[Sent], per: str = "step") -> str:
    """Two tables of the transfers of a step: by wire and layer, and by wire with the times of the cost model.

    Wires are sorted by name, the layers of one by their first send. A dash stands for no layer. Bytes are rounded.
    per: what is called a step.
    """
    if not sent:
        return "Nothing is sent between devices."
    by_wire = sorted(sent, key=lambda each: _wire(each.transfer))
    layers = _grouped(by_wire, lambda each: (*_wire(each), each.layer or "-"))
    wires = _grouped(by_wire, _wire)
    return "\n".join(
        [
            _table(
                ("from", "to", "layer", "messages", f"bytes per {per}"),
                [(*group, *_messages(members)) for group, members in layers.items()],
            ),
            "",
            _table(
                ("from", "to", "messages", f"bytes per {per}", "transfer ms", "hidden ms"),
                [(*wire, *_messages(members), *_milliseconds(members)) for wire, members in wires.items()],
            ),
            "",
            _ESTIMATED,
        ]
    )


def _wire(transfer: Transfer) -> tuple[str, str]:
    return transfer.source, transfer.destination


def _grouped(sent: Sequence[Sent], key: Callable[[Transfer], tuple[str, ...]]) -> dict[tuple[str, ...], list[Sent]]:
    groups: dict[tuple[str, ...], list[Sent]] = {}
    for each in sent:
        groups.setdefault(key(each.transfer), []).append(each)
    return groups


def _messages(sent: Sequence[Sent]) -> tuple[str, str]:
    return _mean(sum(each.times for each in sent)), _n(round(sum(each.times * each.transfer.nbytes for each in sent)))


def _milliseconds(sent: Sequence[Sent]) -> tuple[str, str]:
    total = sum(each.times * each.transfer.seconds for each in sent)
    hidden = sum(each.times * each.transfer.hidden_s for each in sent)
    return f"{1e3 * total:,.3f}", f"{1e3 * hidden:,.3f}"


def _processes(experiment: Experiment) -> str:
    program = experiment.program
    servers = f" and {program.servers} parameter server(s)" if program.servers else ""
    return f"{program.workers} worker(s){servers}"


def training_plans(experiment: Experiment) -> dict[str, list[DevicePlan]]:
    """The plans of every device in a training step, one for each client that has a part there."""
    plans = _training_plans(experiment, _planned(experiment))
    return {device: [plan for plan, _ in own] for device, own in plans.items()}


def _training_plans(experiment: Experiment, planned: ProgramPlans) -> dict[str, list[tuple[DevicePlan, float]]]:
    """The plans of every device, each with how often a step runs it."""
    plans: dict[str, list[tuple[DevicePlan, float]]] = {}
    for client in experiment.program.training:
        for device, plan in planned.plans(client.signature).items():
            plans.setdefault(device, []).append((plan, client.per_update))
    return plans


def _sent(experiment: Experiment, planned: ProgramPlans) -> list[Sent]:
    """What every client that trains sends. A part of a deferred one waits for all it receives: nothing hides in it."""
    return [
        Sent(replace(each, hidden_s=0.0) if client.deferred else each, client.per_update)
        for client in experiment.program.training
        for each in transfers(planned.compiled(client.signature), experiment.cluster)
    ]


def _planned(experiment: Experiment) -> ProgramPlans:
    return ProgramPlans(experiment.program, experiment.cluster, load_kernels())


def layer_rows(experiment: Experiment) -> list[LayerRow]:
    """Rows in the order of the network, from a training copy of it over one example that no pass has touched.

    Layers that add nothing, such as dropout at rate 0, have no row.
    """
    net = _network_of_one_example(experiment)
    nodes: dict[str, list[Node]] = {}
    for node in net.graph:
        if node.layer is not None:
            nodes.setdefault(node.layer.name, []).append(node)
    parameters: Counter[str] = Counter()
    for variable in net.variables.trainable:
        parameters[variable.name.rpartition("/")[0]] += variable.spec.size
    return [
        _layer_row(net.graph, nodes[name], output, parameters[name])
        for name, output in net.layer_outputs.items()
        if name in nodes
    ]


def _network_of_one_example(experiment: Experiment) -> NetworkBuilder:
    """The network in a graph of its own, fed as the training step is."""
    program, config = experiment.program, experiment.config
    inputs = [slot for client in program.training for slot in client.inputs]
    specs = {slot.field: program.graph.spec(slot.tensor) for slot in inputs}
    graph = Graph()
    batch = {
        field: ops.placeholder(graph, (1, *spec.shape[1:]), spec.dtype, name=field) for field, spec in specs.items()
    }
    net = NetworkBuilder(
        graph,
        Variables(graph, seed=config.seed),
        dtype=specs["x"].dtype,
        seed=config.seed,
        training=True,
        step=ops.placeholder(graph, (), "int64", name="step"),
        index=batch["index"],
    )
    config.model.network(experiment.facts.classes)(net, batch)
    return net


def _layer_row(graph: Graph, nodes: Sequence[Node], output: Tensor, parameters: int) -> LayerRow:
    stamp = nodes[0].layer
    assert stamp is not None, "only stamped nodes are grouped"
    spec = graph.spec(output)
    flops = sum(node_cost(graph, node).flops for node in nodes if node.op in _MULTIPLYING)
    return LayerRow(
        stamp.name,
        stamp.kind,
        "x".join(map(str, spec.shape[1:])) or "1",
        parameters,
        flops // 2,
        0 if graph.nodes[output.node].op in _PASSING_ON else spec.nbytes,
    )


def _device_row(device: str, plans: Sequence[tuple[DevicePlan, float]]) -> tuple[str, ...]:
    """plans: each with how often a step runs it."""
    variables = {name: slot.layout.nbytes for plan, _ in plans for name, slot in plan.variables.items()}
    return (
        device,
        _n(sum(len(plan.instructions) for plan, _ in plans)),
        _n(max(plan.arena_bytes for plan, _ in plans)),
        _n(sum(variables.values())),
        _n(round(sum(times * plan.sent_bytes for plan, times in plans))),
        _mean(sum(times * sum(each.op == "send" for each in plan.instructions) for plan, times in plans)),
    )


def _mean(count: float) -> str:
    """A mean number, with decimals only where it is not whole."""
    return _n(round(count)) if math.isclose(count, round(count)) else f"{count:,.2f}"


def _n(count: int) -> str:
    return f"{count:,}"


def _table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Align columns with spaces: text to the left, numbers to the right."""
    cells = [tuple(headers), *map(tuple, rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    numeric = [all(c[:1].isdigit() for c in column[1:]) for column in zip(*cells, strict=True)]
    return "\n".join(
        "  ".join(
            cell.rjust(w) if right else cell.ljust(w) for cell, w, right in zip(row, widths, numeric, strict=True)
        ).rstrip()
        for row in cells
    )
