"""The contract of kernels. A kernel is one way to compute an op on one device type, described by plain data.

First the planner calls ``arrange`` for a node and receives the layouts that the kernel reads and writes, the size of
its scratch memory, and the outputs that may share memory with inputs. Then the executor calls ``bind``, which fixes all
arguments including the buffers. The bound call runs once per step without arguments.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from runner.kernels.memory import Bytes, address_of, numpy_dtype, on_host

Array = NDArray[Any]
Attributes = Mapping[str, Any]
FLOATS = frozenset({"float32", "float64", "bfloat16"})


class Spec(Protocol):
    """The shape and dtype of a tensor, without its data."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> str: ...

    @property
    def nbytes(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Layout:
    """The memory layout of a tensor.

    tag: "" for contiguous C order, which every kernel supports; otherwise a name defined by the library that
    produced the layout, such as "aBcd16b". nbytes: size in memory, padding included.
    """

    tag: str
    nbytes: int

    @property
    def is_plain(self) -> bool:
        """Whether the layout is contiguous C order."""
        return not self.tag


Specs = Sequence[Spec]
Offers = Sequence[Layout | None]
"""The current layout of each input; None if the kernel may choose the layout."""


def plain(spec: Spec) -> Layout:
    """Return the layout of a tensor in contiguous C order."""
    return Layout("", spec.nbytes)


@dataclass(frozen=True)
class Arrangement:
    """The memory requirements of a kernel for one node.

    inputs, outputs: layouts of the tensors. scratch_bytes: size of the scratch memory of the call. in_place: pairs of
    positions (input, output) that may share memory if both have the same size and no later call reads the input.
    """

    inputs: tuple[Layout, ...]
    outputs: tuple[Layout, ...]
    scratch_bytes: int = 0
    in_place: tuple[tuple[int, int], ...] = ()


def all_plain(
    inputs: Specs, outputs: Specs, scratch_bytes: int = 0, in_place: tuple[tuple[int, int], ...] = ()
) -> Arrangement:
    """Return the arrangement with all tensors in C order."""
    return Arrangement(tuple(map(plain, inputs)), tuple(map(plain, outputs)), scratch_bytes, in_place)


@dataclass(frozen=True)
class Operand:
    """One tensor of a bound call: spec, layout and bytes (64-byte aligned)."""

    spec: Spec
    layout: Layout
    data: Bytes

    @property
    def address(self) -> int:
        """Address of the first byte."""
        return address_of(self.data)

    def entry(self, index: int) -> int:
        """Return the address of entry ``index`` along the first axis of a tensor in C order."""
        return self.address + self.spec.nbytes // self.spec.shape[0] * index

    @property
    def host(self) -> NDArray[np.uint8]:
        """The bytes in host memory; raises TypeError for GPU memory."""
        return on_host(self.data)

    @property
    def array(self) -> Array:
        """The bytes as an array. Raises ValueError if the layout is not plain and TypeError for GPU memory."""
        if not self.layout.is_plain:
            raise ValueError(f"a tensor in layout {self.layout.tag!r} was used as a plain array")
        count = self.spec.nbytes
        return self.host[:count].view(numpy_dtype(self.spec.dtype)).reshape(self.spec.shape)


@dataclass(frozen=True)
class Buffers:
    """The memory of one bound call. scratch: scratch memory of ``Arrangement.scratch_bytes`` bytes."""

    inputs: tuple[Operand, ...]
    outputs: tuple[Operand, ...]
    scratch: Bytes

    @property
    def specs(self) -> tuple[list[Spec], list[Spec]]:
        """The specs of inputs and of outputs."""
        return [each.spec for each in self.inputs], [each.spec for each in self.outputs]

    @property
    def host_scratch(self) -> NDArray[np.uint8]:
        """The scratch memory on the host; raises TypeError for GPU memory."""
        return on_host(self.scratch)


@dataclass(frozen=True)
class NativeCall:
    """A bound call in machine code: ``function(*arguments)`` returns 0, or another status if it fails.

    function: address of an ``int (*)(intptr_t, intptr_t, intptr_t, intptr_t)``. keep: objects that must outlive the
    call. explain: returns the message for a status, or is None if there are no messages; called directly after the
    failed call, before the inputs of the call change. retry: for a call that waits, a function to call after the status
    ``NOT_YET``; the native call is then repeated.
    """

    function: int
    arguments: tuple[int, int, int, int]
    keep: object
    explain: Callable[[int], str] | None = None
    retry: Callable[[], None] | None = None


NOT_YET = 1
"""Status of a native call that waits for an event of another process if the event has not happened in a short time."""


class DeviceCall:
    """A bound call that only the platform of its device can run."""

    __slots__ = ()


PythonCall = Callable[[], None]
Bound = NativeCall | Sequence[NativeCall] | PythonCall | DeviceCall
"""The work of one node in a step: machine-code calls in order, a Python function, or a device call."""


Arrange = Callable[[Attributes, Specs, Specs, Offers], Arrangement | None]
Bind = Callable[[Attributes, Arrangement, Buffers], Bound]


Join = Callable[[Sequence[NativeCall]], Callable[[], int]]
"""(calls) -> function that runs the calls in order and returns 0, or (1 + index of the failed call) << 16 | status."""


@dataclass(frozen=True)
class Doorbells:
    """Native calls on a doorbell: 8 aligned bytes that the sender of a value writes and the receiver reads.

    Each of the two processes has a current number: an ``int64`` in its own memory.

    ring: (bell, number) -> the call that stores the current number in the bell, after all earlier stores, and wakes the
    receiver. wait: (bell, number, spins) -> the call that returns 0 if the bell has the current number; all stores of
    the sender before the ring are then visible. Otherwise the call reads the bell ``spins`` more times, then sleeps for
    at most ``SLEEP_S`` until the next ring, and returns ``NOT_YET`` if the bell still has another number.
    """

    ring: Callable[[Array, Array], NativeCall]
    wait: Callable[[Array, Array, int], NativeCall]


SLEEP_S = 0.02
"""Longest sleep in seconds of a call that waits for a doorbell."""


class KernelError(LookupError):
    """An op has no kernel on a device type, or several kernels of equal priority."""


@dataclass(frozen=True)
class Kernel:
    """One way to compute an op on one device type.

    library: the library that computes, as recorded in summary.json ("numpy", "onednn", ...).
    priority: kernels of higher priority are tried first.
    dtypes: allowed dtypes of floating-point inputs and outputs.
    arrange: (attributes, input specs, output specs, offered layouts) -> Arrangement, or None if the kernel does not
        support the node. An offered layout is the current layout of the input; None lets the kernel choose, as for a
        variable that no kernel has read yet. The result depends only on the arguments and on the caller's number of
        kernel threads; ``bind`` must be called with the same number.
    bind: (attributes, arrangement, buffers) -> the call that computes the outputs from the inputs.
    function: the function of NumPy arrays that the kernel wraps, or None.
    """

    op: str
    device_type: str
    library: str
    priority: int
    dtypes: frozenset[str]
    arrange: Arrange
    bind: Bind
    function: Callable[..., Any] | None = None


@dataclass(frozen=True)
class Choice:
    """The kernel chosen for a node and its memory requirements."""

    kernel: Kernel
    arrangement: Arrangement


def as_array(value: Any, spec: Spec) -> Array:
    """Return a fed or received value as an array in the byte order of this machine, if possible without a copy.

    Raises ValueError if the shape or the dtype differs from ``spec``.
    """
    array, dtype = np.asarray(value), numpy_dtype(spec.dtype)
    # Names, which do not contain the byte order, are compared last, because computing a name takes a microsecond.
    if array.dtype != dtype and array.dtype.name == spec.dtype:
        array = array.astype(dtype)
    if array.shape != tuple(spec.shape) or array.dtype != dtype:
        raise ValueError(f"got {array.dtype.name}{list(array.shape)}, expected {spec.dtype}{list(spec.shape)}")
    return array


def native_calls(bound: Bound) -> Sequence[NativeCall]:
    """Return the machine-code calls of a bound node; empty for a Python function or a device call."""
    if isinstance(bound, NativeCall):
        return (bound,)
    return bound if isinstance(bound, Sequence) else ()


def refuse_native_calls(calls: Sequence[NativeCall]) -> Callable[[], int]:
    """Raise KernelError: no loaded library can join machine-code calls."""
    raise KernelError(f"{len(calls)} machine-code calls: no library that joins them is loaded")
