"""``runner explain``: what a configuration amounts to, before anything runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from runner.build import build
from runner.config_schema import Config
from runner.engine.compile import compile_signature
from runner.engine.cost import node_cost
from runner.engine.graph import Graph
from runner.engine.kernel_table import load_kernels
from runner.engine.plan import DevicePlan
from runner.experiment import Experiment

_MULTIPLYING = ("matmul", "conv2d")


@dataclass(frozen=True)
class LayerRow:
    """One layer of one copy of the network: what it puts out for one example, holds and multiplies."""

    name: str
    kind: str
    output: str
    parameters: int
    multiply_adds: int
    activation_bytes: int


def explain(config: Config) -> str:
    """Describe layers, totals, devices, transfers and planned memory of a training step as text."""
    experiment = build(config)
    plans = training_plans(experiment)
    rows = layer_rows(experiment)
    train = config.train
    lines = [
        f"model {config.model.name} on {config.data.name}, {config.precision}, "
        f"optimizer {config.optimizer.name}, parallelism {config.parallelism.name} "
        f"with {experiment.program.workers} worker(s)",
        "",
        _table(
            ("layer", "kind", "output (one example)", "parameters", "multiply-adds", "activation bytes"),
            [(r.name, r.kind, r.output, _n(r.parameters), _n(r.multiply_adds), _n(r.activation_bytes)) for r in rows],
        ),
        "",
        f"parameters              {_n(sum(r.parameters for r in rows))}",
        f"multiply-adds/example   {_n(sum(r.multiply_adds for r in rows))} (forward)",
        f"steps                   {_n(experiment.total_steps)} of {train.batch_size} examples, "
        f"{experiment.steps_per_epoch:.1f} steps per epoch",
        "",
        _table(
            ("device", "nodes", "planned peak bytes", "variable bytes", "bytes sent per step", "messages"),
            [_device_row(device, plan) for device, plan in sorted(plans.items())],
        ),
        "",
        "Planned peak: largest sum of activations, gradients and inputs alive at once in a training step; "
        "variables come on top.",
    ]
    return "\n".join(lines)


def training_plans(experiment: Experiment) -> dict[str, DevicePlan]:
    """The plan of the training step by device."""
    signature = experiment.program.clients["train"].signature
    compiled = compile_signature(experiment.program.graph, signature, experiment.cluster, load_kernels())
    return {device: part.plan(device) for device, part in compiled.parts.items()}


def layer_rows(experiment: Experiment) -> list[LayerRow]:
    """Rows of the evaluation pass of the first worker, in the order of the network."""
    graph = experiment.program.graph
    slot = next(s for s in experiment.program.clients["eval"].inputs if s.field == "x")
    examples = slot.hi - slot.lo
    scope = slot.tensor.node.removesuffix("/x")
    layers: dict[str, list[str]] = {}
    for node in graph:
        if node.layer is not None and node.name.startswith(f"{scope}/"):
            layers.setdefault(node.layer.name, []).append(node.name)
    return [_layer_row(graph, names, examples) for names in layers.values()]


def _layer_row(graph: Graph, names: Sequence[str], examples: int) -> LayerRow:
    nodes = [graph.nodes[name] for name in names]
    stamp = nodes[0].layer
    assert stamp is not None, "only stamped nodes are grouped"
    output = nodes[-1].outputs[0]
    read = {tensor.node for node in nodes for tensor in node.inputs}
    own = [graph.nodes[name] for name in sorted(read) if graph.nodes[name].op == "variable"]
    flops = sum(node_cost(graph, node).flops for node in nodes if node.op in _MULTIPLYING)
    produced = sum(node.outputs[0].nbytes for node in nodes if node.outputs[0].shape[:1] == (examples,))
    return LayerRow(
        stamp.name,
        stamp.kind,
        "x".join(map(str, output.shape[1:])) or "1",
        sum(node.outputs[0].size for node in own if "/moving_" not in node.name),
        flops // 2 // examples,
        produced // examples,
    )


def _device_row(device: str, plan: DevicePlan) -> tuple[str, ...]:
    variables = sum(spec.nbytes for spec in plan.variables.values())
    sends = sum(instruction.op == "send" for instruction in plan.instructions)
    return (
        device,
        _n(len(plan.instructions)),
        _n(plan.peak_bytes),
        _n(variables),
        _n(plan.sent_bytes),
        _n(sends),
    )


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
