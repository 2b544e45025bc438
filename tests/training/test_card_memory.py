"""Planned memory of cards: what a card is counted to hold, and which runs are refused."""

from __future__ import annotations

import pytest

from runner.commands.explanation.devices import plans_of
from runner.errors import ResourceError
from runner.training import card_memory
from runner.training.card_memory import (
    CONTEXT_BYTES,
    CardMemory,
    card_fit_text,
    planned_card_memory,
    require_card_fit,
    require_card_memory,
)
from runner.training.memory import planned_memory
from tests.cards import GIB, NO_DRIVER, card, card_kernels, machine
from tests.training.test_devices import STRATEGIES, placed

__all__ = ["card_kernels"]


@pytest.mark.usefixtures("card_kernels")
def test_devices_on_a_card_add_up_and_leave_the_host_its_own() -> None:
    experiment = placed(machine(card(0), card(1)), *STRATEGIES["sync_data"], "cluster.cards=[0,0,1]")
    plans = plans_of(experiment)
    first, second = planned_card_memory(experiment, plans)
    assert (first.card, second.card) == (0, 1)
    assert len(first.devices) == 2
    assert first.variables == 2 * second.variables > 0
    assert 1.5 * second.step < first.step
    assert first.total == first.variables + first.step + first.moved + CONTEXT_BYTES
    (host,) = planned_memory(experiment, plans)
    assert (host.variables, host.step) == (0, 0)
    assert host.checkpoint > 0


@pytest.mark.usefixtures("card_kernels")
def test_every_process_has_a_context_on_its_card() -> None:
    experiment = placed(machine(card()), *STRATEGIES["servers"], "cluster.one_process=false")
    (found,) = planned_card_memory(experiment, plans_of(experiment))
    assert found.processes == 3, "two workers, and the master, which plans"
    memory = {each.process: each for each in planned_memory(experiment, plans_of(experiment))}
    assert memory["worker-0"].variables == 0
    assert memory["ps-0"].variables > 0


def test_without_cards_nothing_is_planned() -> None:
    experiment = placed(NO_DRIVER, *STRATEGIES["sync_data"])
    assert planned_card_memory(experiment, plans_of(experiment)) == []


def test_what_does_not_fit_is_refused_with_numbers() -> None:
    devices = ("/job:worker/task:0/device:gpu:0", "/job:worker/task:1/device:gpu:0")
    memory = CardMemory(1, devices, variables=GIB, step=4 * GIB, moved=GIB)
    needed = 6 * GIB + CONTEXT_BYTES
    cards = (card(0, memory_bytes=1), card(1, memory_bytes=needed))
    require_card_fit([memory], cards)
    assert card_fit_text(memory, cards[1]) == (
        "memory needed 6.49 GiB of card 1 (Big Card, compute capability 9.0, 6.5 GiB)"
    )
    small = card(1, memory_bytes=needed - 1)
    assert card_fit_text(memory, small).endswith(", it cannot fit")
    with pytest.raises(ResourceError) as refusal:
        require_card_fit([memory], (card(0), small))
    assert str(refusal.value).startswith(
        "the run needs 6.49 GiB of card 1 (Big Card), which has 6.49 GiB: 2 device(s) in 1 process(es), 4.00 GiB in a "
        "step, 1.00 GiB of variables, 1.00 GiB fed and sent. Use a smaller train.batch_size"
    )


def test_what_others_have_of_a_card_is_not_there_for_a_run() -> None:
    memory = CardMemory(0, ("/job:worker/task:0/device:gpu:0",), variables=GIB)
    needed = GIB + CONTEXT_BYTES
    enough, little = card(free_bytes=needed), card(free_bytes=needed - 1)
    require_card_fit([memory], [enough])
    assert card_fit_text(memory, enough).endswith("80.0 GiB, 1.49 GiB free)")
    assert card_fit_text(memory, little).endswith("80.0 GiB, 1.49 GiB free), it cannot fit")
    with pytest.raises(
        ResourceError, match=r"needs 1\.49 GiB of card 0 \(Big Card\), which has 1\.49 GiB free of 80\.00"
    ):
        require_card_fit([memory], [little])


@pytest.mark.usefixtures("card_kernels")
def test_a_run_that_a_card_cannot_hold_is_refused_and_a_small_one_is_not_planned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here = machine(card(0, memory_bytes=CONTEXT_BYTES))
    with pytest.raises(ResourceError, match=r"the run needs 0\.49 GiB of card 0 \(Big Card\), which has 0\.49 GiB"):
        require_card_memory(placed(here, "parallelism=single"), here.cards)
    taken = machine(card(0, free_bytes=CONTEXT_BYTES))
    with pytest.raises(ResourceError, match=r"which has 0\.49 GiB free of 80\.00 GiB"):
        require_card_memory(placed(taken, "parallelism=single"), taken.cards)
    monkeypatch.setattr(card_memory, "planned_card_memory", lambda *_: pytest.fail("it takes time"))
    require_card_memory(placed(machine(card()), "parallelism=single"), machine(card()).cards)
    require_card_memory(placed(NO_DRIVER, "parallelism=single"), here.cards)
