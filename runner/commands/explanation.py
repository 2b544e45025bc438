"""Parts of the text of ``runner explain``: layers, devices with the placement of layers, and transfers."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

from runner.config.devices import device_texts, reason, sums_text
from runner.engine.compile.plan import DevicePlan
from runner.engine.compile.program_plans import ProgramPlans
from runner.engine.compile.transfer_times import TimedTransfer, transfers
from runner.engine.graph import GPU
from runner.kernels.gpu.discovery import Found
from runner.system.text import mean_number, number, text_table
from runner.training.comparison import predicted_step_s, verdict
from runner.training.devices import sums_over_workers
from runner.training.experiment import Experiment
from runner.training.layers import LayerRow
from runner.training.placement import layer_device_text, placement_text


def layer_table(rows: Sequence[LayerRow], experiment: Experiment) -> str:
    """Return a table with a row for each layer, and with a column of devices if the strategy placed the layers."""
    headers = ("layer", "kind", "output (one example)", "parameters", "multiply-adds", "activation bytes")
    body = [(r.name, r.kind, r.output, *map(number, (r.parameters, r.multiply_adds, r.activation_bytes))) for r in rows]
    if experiment.placed is None:
        return text_table(headers, body)
    placement = experiment.placed.placement
    placed = [(*cells, layer_device_text(placement, row.name)) for row, cells in zip(rows, body, strict=True)]
    return text_table((*headers, "device"), placed)


def totals(rows: Sequence[LayerRow]) -> list[str]:
    return [
        f"parameters              {number(sum(r.parameters for r in rows))}",
        f"multiply-adds/example   {number(sum(r.multiply_adds for r in rows))} (forward)",
        f"activations/example     {number(sum(r.activation_bytes for r in rows))} bytes (outputs of all layers)",
    ]


def training_plans(experiment: Experiment, planned: ProgramPlans) -> dict[str, list[tuple[DevicePlan, float]]]:
    """Return device -> the plans that it runs, each with the average number of runs per training step."""
    plans: dict[str, list[tuple[DevicePlan, float]]] = {}
    for client in experiment.program.training:
        for device, plan in planned.plans(client.signature).items():
            plans.setdefault(device, []).append((plan, client.per_update))
    return plans


def device_lines(experiment: Experiment, found: Found) -> list[str]:
    """Return lines on the devices, the reason for their choice, and their processes. found: the local GPUs."""
    cluster = experiment.config.cluster
    texts = device_texts({device.name: device.gpu for device in experiment.cluster.devices}, found)
    counts = Counter(texts.values())
    one_process = experiment.program.one_process is not None
    plans = "the fastest, as measured" if cluster.compare_plans else "the first that cuDNN proposes"
    use = [f"float32 products        {'TF32' if cluster.tf32 else 'float32'}", f"plans of convolutions   {plans}"]
    sums = [f"sums of all_reduce      {sums_text(experiment.config, found, one_process)}"]
    return [
        f"devices                 {', '.join(f'{count} on {what}' for what, count in counts.items())}; "
        f"{'in one process' if one_process else 'one process each'}",
        f"chosen because          {reason(cluster, found)}",
        *(use if cluster.device_taken == GPU else []),
        *(sums if cluster.device_taken == GPU and sums_over_workers(experiment.program) else []),
    ]


def device_table(experiment: Experiment, planned: ProgramPlans, per: str) -> str:
    """Return a table with a row for each device. per: the word after "bytes sent per": "step" or "evaluation"."""
    plans = training_plans(experiment, planned)
    return text_table(
        ("device", "nodes", "planned peak bytes", "variable bytes", f"bytes sent per {per}", "messages"),
        [_device_row(device, own) for device, own in sorted(plans.items())],
    )


def placed_lines(experiment: Experiment) -> list[str]:
    """Return lines on the placement of layers and on predicted step times of strategies; [] without a placement."""
    if experiment.placed is None:
        return []
    predicted = predicted_step_s(experiment)
    return [
        "",
        *placement_text(experiment.placed.placement).splitlines(),
        "",
        text_table(("strategy", "predicted ms per step"), [(name, f"{1e3 * s:,.3f}") for name, s in predicted.items()]),
        "",
        f"{verdict(predicted, 'predicted by the cost model')}.",
    ]


def _device_row(device: str, plans: Sequence[tuple[DevicePlan, float]]) -> tuple[str, ...]:
    """Return the row of a device. plans: as in :func:`training_plans`."""
    variables = {name: slot.layout.nbytes for plan, _ in plans for name, slot in plan.variables.items()}
    return (
        device,
        number(sum(len(plan.instructions) for plan, _ in plans)),
        number(max(plan.arena_bytes for plan, _ in plans)),
        number(sum(variables.values())),
        number(round(sum(times * plan.sent_bytes for plan, times in plans))),
        mean_number(sum(times * sum(each.op == "send" for each in plan.instructions) for plan, times in plans)),
    )


_ESTIMATED = """\
Milliseconds are estimated by the cost model, summed over messages. Hidden milliseconds are those in which the receiver
computes between the send and the first node that needs the message. Messages can overlap the same computation."""


Sent = tuple[TimedTransfer, float]
"""A transfer between devices, and the average number of times that a step makes the transfer."""


def sent_text(sent: Sequence[Sent], per: str) -> str:
    """Return two tables of the transfers of a step: one by link and layer, one by link with times of the cost model.

    Links are sorted by name, and the layers of a link by their first send. A dash means that a transfer belongs to no
    layer. Average bytes are rounded. per: the word after "bytes per" in the header, "step" or "evaluation".
    """
    if not sent:
        return "Nothing is sent between devices."
    by_wire = sorted(sent, key=lambda each: _wire(each[0]))
    layers = _grouped(by_wire, lambda each: (*_wire(each), each.layer or "-"))
    wires = _grouped(by_wire, _wire)
    return "\n".join(
        [
            text_table(
                ("from", "to", "layer", "messages", f"bytes per {per}"),
                [(*group, *_messages(members)) for group, members in layers.items()],
            ),
            "",
            text_table(
                ("from", "to", "messages", f"bytes per {per}", "transfer ms", "hidden ms"),
                [(*wire, *_messages(members), *_milliseconds(members)) for wire, members in wires.items()],
            ),
            "",
            _ESTIMATED,
        ]
    )


def _wire(transfer: TimedTransfer) -> tuple[str, str]:
    return transfer.source, transfer.destination


def _grouped(
    sent: Sequence[Sent], key: Callable[[TimedTransfer], tuple[str, ...]]
) -> dict[tuple[str, ...], list[Sent]]:
    groups: dict[tuple[str, ...], list[Sent]] = {}
    for transfer, times in sent:
        groups.setdefault(key(transfer), []).append((transfer, times))
    return groups


def _messages(sent: Sequence[Sent]) -> tuple[str, str]:
    count, nbytes = sum(times for _, times in sent), sum(times * transfer.nbytes for transfer, times in sent)
    return mean_number(count), number(round(nbytes))


def _milliseconds(sent: Sequence[Sent]) -> tuple[str, str]:
    total = sum(times * transfer.seconds for transfer, times in sent)
    hidden = sum(times * transfer.hidden_s for transfer, times in sent)
    return f"{1e3 * total:,.3f}", f"{1e3 * hidden:,.3f}"


def sent_of(experiment: Experiment, planned: ProgramPlans) -> list[Sent]:
    """Return the transfers of all training clients; set hidden times of deferred clients (see ``Client``) to 0."""
    return [
        (replace(each, hidden_s=0.0) if client.deferred else each, client.per_update)
        for client in experiment.program.training
        for each in transfers(planned.compiled(client.signature), experiment.cluster)
    ]
