"""The one table of kernels: (op, device type) -> implementations in order of priority.

A kernel is bound once, when a Plan is made executable: ``bind(attributes, inputs, outputs)`` receives the
node's attributes and the specs of its inputs and outputs and returns the function the hot loop calls with
arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Bound = Callable[..., Sequence[Array]]
Binder = Callable[[Mapping[str, Any], Sequence["Spec"], Sequence["Spec"]], Bound]


class Spec(Protocol):
    """What a kernel may know of a tensor before it sees one."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> str: ...


class KernelError(LookupError):
    """No kernel, or more than one of the same rank, for an op on a device type."""


@dataclass(frozen=True)
class Kernel:
    """One way to compute an op on one device type.

    library: what does the work, as told in summary.json ("numpy", "onednn", ...).
    priority: higher is tried first.
    dtypes: the dtypes its floating inputs and outputs may have.
    """

    op: str
    device_type: str
    library: str
    priority: int
    dtypes: frozenset[str]
    bind: Binder


class Registry:
    """Kernels of one process. Filled by importing kernel modules, read by the executor."""

    def __init__(self) -> None:
        self._kernels: dict[tuple[str, str], list[Kernel]] = {}

    def add(self, kernel: Kernel) -> None:
        """Register a kernel; two of one priority for the same op and device type are an error."""
        rivals = self._kernels.setdefault((kernel.op, kernel.device_type), [])
        if any(rival.priority == kernel.priority for rival in rivals):
            raise KernelError(f"op {kernel.op!r} on {kernel.device_type!r}: two kernels of priority {kernel.priority}")
        rivals.append(kernel)
        rivals.sort(key=lambda each: -each.priority)

    def select(self, op: str, device_type: str, dtypes: Iterable[str]) -> Kernel:
        """Return the first kernel by priority that takes these dtypes; KernelError says who could."""
        wanted = set(dtypes) & {"float32", "float64"}
        for kernel in self._kernels.get((op, device_type), ()):
            if wanted <= kernel.dtypes:
                return kernel
        able = sorted({device for (name, device) in self._kernels if name == op})
        raise KernelError(
            f"no kernel for op {op!r} with dtypes {sorted(wanted)} on device type {device_type!r}; "
            f"device types that have the op: {', '.join(able) or 'none'}"
        )

    def device_types(self, op: str) -> frozenset[str]:
        """Device types that have at least one kernel for the op."""
        return frozenset(device for (name, device) in self._kernels if name == op)

    def require(self, ops: Iterable[str], device_type: str) -> None:
        """Raise KernelError naming every op of ``ops`` without a kernel and every kernel without an op."""
        needed = set(ops)
        have = {name for (name, device) in self._kernels if device == device_type}
        gaps, strays = sorted(needed - have), sorted(have - needed)
        if gaps or strays:
            raise KernelError(
                f"kernels for {device_type!r}: missing for ops {gaps}, registered for unknown ops {strays}"
            )


REGISTRY = Registry()


def reference(op: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a plain NumPy function as the reference kernel of ``op``.

    The function takes the inputs as arrays and the attributes as keywords and returns one array, or a tuple
    of arrays for an op with several outputs. Reference kernels run on device type "cpu" with priority 0.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        def bind(attributes: Mapping[str, Any], inputs: Sequence[Spec], outputs: Sequence[Spec]) -> Bound:
            call = partial(function, **attributes) if attributes else function

            def bound(*arrays: Array) -> Sequence[Array]:
                result = call(*arrays)
                several = result if isinstance(result, tuple) else (result,)
                # NumPy turns results of no dimension into scalars; outputs are always arrays.
                return tuple(np.asarray(output) for output in several)

            return bound

        REGISTRY.add(Kernel(op, "cpu", "numpy", 0, frozenset({"float32", "float64"}), bind))
        return function

    return decorate


def as_array(value: Any, spec: Spec) -> Array:
    """View or convert a fed value as an array of exactly ``spec``; raises ValueError naming both."""
    array = np.asarray(value)
    if array.shape != tuple(spec.shape) or array.dtype.name != spec.dtype:
        raise ValueError(f"came {array.dtype.name}{list(array.shape)}, expected {spec.dtype}{list(spec.shape)}")
    return array
