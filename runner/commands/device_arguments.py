"""The device on which ``eval`` and ``predict`` compute: the keys of the cluster that training runs have for it."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from runner.config.check import check_devices
from runner.config.configuration import from_plain
from runner.config.overriding import overridden
from runner.config.schema import Config, LocalCluster
from runner.engine.graph.device import CPU
from runner.errors import ConfigError

DEVICE_KEYS = ("cluster.device", "cluster.gpus", "cluster.tf32")
DEVICE_HELP = "cluster.device=cpu, gpu or auto, cluster.gpus=[K] and cluster.tf32=true choose the device, as in a run"


def split_device(arguments: Iterable[str]) -> tuple[list[str], list[str]]:
    """Split arguments into those of the form KEY=VALUE with a key of :data:`DEVICE_KEYS`, and the others."""
    asked: list[str] = []
    others: list[str] = []
    for argument in arguments:
        key, is_pair, _ = argument.partition("=")
        (asked if is_pair and key in DEVICE_KEYS else others).append(argument)
    return asked, others


def with_device(stored: Config, asked: Sequence[str]) -> Config:
    """Return the configuration of a trained network with a cluster of one device, by default ``auto``.

    Of the stored cluster only ``tf32`` is kept, unless the arguments name it. Raises ConfigError if the arguments name
    no device, or more than one.
    """
    tf32 = stored.cluster.tf32 and f"cluster.device={CPU}" not in asked
    fresh = replace(stored, cluster=LocalCluster(tf32=tf32))
    config = from_plain(overridden(fresh, asked, DEVICE_KEYS, f"expected one of {', '.join(DEVICE_KEYS)}"))
    check_devices(config)
    gpus = config.cluster.gpus
    if gpus is not None and len(gpus) != 1:
        raise ConfigError(f"cluster.gpus={gpus}: expected the number of one GPU, such as [0], or null for the first")
    return config
