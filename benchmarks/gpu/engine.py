"""Where our side runs: on a card or, to try all of this without one, on processors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version

from benchmarks.protocol import peak_memory_mib
from runner.cache_folder import card_code_folder
from runner.engine.card_use import CardUse
from runner.engine.device import Cards, Cluster, local_cluster
from runner.engine.kernel_table import kernels_for
from runner.engine.local_session import LocalSession
from runner.engine.program import TRAIN, Program
from runner.kernels.registry import Registry

DISTRIBUTIONS = ("numpy", "cupy-cuda13x", "cupy-cuda12x", "nvidia-cublas", "nvidia-cudnn-cu13", "nvidia-cudnn-cu12")
"""Whose versions are told, where they are installed."""

STAGES = 2
"""Places on the card for each value on its way there."""


@dataclass(frozen=True)
class Engine:
    """What a session is opened with: one device, and the kernels for it."""

    cluster: Cluster
    registry: Registry
    versions: Mapping[str, str] = field(default_factory=dict)

    @contextmanager
    def opened(self, program: Program) -> Iterator[LocalSession]:
        """A session of this process."""
        session = LocalSession(program, self.cluster, self.registry)
        try:
            yield session
        finally:
            session.close()

    def memory_mib(self, session: LocalSession) -> float:
        """Memory of the card that a training step takes; on processors, the most that the process had.

        It is what was planned, which is what is allocated: the memory that bringing in the first values took, and
        that no training takes, is not in it.
        """
        (device,) = self.cluster.devices
        if device.card is None:
            return peak_memory_mib()
        (plan,) = session.plans(TRAIN).values()
        variables = sum(slot.layout.nbytes for slot in plan.variables.values())
        fed = sum(feed.spec.nbytes for feed in plan.feeds)
        return (variables + plan.arena_bytes + STAGES * fed) / 2**20


def engine_on(device: str, precision: str, *, compare_plans: bool = False) -> Engine:
    """The engine on "cuda" or on "cpu", for a precision of :data:`~benchmarks.gpu.networks.PRECISIONS`.

    compare_plans: see :class:`~runner.engine.card_use.CardUse`. Raises ResourceError where there is no card.
    """
    use = CardUse(precision == "tf32", compare_plans, str(card_code_folder()))
    cards = Cards((0,), use=use) if device == "cuda" else None
    cluster = local_cluster(1, cards=cards)
    return Engine(cluster, kernels_for(cluster.devices), _versions())


def _versions() -> Mapping[str, str]:
    found = {}
    for name in DISTRIBUTIONS:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
