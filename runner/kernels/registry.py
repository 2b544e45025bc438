"""The table of kernels: (op, device type) -> implementations in order of priority."""

import copy
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from runner.kernels.contract import (
    FLOATS,
    Attributes,
    Choice,
    Doorbells,
    Join,
    Kernel,
    KernelError,
    Offers,
    Spec,
    refuse_native_calls,
)
from runner.kernels.functions import function_kernel, update_kernel
from runner.kernels.platform import CommunicatorLibrary, PlatformOf


class Registry:
    """The kernels of one process, registered by kernel modules and plugins, read by the planner and the executor.

    join: joins adjacent machine-code calls. platforms: device type -> constructor of its platform, except for the host.
    Both are set by the modules that register the kernels. communicators: collective libraries by name. doorbells: calls
    on doorbells in shared memory, or None if doorbells are not supported.
    """

    def __init__(self) -> None:
        self._kernels: dict[tuple[str, str], list[Kernel]] = {}
        self.join: Join = refuse_native_calls
        self.platforms: dict[str, PlatformOf] = {}
        self.communicators: dict[str, CommunicatorLibrary] = {}
        self.doorbells: Doorbells | None = None

    def __len__(self) -> int:
        return sum(map(len, self._kernels.values()))

    def copy(self) -> "Registry":
        """Return a copy; kernels added to the copy do not change this registry."""
        copied = copy.copy(self)
        copied.platforms = dict(self.platforms)
        copied.communicators = dict(self.communicators)
        copied._kernels = {key: list(kernels) for key, kernels in self._kernels.items()}
        return copied

    def add(self, kernel: Kernel) -> None:
        """Register a kernel. Raises KernelError if the op has a kernel of equal priority on the device type."""
        rivals = self._kernels.setdefault((kernel.op, kernel.device_type), [])
        if any(rival.priority == kernel.priority for rival in rivals):
            raise KernelError(
                f"op {kernel.op!r} on {kernel.device_type!r}: two kernels have priority {kernel.priority}"
            )
        rivals.append(kernel)
        rivals.sort(key=lambda each: -each.priority)

    def choose(
        self,
        op: str,
        device_type: str,
        attributes: Attributes,
        inputs: Sequence[Spec],
        outputs: Sequence[Spec],
        offered: Offers,
    ) -> Choice:
        """Return the kernel of highest priority that supports the node; raises KernelError if there is none."""
        wanted = FLOATS.intersection(spec.dtype for spec in (*inputs, *outputs))
        for kernel in self.of(op, device_type):
            if wanted <= kernel.dtypes:
                arrangement = kernel.arrange(attributes, inputs, outputs, offered)
                if arrangement is not None:
                    return Choice(kernel, arrangement)
        raise KernelError(
            f"no kernel for op {op!r} with dtypes {sorted(wanted)} on device type {device_type!r}; "
            f"device types that have the op: {', '.join(sorted(self.device_types(op))) or 'none'}"
        )

    def find(self, op: str, device_type: str, library: str) -> Kernel:
        """Return the kernel of one library; raises KernelError, which lists the other libraries, if there is none."""
        kernels = self.of(op, device_type)
        for kernel in kernels:
            if kernel.library == library:
                return kernel
        raise KernelError(
            f"op {op!r} on {device_type!r} has no kernel of {library!r}; "
            f"libraries with a kernel: {', '.join(kernel.library for kernel in kernels) or 'none'}"
        )

    def of(self, op: str, device_type: str) -> tuple[Kernel, ...]:
        """Return the kernels of an op on a device type, by priority."""
        return tuple(self._kernels.get((op, device_type), ()))

    def device_types(self, op: str) -> frozenset[str]:
        """Return the device types with at least one kernel for the op."""
        return frozenset(device for (name, device) in self._kernels if name == op)

    def require(self, ops: Iterable[str], device_type: str, possible: Iterable[str] = ()) -> None:
        """Raise KernelError, listing all cases, if an op of ``ops`` has no kernel or a kernel has an unknown op.

        possible: ops for which a kernel is optional.
        """
        needed = set(ops)
        have = {name for (name, device) in self._kernels if device == device_type}
        gaps, strays = sorted(needed - have), sorted(have - needed - set(possible))
        if gaps or strays:
            raise KernelError(
                f"kernels for {device_type!r}: missing for ops {gaps}, registered for unknown ops {strays}"
            )


REGISTRY = Registry()


def reference(op: str, *, updates: bool = False) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a plain NumPy function as the reference kernel of ``op``.

    The function takes the inputs as arrays and the attributes as keywords and returns one array, or a tuple
    of arrays for an op with several outputs. If ``updates``, it instead changes the first array, which is the output.
    Reference kernels run on device type "cpu" with priority 0.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        REGISTRY.add((update_kernel if updates else function_kernel)(op, function))
        return function

    return decorate
