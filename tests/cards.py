"""A machine with cards, as far as planning asks: what is found there, and kernels of the reference for them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from runner.engine.device import GPU
from runner.engine.kernel_table import load_kernels
from runner.kernels.gpu.discovery import Found, Library
from runner.kernels.gpu.driver import CardFacts, DriverFacts

GIB = 1 << 30
CARD_BYTES = 80 * GIB
NO_DRIVER = Found(
    DriverFacts(fault="there is no NVIDIA driver: no libcuda"), (), "there is no NVIDIA driver: no libcuda"
)


def card(number: int = 0, capability: int = 90, memory_bytes: int = CARD_BYTES) -> CardFacts:
    """A card that can be used."""
    return CardFacts(number, "Big Card", capability, memory_bytes)


def machine(*cards: CardFacts, obstacle: str = "") -> Found:
    """What is found on a machine with these cards."""
    return Found(DriverFacts("580.1", 13000, cards), (Library("CuPy", "14.2.0 (cupy-cuda13x)", ""),), obstacle)


@pytest.fixture
def card_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every op has a kernel on a card: enough to plan with, not to compute."""
    registry = load_kernels()
    kernels = dict(registry._kernels)
    for (op, kind), own in registry._kernels.items():
        if kind == "cpu" and (op, GPU) not in kernels:
            kernels[op, GPU] = [replace(each, device_type=GPU) for each in own if each.library == "numpy"]
    monkeypatch.setattr(registry, "_kernels", kernels)
