"""The device on which ``eval`` and ``predict`` compute: the keys of the cluster that training runs have for it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from runner.config.check import check_devices
from runner.config.configuration import from_plain
from runner.config.overriding import overridden
from runner.config.schema import Config, LocalCluster
from runner.engine.graph.device import CPU
from runner.errors import ConfigError

DEVICE_KEYS = ("cluster.device", "cluster.gpus", "cluster.tf32")
DEVICE_HELP = "cluster.device=cpu, gpu or auto, cluster.gpus=[K] and cluster.tf32=true say what computes, as in a run"


def split_device(arguments: Iterable[str]) -> tuple[list[str], list[str]]:
    """Return what asks for a device, "KEY=VALUE" with one of :data:`DEVICE_KEYS`, and the rest of ``arguments``."""
    asked: list[str] = []
    others: list[str] = []
    for argument in arguments:
        key, is_pair, _ = argument.partition("=")
        (asked if is_pair and key in DEVICE_KEYS else others).append(argument)
    return asked, others


def with_device(stored: Config, asked: Sequence[str]) -> Config:
    """The configuration of a trained network with a cluster that asks for one device, by default ``auto``.

    What trained it, and where, does not count: only whether GPUs rounded to TF32 stays, unless it is named. Raises
    ConfigError for what is no device, or more than one.
    """
    tf32 = stored.cluster.tf32 and f"cluster.device={CPU}" not in asked
    fresh = replace(stored, cluster=LocalCluster(tf32=tf32))
    config = from_plain(overridden(fresh, asked, DEVICE_KEYS, f"expected one of {', '.join(DEVICE_KEYS)}"))
    check_devices(config)
    gpus = config.cluster.gpus
    if gpus is not None and len(gpus) != 1:
        raise ConfigError(
            f"cluster.gpus={gpus}: one device computes, whatever trained the network; expected the number of one "
            "GPU, such as [0], or null for the first"
        )
    return config
