"""On what a run computes: what is asked, what this machine has, and what is kept of both."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from runner.config.configuration import fix_machine_values, from_plain, to_plain
from runner.config.devices import device_texts, look_at, reason, require_devices, retake_devices, take_devices
from runner.config.hydra_app import compose
from runner.config.outcome import outcome_hash
from runner.config.schema import Config
from runner.errors import ConfigError, ResourceError
from runner.kernels.gpu.discovery import NO_CARDS, Found
from tests.cards import NO_DRIVER, card, machine

TWO = ("parallelism=sync_data", "parallelism.workers=2", "tracking=none")
SERVED = (*TWO, "parallelism.combine=parameter_server", "parallelism.servers=2")


def asked(*overrides: str) -> Config:
    """A checked configuration as it is composed."""
    return compose([*TWO, *overrides]).config()


def taken(found: Found, *overrides: str) -> Any:
    """The cluster of a run on a machine."""
    return take_devices(asked(*overrides), lambda: found)


def test_auto_takes_all_cards_in_turn_or_the_processor() -> None:
    here = machine(card(0), card(1))
    cluster = taken(here, "parallelism.workers=3")
    assert (cluster.device, cluster.device_taken, cluster.cards) == ("auto", "gpu", [0, 1, 0])
    assert reason(cluster, here) == (
        "cluster.device=auto takes a card where there is one, and there is Big Card, Big Card"
    )
    cluster = taken(NO_DRIVER)
    assert (cluster.device, cluster.device_taken, cluster.cards) == ("auto", "cpu", None)
    assert reason(cluster, NO_DRIVER) == "cluster.device=auto finds no card: there is no NVIDIA driver: no libcuda"


def test_a_card_that_cannot_be_used_is_not_taken_and_the_reason_says_why() -> None:
    here = machine(card(), obstacle="Big Card cannot be used: CuPy is not installed")
    cluster = taken(here)
    assert cluster.device_taken == "cpu"
    assert reason(cluster, here).endswith("Big Card cannot be used: CuPy is not installed")


def test_the_processor_is_taken_without_looking_for_cards() -> None:
    cluster = take_devices(asked("cluster.device=cpu"), lambda: pytest.fail("it is not asked for a card"))
    assert cluster.device_taken == "cpu"
    assert look_at(cluster, lambda: pytest.fail("nor is anybody else")) is NO_CARDS
    assert reason(cluster, NO_CARDS) == "cluster.device=cpu asks for it"


def test_a_card_that_is_asked_for_and_not_there_is_an_error() -> None:
    with pytest.raises(ResourceError) as refusal:
        taken(NO_DRIVER, "cluster.device=gpu")
    assert str(refusal.value) == (
        "cluster.device=gpu: expected a card that can be used, but there is no NVIDIA driver: no libcuda. "
        "`runner doctor` says what is there; cluster.device=cpu computes without a card, to other bits"
    )
    assert refusal.value.exit_code == 4


def test_cards_may_be_shared_and_have_to_be_there() -> None:
    here = machine(card(0), card(1))
    assert taken(here, "cluster.cards=[1,1]").cards == [1, 1]
    with pytest.raises(
        ResourceError, match=r"cluster\.cards=\[0, 2\]: there is no card 2; expected numbers of 0 \(Big"
    ):
        taken(here, "cluster.cards=[0,2]")


def test_cards_that_are_named_are_asked_for() -> None:
    cluster = taken(machine(card(0), card(1)), "cluster.cards=[1,1]")
    assert (cluster.device, cluster.device_taken, cluster.cards) == ("gpu", "gpu", [1, 1])
    with pytest.raises(ResourceError) as refusal:
        taken(NO_DRIVER, "cluster.cards=[1,1]")
    assert str(refusal.value) == (
        "cluster.cards=[1, 1]: expected a card that can be used, but there is no NVIDIA driver: no libcuda. "
        "`runner doctor` says what is there; cluster.cards=null leaves it to cluster.device=auto"
    )
    stored = taken(NO_DRIVER)
    with pytest.raises(
        ConfigError, match=r"cards=\[0, 0\]: .* on the processor, .*; use cluster\.device=gpu, or cluster\.cards=null"
    ):
        take_devices(replace(asked(), cluster=replace(stored, cards=[0, 0])), lambda: machine(card()))


def test_servers_are_on_the_processor_unless_they_are_to_be_on_cards() -> None:
    here = machine(card(0), card(1), card(2))
    assert take_devices(compose([*SERVED]).config(), lambda: here).cards == [0, 1]
    served = compose([*SERVED, "cluster.server_device=gpu"]).config()
    assert take_devices(served, lambda: here).cards == [0, 1, 2, 0]


def test_a_card_without_bfloat16_is_refused_for_it() -> None:
    old = machine(card(capability=75))
    assert taken(old).device_taken == "gpu"
    with pytest.raises(
        ResourceError, match=r"precision=bfloat16: Big Card, compute capability 7\.5, .* begins with .* 8"
    ):
        taken(old, "precision=bfloat16")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["cluster.device=cuda"], r"cluster\.device='cuda': expected one of auto, cpu, gpu"),
        (["cluster.server_device=tpu"], r"cluster\.server_device='tpu': expected one of cpu, gpu"),
        (
            ["cluster.device=cpu", "cluster.device_taken=gpu"],
            r"device_taken='gpu': expected cpu with device=cpu, or null",
        ),
        (["cluster.cards=[]"], r"cluster\.cards=\[\]: expected numbers of cards from 0, at least one, or null"),
        (["cluster.cards=[-1,0]"], r"cluster\.cards=\[-1, 0\]: expected numbers of cards from 0"),
        (["cluster.cards=[0]"], r"cluster\.cards=\[0\] with parallelism\.workers=2: expected one number .* 2 in all"),
        (
            ["cluster.device=cpu", "cluster.cards=[0,0]"],
            r"cluster\.cards=\[0, 0\] with cluster\.device=cpu: there is no",
        ),
        (["cluster.device=cpu", "cluster.tf32=true"], r"cluster\.tf32=true with cluster\.device=cpu: there is no card"),
        (["cluster.device=cpu", "cluster.server_device=gpu"], r"cluster\.server_device=gpu with cluster\.device=cpu"),
        (["cluster.device=cpu", "cluster.compare_plans=true"], r"cluster\.compare_plans=true with cluster\.device=cpu"),
        (["precision=float64", "cluster.tf32=true"], r"cluster\.tf32=true with precision=float64: only float32"),
    ],
)
def test_impossible_devices_are_refused(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        asked(*overrides)


def test_servers_on_cards_need_a_card_each() -> None:
    with pytest.raises(ConfigError, match=r"\[0, 0, 0\] .*workers=2 and 2 parameter server\(s\) on cards: .* 4 in all"):
        compose([*SERVED, "cluster.server_device=gpu", "cluster.cards=[0,0,0]"]).config()


def test_what_is_stored_says_what_was_asked_and_what_was_taken() -> None:
    stored = to_plain(fix_machine_values(asked(), 4, lambda: machine(card())))
    assert {key: stored["cluster"][key] for key in ("device", "device_taken", "cards")} == {
        "device": "auto",
        "device_taken": "gpu",
        "cards": [0, 0],
    }
    again = fix_machine_values(from_plain(stored), 4, lambda: machine(card(0), card(1)))
    assert again.cluster.cards == [0, 0], "what was taken stays"
    with pytest.raises(
        ResourceError, match=r"device=auto with cluster\.device_taken=gpu, as when the run began: expect"
    ):
        fix_machine_values(from_plain(stored), 4, lambda: NO_DRIVER)


def test_a_run_of_the_processor_stays_there() -> None:
    stored = fix_machine_values(asked(), 4, lambda: NO_DRIVER)
    here = machine(card())
    assert fix_machine_values(stored, 4, lambda: here).cluster.device_taken == "cpu"
    assert reason(stored.cluster, here) == (
        "cluster.device=auto found no card when the run began; there is Big Card now"
    )


def test_a_rerun_elsewhere_takes_what_is_there_and_says_so() -> None:
    stored = fix_machine_values(asked(), 4, lambda: machine(card()))
    here, other = retake_devices(stored, lambda: machine(card()))
    assert (here, other) == (stored, "")
    elsewhere, other = retake_devices(stored, lambda: NO_DRIVER)
    assert (elsewhere.cluster.device_taken, elsewhere.cluster.cards) == ("cpu", None)
    assert other == "it computed on a card, and here the processor does: there is no NVIDIA driver: no libcuda"
    wanted = fix_machine_values(asked("cluster.device=gpu"), 4, lambda: machine(card()))
    with pytest.raises(ResourceError, match=r"cluster\.device=gpu: expected a card"):
        retake_devices(wanted, lambda: NO_DRIVER)


def test_cards_that_nobody_named_are_dealt_anew_where_there_are_fewer() -> None:
    two, one = machine(card(0), card(1)), machine(card(0))
    stored = fix_machine_values(asked(), 4, lambda: two)
    here, other = retake_devices(stored, lambda: one)
    assert (here.cluster.device_taken, here.cluster.cards, other) == ("gpu", [0, 0], "")
    named = fix_machine_values(asked("cluster.cards=[0,1]"), 4, lambda: two)
    told = r"there is no card 1; .* Several workers may have one card; cluster\.cards=null takes those that are there"
    for config, action in ((named, retake_devices), (stored, take_devices)):
        with pytest.raises(ResourceError, match=told):
            action(config, lambda: one)


def test_records_of_cards_and_of_the_processor_do_not_stand_for_each_other() -> None:
    cpu = fix_machine_values(asked(), 4, lambda: NO_DRIVER)
    gpu = fix_machine_values(asked(), 4, lambda: machine(card()))
    explicit = fix_machine_values(asked("cluster.device=gpu"), 4, lambda: machine(card()))
    rounded = fix_machine_values(asked("cluster.tf32=true"), 4, lambda: machine(card()))
    compared = fix_machine_values(asked("cluster.compare_plans=true"), 4, lambda: machine(card()))
    assert outcome_hash(cpu) != outcome_hash(gpu) == outcome_hash(explicit) != outcome_hash(rounded)
    assert outcome_hash(gpu) != outcome_hash(compared) != outcome_hash(rounded)
    assert outcome_hash(cpu) == outcome_hash(replace(cpu, cluster=replace(cpu.cluster, device_taken=None)))


def test_devices_are_described() -> None:
    here = machine(card())
    devices = {"/job:worker/task:0/device:gpu:0": 0, "/job:ps/task:0/device:cpu:0": None}
    assert device_texts(devices, here) == {
        "/job:worker/task:0/device:gpu:0": "card 0: Big Card, compute capability 9.0, 80.0 GiB, driver 580.1 for CUDA "
        "up to 13.0",
        "/job:ps/task:0/device:cpu:0": "processor",
    }
    require_devices(asked(), NO_DRIVER)
