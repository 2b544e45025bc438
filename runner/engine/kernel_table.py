"""The kernels an engine process may use: the one place where kernel modules are loaded."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

import runner.engine.ops
import runner.kernels.reference  # noqa: F401 - registers the kernels
from runner.engine.card_use import CardUse
from runner.engine.device import Device
from runner.engine.op import OPS
from runner.errors import ResourceError
from runner.kernels.cpu.loading import NativeLibrary, register
from runner.kernels.gpu.cuda import CardsError, open_cards
from runner.kernels.gpu.loading import register_cards
from runner.kernels.registry import REGISTRY, Registry


def load_kernels() -> Registry:
    """Return the registry, holding a kernel on "cpu" for every op that kernels execute.

    Raises KernelError naming ops without a kernel and kernels without an op.
    """
    native_libraries()
    REGISTRY.require((name for name, definition in OPS.items() if definition.executed_by == "kernel"), "cpu")
    return REGISTRY


def kernels_for(devices: Iterable[Device]) -> Registry:
    """The kernels that these devices need: those of the host, and those of cards where one of them is on a card.

    Raises ResourceError saying what is missing where there is no card, or no library for it.
    """
    for device in devices:
        if device.card is not None:
            return load_card_kernels(device.use, device.card)
    return load_kernels()


@cache
def load_card_kernels(use: CardUse, home: int) -> Registry:
    """The kernels of the host and of the cards of this process. home: the card that plans are made on."""
    registry = load_kernels().copy()
    try:
        runtime = open_cards(use.tf32, compare_plans=use.compare_plans, code_folder=use.code_folder, home=home)
    except CardsError as error:
        raise ResourceError(str(error)) from error
    register_cards(registry, runtime)
    require_card_kernels(registry)
    return registry


def require_card_kernels(registry: Registry) -> None:
    """Raise KernelError where an op that kernels execute has none on cards, or one there is not an op's."""
    by = {
        how: [name for name, definition in OPS.items() if definition.executed_by == how]
        for how in ("kernel", "communicator")
    }
    registry.require(by["kernel"], "gpu", by["communicator"])


@cache
def native_libraries() -> tuple[NativeLibrary, ...]:
    """The libraries of fast kernels: those in use, and those that this machine lacks with the reason."""
    return register(REGISTRY)
