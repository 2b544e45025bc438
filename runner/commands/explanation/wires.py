"""The part of ``runner explain`` on the transfers of a step, by link and layer."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from runner.engine.compile.program_plans import ProgramPlans
from runner.engine.compile.transfer_times import Transfer, transfers
from runner.system.text import mean_number, number, text_table
from runner.training.experiment import Experiment

_ESTIMATED = """\
Milliseconds are estimated by the cost model, summed over messages. Hidden milliseconds are those in which the receiver
computes between the send and the first node that needs the message. Messages can overlap the same computation."""


@dataclass(frozen=True)
class Sent:
    """A transfer between devices. times: average number of times that a step makes the transfer."""

    transfer: Transfer
    times: float = 1.0


def sent_text(sent: Sequence[Sent], per: str = "step") -> str:
    """Return two tables of the transfers of a step: one by link and layer, one by link with times of the cost model.

    Links are sorted by name, and the layers of a link by their first send. A dash means that a transfer belongs to no
    layer. Average bytes are rounded. per: the word after "bytes per" in the header, "step" or "evaluation".
    """
    if not sent:
        return "Nothing is sent between devices."
    by_wire = sorted(sent, key=lambda each: _wire(each.transfer))
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


def _wire(transfer: Transfer) -> tuple[str, str]:
    return transfer.source, transfer.destination


def _grouped(sent: Sequence[Sent], key: Callable[[Transfer], tuple[str, ...]]) -> dict[tuple[str, ...], list[Sent]]:
    groups: dict[tuple[str, ...], list[Sent]] = {}
    for each in sent:
        groups.setdefault(key(each.transfer), []).append(each)
    return groups


def _messages(sent: Sequence[Sent]) -> tuple[str, str]:
    return mean_number(sum(each.times for each in sent)), number(
        round(sum(each.times * each.transfer.nbytes for each in sent))
    )


def _milliseconds(sent: Sequence[Sent]) -> tuple[str, str]:
    total = sum(each.times * each.transfer.seconds for each in sent)
    hidden = sum(each.times * each.transfer.hidden_s for each in sent)
    return f"{1e3 * total:,.3f}", f"{1e3 * hidden:,.3f}"


def sent_of(experiment: Experiment, planned: ProgramPlans) -> list[Sent]:
    """Return the transfers of all training clients; set hidden times of deferred clients (see ``Client``) to 0."""
    return [
        Sent(replace(each, hidden_s=0.0) if client.deferred else each, client.per_update)
        for client in experiment.program.training
        for each in transfers(planned.compiled(client.signature), experiment.cluster)
    ]
