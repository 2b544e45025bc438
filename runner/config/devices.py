"""On what a run computes: cards or the processor, as asked and as this machine has them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from runner.config.card_share import ALL_CARDS, CardShare
from runner.config.collectives import take_collectives
from runner.config.schema import AUTO, Config, LocalCluster, server_processes, worker_processes
from runner.engine.device import CPU, GPU, NCCL
from runner.errors import ConfigError, ResourceError
from runner.kernels.gpu.discovery import BFLOAT16_CAPABILITY, NO_CARDS, Found, discover

PROCESSOR = "processor"
"""What a device is that has no card."""

Look = Callable[[], Found]


def take_devices(config: Config, look: Look = discover, share: CardShare = ALL_CARDS) -> LocalCluster:
    """The cluster of a configuration with what it left to the machine: the type of devices, and the card of each.

    look: finds cards, and is called only where one may be wanted. share: those of them that are dealt out where none
    is named. Who names cards asks for them, whatever the device. Raises ResourceError where a card is asked for and
    none can be used, ConfigError where one is named for a run that began on the processor.
    """
    cluster: LocalCluster = config.cluster
    taken = cluster.device_taken or (CPU if cluster.device == CPU else None)
    if taken == CPU:
        _require_no_cards(cluster)
        return replace(cluster, device_taken=CPU)
    found = look()
    if taken is None and cluster.cards is not None:
        _require_usable(found, cluster)
        cluster = replace(cluster, device=GPU)
    if taken is None:
        taken = CPU if cluster.device == AUTO and found.obstacle else GPU
    cluster = replace(cluster, device_taken=taken)
    if taken == GPU and cluster.cards is None and found.cards:
        cards = share.of(found.cards)
        cluster = replace(cluster, cards=[cards[k % len(cards)].number for k in range(devices_on_cards(config))])
    config = replace(config, cluster=cluster)
    require_devices(config, found)
    return take_collectives(config, found)


def _require_no_cards(cluster: LocalCluster) -> None:
    if cluster.cards is not None:
        raise ConfigError(
            f"cluster.cards={cluster.cards}: there is no card in a run on the processor, where this one began; use "
            "cluster.device=gpu, or cluster.cards=null"
        )


def _require_usable(found: Found, cluster: LocalCluster) -> None:
    if found.obstacle and cluster.device == AUTO:
        raise ResourceError(
            f"cluster.cards={cluster.cards}: expected a card that can be used, but {found.obstacle}. `runner doctor` "
            "says what is there; cluster.cards=null leaves it to cluster.device=auto"
        )


def retake_devices(config: Config, look: Look = discover) -> tuple[Config, str]:
    """A stored configuration as this machine can compute it, and what is other than it was, "" where nothing is.

    Where ``auto`` had taken a card and there is none, the processor is taken, and the text says so; where there are
    fewer cards than it had taken, they are dealt anew. Raises ResourceError for a card that was asked for.
    """
    found = look_at(config.cluster, look)
    by_auto = config.cluster.device_taken == GPU and config.cluster.device == AUTO
    if by_auto and found.obstacle:
        elsewhere = _with_devices(config, found, device_taken=None, cards=None, collectives=None)
        return elsewhere, f"it computed on a card, and here the processor does: {found.obstacle}"
    if by_auto and _absent_cards(config.cluster, found):
        # Sums of the workers themselves need nothing of the machine, and have the bits that they had.
        released = ("cards", "collectives") if config.cluster.collectives == NCCL else ("cards",)
        here = _with_devices(config, found, **dict.fromkeys(released))
        return here, _other_sums(config, here)
    require_devices(config, found)
    return config, ""


def _other_sums(config: Config, here: Config) -> str:
    """That sums are made in another order than they were, "" where they are not."""
    before, now = config.cluster.collectives, here.cluster.collectives
    return "" if before == now else f"cluster.collectives was {before}, and is {now} with the cards that are here"


def _with_devices(config: Config, found: Found, **released: None) -> Config:
    """The configuration with keys of its cluster released and filled in anew."""
    config = replace(config, cluster=replace(config.cluster, **released))
    return replace(config, cluster=take_devices(config, lambda: found))


def look_at(cluster: LocalCluster, look: Look = discover) -> Found:
    """The cards of this machine, unless the configuration wants none."""
    return NO_CARDS if cluster.device == CPU else look()


def devices_on_cards(config: Config) -> int:
    """How many logical devices have a card where workers do."""
    servers = server_processes(config) if config.cluster.server_device == GPU else 0
    return worker_processes(config) + servers


def require_devices(config: Config, found: Found) -> None:
    """Raise ResourceError where a configuration wants cards, or a precision of them, that are not there."""
    cluster = config.cluster
    if cluster.device_taken != GPU:
        return
    if found.obstacle:
        begun = "" if cluster.device == GPU else " with cluster.device_taken=gpu, as when the run began"
        raise ResourceError(
            f"cluster.device={cluster.device}{begun}: expected a card that can be used, but {found.obstacle}. "
            "`runner doctor` says what is there; cluster.device=cpu computes without a card, to other bits"
        )
    if absent := _absent_cards(cluster, found):
        raise ResourceError(
            f"cluster.cards={cluster.cards}: there is no card {', '.join(map(str, absent))}; expected numbers of "
            f"{', '.join(f'{card.number} ({card.name})' for card in found.cards)}. Several workers may have one card; "
            "cluster.cards=null takes those that are there in turn"
        )
    slow = [card for card in found.cards if card.number in (cluster.cards or ()) and not _has_bfloat16(card.capability)]
    if config.precision == "bfloat16" and slow:
        raise ResourceError(
            f"precision=bfloat16: {slow[0]} does not multiply bfloat16, which begins with compute capability "
            f"{BFLOAT16_CAPABILITY / 10:.1f}; use precision=float32, other cluster.cards, or cluster.device=cpu"
        )


def _absent_cards(cluster: LocalCluster, found: Found) -> list[int]:
    return sorted(set(cluster.cards or ()) - {card.number for card in found.cards})


def _has_bfloat16(capability: int) -> bool:
    return capability >= BFLOAT16_CAPABILITY


def reason(cluster: LocalCluster, found: Found) -> str:
    """Why a run computes on what it does. found: what is there now."""
    if cluster.device != AUTO:
        return f"cluster.device={cluster.device} asks for it"
    if cluster.device_taken == GPU:
        return f"cluster.device=auto takes a card where there is one, and there is {_names(found)}"
    if found.obstacle:
        return f"cluster.device=auto finds no card: {found.obstacle}"
    return f"cluster.device=auto found no card when the run began; there is {_names(found)} now"


def device_texts(devices: Mapping[str, int | None], found: Found) -> dict[str, str]:
    """Name of each device -> what it is on this machine. devices: name -> its card, None for the processor."""
    cards = {card.number: str(card) for card in found.cards}
    return {
        name: PROCESSOR if card is None else f"card {card}: {cards[card]}, driver {found.driver}"
        for name, card in devices.items()
    }


def _names(found: Found) -> str:
    return ", ".join(card.name for card in found.cards)
