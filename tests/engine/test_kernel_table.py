"""Every op that kernels execute has one on the CPU."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from runner.engine import kernel_table
from runner.engine.card_use import CardUse
from runner.engine.device import Cards, local_cluster
from runner.engine.kernel_table import kernels_for, load_kernels
from runner.engine.op import OPS
from runner.errors import ResourceError
from runner.kernels.gpu.cuda import CardsError


def test_the_registry_covers_the_ops() -> None:
    kernels = load_kernels()
    executed = [op for op, definition in OPS.items() if definition.executed_by == "kernel"]
    assert all("cpu" in kernels.device_types(op) for op in executed)
    assert len(executed) > 60


def test_loading_kernels_is_all_a_fresh_process_needs() -> None:
    code = "from runner.engine.kernel_table import load_kernels; print(load_kernels().device_types('conv2d'))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "frozenset({'cpu'})"


def test_cards_are_opened_for_the_use_that_devices_have_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Any] = []

    def open_cards(*told: Any, **more: Any) -> None:
        opened.append((told, more))
        raise CardsError("there is none")

    monkeypatch.setattr(kernel_table, "open_cards", open_cards)
    use = CardUse(tf32=True, compare_plans=True, code_folder="/kept")
    cluster = local_cluster(1, servers=1, cards=Cards((2,), use=use))
    with pytest.raises(ResourceError, match="there is none"):
        kernels_for(cluster.devices)
    assert opened == [((True,), {"compare_plans": True, "code_folder": "/kept", "home": 2})]
