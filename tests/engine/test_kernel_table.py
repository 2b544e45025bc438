"""Every op that kernels execute has one on the CPU."""

from __future__ import annotations

import subprocess
import sys

from runner.engine.kernel_table import load_kernels
from runner.engine.op import OPS


def test_the_registry_covers_the_ops() -> None:
    kernels = load_kernels()
    executed = [op for op, definition in OPS.items() if definition.executed_by == "kernel"]
    assert all("cpu" in kernels.device_types(op) for op in executed)
    assert len(executed) > 60


def test_loading_kernels_is_all_a_fresh_process_needs() -> None:
    code = "from runner.engine.kernel_table import load_kernels; print(load_kernels().device_types('conv2d'))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "frozenset({'cpu'})"
