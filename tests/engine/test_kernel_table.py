"""Every op that kernels execute has one on the CPU."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from runner.engine import kernel_table
from runner.engine.card_use import CardUse
from runner.engine.device import Cards, local_cluster
from runner.engine.kernel_table import kernels_for, load_card_kernels, load_kernels
from runner.engine.op import OPS
from runner.errors import ResourceError
from runner.kernels.gpu.cuda import CardsError
from runner.kernels.gpu.runtime import Runtime
from tests.kernels.gpu.emulation import EmulatedRuntime


def test_the_registry_covers_the_ops() -> None:
    kernels = load_kernels()
    executed = [op for op, definition in OPS.items() if definition.executed_by == "kernel"]
    assert all("cpu" in kernels.device_types(op) for op in executed)
    assert len(executed) > 60


def test_loading_kernels_is_all_a_fresh_process_needs() -> None:
    code = "from runner.engine.kernel_table import load_kernels; print(load_kernels().device_types('conv2d'))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "frozenset({'cpu'})"


USE = CardUse(tf32=True, compare_plans=True, code_folder="/kept")
ON_CARDS = local_cluster(1, cards=Cards((2,), use=USE)).devices


def test_cards_are_opened_once_and_only_for_devices_on_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Any] = []

    def opening(*told: Any, **more: Any) -> Runtime:
        opened.append((told, more))
        return EmulatedRuntime(tmp_path)

    monkeypatch.setattr(kernel_table, "open_cards", opening)
    load_card_kernels.cache_clear()
    try:
        assert kernels_for(local_cluster(1).devices) is load_kernels()
        assert opened == []
        found = kernels_for(ON_CARDS)
        assert kernels_for(ON_CARDS) is found
    finally:
        load_card_kernels.cache_clear()
    assert opened == [((True,), {"compare_plans": True, "code_folder": "/kept", "home": 2})]
    assert found.device_types("conv2d") == {"cpu", "gpu"}
    assert load_kernels().device_types("conv2d") == {"cpu"}


def test_what_keeps_cards_from_being_opened_is_what_the_user_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    def opening(*told: Any, **more: Any) -> Runtime:
        raise CardsError("CUDA finds none; look at CUDA_VISIBLE_DEVICES")

    monkeypatch.setattr(kernel_table, "open_cards", opening)
    load_card_kernels.cache_clear()
    with pytest.raises(ResourceError, match=r"^CUDA finds none; look at CUDA_VISIBLE_DEVICES$"):
        kernels_for(ON_CARDS)
