"""Memory of cards that a run is planned to take, and the refusal of one that they cannot hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from runner.engine.assignment import peer_of
from runner.engine.deferred import received_bytes
from runner.engine.kernel_table import kernels_for
from runner.engine.program_plans import ProgramPlans
from runner.errors import ResourceError
from runner.kernels.gpu.driver import CardFacts
from runner.training.experiment import Experiment
from runner.training.memory import gib, most_bytes, plans_of_device

CONTEXT_BYTES = 500 << 20
"""Of each process on a card: what its driver and libraries are assumed to keep there."""


@dataclass(frozen=True)
class CardMemory:
    """Planned bytes of one card.

    devices: the logical devices on it. processes: that these are in, and the master where it plans there. variables:
    parameters and slots of the optimizer. step: the largest arena of each device. moved: tensors that are fed, and
    that are sent.
    """

    card: int
    devices: tuple[str, ...] = ()
    processes: int = 1
    variables: int = 0
    step: int = 0
    moved: int = 0

    @property
    def total(self) -> int:
        """All of it, with :data:`CONTEXT_BYTES` of each process."""
        return self.variables + self.step + self.moved + self.processes * CONTEXT_BYTES


def planned_card_memory(experiment: Experiment, planned: ProgramPlans) -> list[CardMemory]:
    """What a run is planned to take of every card that it uses, by the card's number."""
    found: dict[int, CardMemory] = {}
    workers = experiment.program.one_process is None
    for device in experiment.cluster.devices:
        if device.card is None:
            continue
        plans = plans_of_device(device.name, experiment.program, planned)
        variables = {name: slot.layout.nbytes for plan in plans for name, slot in plan.variables.items()}
        # What a step reads waits in two places beside its own.
        fed = sum(2 * feed.spec.nbytes for plan in plans for feed in plan.feeds)
        received = sum(sum(received_bytes(plan).values()) for plan in plans)
        before = found.get(device.card, CardMemory(device.card))
        devices = (*before.devices, device.name)
        found[device.card] = replace(
            before,
            devices=devices,
            processes=len(set(map(peer_of, devices))) if workers else 1,
            variables=before.variables + sum(variables.values()),
            step=before.step + max((plan.arena_bytes for plan in plans), default=0),
            moved=before.moved + fed + received + sum(plan.sent_bytes for plan in plans),
        )
    if workers and found:
        # The master plans for all on the card of the first of them.
        home = next(iter(found))
        found[home] = replace(found[home], processes=found[home].processes + 1)
    return [found[card] for card in sorted(found)]


def require_card_memory(experiment: Experiment, cards: Sequence[CardFacts]) -> None:
    """Raise ResourceError for a run that its cards cannot hold beside what is on them.

    cards: those of this machine. Only where it may come near is anything planned, for plans take time.
    """
    used = {device.card for device in experiment.cluster.devices}
    sizes = [card.available_bytes for card in cards if card.number in used]
    contexts = len(experiment.cluster.devices) * CONTEXT_BYTES
    if sizes and most_bytes(experiment) + contexts > min(sizes) // 2:
        kernels = kernels_for(experiment.cluster.devices)
        plans = ProgramPlans(experiment.program, experiment.cluster, kernels)
        require_card_fit(planned_card_memory(experiment, plans), cards)


def require_card_fit(memory: Sequence[CardMemory], cards: Sequence[CardFacts]) -> None:
    """Raise ResourceError, with the numbers, for the first card that would have to hold more than it has free."""
    there = {card.number: card for card in cards}
    for each in memory:
        card = there[each.card]
        if each.total > card.available_bytes:
            raise ResourceError(
                f"the run needs {gib(each.total)} of card {each.card} ({card.name}), which has "
                f"{room_text(card)}: {len(each.devices)} device(s) in {each.processes} process(es), "
                f"{gib(each.step)} in a step, {gib(each.variables)} of variables, {gib(each.moved)} fed and sent. Use "
                "a smaller train.batch_size or train.eval_batch_size, more train.microbatches (parallelism=single), "
                "fewer workers on the card (cluster.cards), precision=bfloat16, or cluster.device=cpu; `nvidia-smi` "
                "lists who else has memory there"
            )


def card_fit_text(memory: CardMemory, card: CardFacts) -> str:
    """One line: what is needed of a card beside what it has."""
    verdict = "" if memory.total <= card.available_bytes else ", it cannot fit"
    free = "" if card.free_bytes is None else f", {gib(card.free_bytes)} free"
    return f"memory needed {gib(memory.total)} of card {card.number} ({card}{free}){verdict}"


def room_text(card: CardFacts) -> str:
    """What a card has, and what is free of it where that is known."""
    return (
        gib(card.memory_bytes)
        if card.free_bytes is None
        else f"{gib(card.free_bytes)} free of {gib(card.memory_bytes)}"
    )
