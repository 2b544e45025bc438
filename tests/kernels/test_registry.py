"""The table of kernels: priorities, gaps and duplicates."""

from __future__ import annotations

import numpy as np
import pytest

from runner.engine.tensor import TensorSpec
from runner.kernels.registry import Kernel, KernelError, Registry, as_array

BOTH = frozenset({"float32", "float64"})


def _kernel(op: str, priority: int = 0, dtypes: frozenset[str] = BOTH, device_type: str = "cpu") -> Kernel:
    return Kernel(op, device_type, f"library-{priority}", priority, dtypes, lambda *_: lambda *arrays: arrays)


def _registry(*kernels: Kernel) -> Registry:
    registry = Registry()
    for kernel in kernels:
        registry.add(kernel)
    return registry


def test_the_highest_priority_is_taken() -> None:
    registry = _registry(_kernel("relu", 0), _kernel("relu", 10), _kernel("relu", 5))
    assert registry.select("relu", "cpu", ["float32"]).priority == 10


def test_a_kernel_that_lacks_the_dtype_is_passed_over() -> None:
    registry = _registry(_kernel("relu", 10, frozenset({"float32"})), _kernel("relu", 0))
    assert registry.select("relu", "cpu", ["float64"]).priority == 0
    assert registry.select("relu", "cpu", ["float32", "int64"]).priority == 10


def test_two_kernels_of_one_priority_are_an_error() -> None:
    with pytest.raises(KernelError, match="op 'relu' on 'cpu': two kernels of priority 5"):
        _registry(_kernel("relu", 5), _kernel("relu", 5))


def test_a_missing_kernel_names_the_devices_that_have_one() -> None:
    registry = _registry(_kernel("relu", device_type="gpu"), _kernel("relu", device_type="tpu"))
    with pytest.raises(
        KernelError,
        match=r"no kernel for op 'relu' with dtypes \['float32'\] on device type 'cpu'; .* the op: gpu, tpu",
    ):
        registry.select("relu", "cpu", ["float32"])
    with pytest.raises(KernelError, match="device types that have the op: none"):
        registry.select("tanh", "cpu", ["float32"])


def test_gaps_and_strays_are_named() -> None:
    registry = _registry(_kernel("relu"), _kernel("swish"))
    with pytest.raises(KernelError, match=r"missing for ops \['tanh'\], registered for unknown ops \['swish'\]"):
        registry.require(iter(["relu", "tanh"]), "cpu")
    registry.require(iter(["relu", "swish"]), "cpu")


def test_devices_of_an_op() -> None:
    registry = _registry(_kernel("relu"), _kernel("relu", device_type="gpu"), _kernel("tanh"))
    assert registry.device_types("relu") == {"cpu", "gpu"}


def test_fed_values_are_not_promoted() -> None:
    spec = TensorSpec((2,), "float32")
    assert as_array(np.ones(2, np.float32), spec).dtype == np.float32
    with pytest.raises(ValueError, match=r"came float64\[2\], expected float32\[2\]"):
        as_array([1.0, 2.0], spec)
    with pytest.raises(ValueError, match=r"came float32\[2, 1\], expected float32\[2\]"):
        as_array(np.ones((2, 1), np.float32), spec)
