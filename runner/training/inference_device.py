"""What computes the forward passes of a trained network: one device of this machine, whatever trained it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from runner.config.configuration import fix_machine_values
from runner.config.devices import Look, look_at
from runner.config.schema import Config
from runner.engine.device import Cluster, local_cluster
from runner.kernels.gpu.discovery import discover
from runner.kernels.gpu.driver import CardFacts
from runner.strategies.single import Single
from runner.training.devices import cards_of, say_devices


@dataclass(frozen=True)
class OneDevice:
    """A network and the device of this machine that it is asked on.

    config: of its run, with the machine values of this device in place of those that trained it. cluster: the device.
    cards: of this machine. what, reason: the device and why it was taken, in words.
    """

    config: Config
    cluster: Cluster
    cards: tuple[CardFacts, ...]
    what: str
    reason: str


def one_device(config: Config, cores: int, look: Look = discover) -> OneDevice:
    """Take a card or the processor, as ``config.cluster`` asks and as runs do, and say in the log which and why.

    cores: of this machine. look: finds its cards. Raises ResourceError for a card that is asked for and not there, or
    that lacks the precision.
    """
    here = fix_machine_values(replace(config, parallelism=Single()), cores, look)
    found = look_at(here.cluster, look)
    cluster = local_cluster(1, cards=cards_of(here.cluster, workers=1, servers=0))
    told = say_devices(here.cluster, cluster, found)
    (what,) = told.devices.values()
    return OneDevice(here, cluster, found.cards, what, told.reason)
