"""A machine with cards that are not there: what is found on it, and kernels for the emulated card."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner.engine import kernel_table
from runner.kernels.gpu.discovery import Found, Library
from runner.kernels.gpu.driver import CardFacts, DriverFacts
from tests.gpu.cards import registry_of
from tests.kernels.gpu.emulation import EmulatedRuntime
from tests.kernels.gpu.fake_nccl import with_nccl

GIB = 1 << 30
CARD_BYTES = 80 * GIB
NO_DRIVER = Found(
    DriverFacts(fault="there is no NVIDIA driver: no libcuda"), (), "there is no NVIDIA driver: no libcuda"
)


def card(
    number: int = 0, capability: int = 90, memory_bytes: int = CARD_BYTES, free_bytes: int | None = None
) -> CardFacts:
    """A card that can be used."""
    return CardFacts(number, "Big Card", capability, memory_bytes, free_bytes)


def machine(*cards: CardFacts, obstacle: str = "") -> Found:
    """What is found on a machine with these cards."""
    return Found(DriverFacts("580.1", 13000, cards), (Library("CuPy", "14.2.0 (cupy-cuda13x)", ""),), obstacle)


@pytest.fixture
def card_kernels(compiled_sources: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels of a card, made for the emulated one, wherever a process would open its cards."""
    registry = registry_of(EmulatedRuntime(compiled_sources))
    monkeypatch.setattr(kernel_table, "load_card_kernels", lambda use, home: registry)


@pytest.fixture
def nccl_kernels(compiled_sources: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same, with sums over cards."""
    runtime = EmulatedRuntime(compiled_sources, cards=2)
    with_nccl(runtime)
    registry = registry_of(runtime)
    monkeypatch.setattr(kernel_table, "load_card_kernels", lambda use, home: registry)
