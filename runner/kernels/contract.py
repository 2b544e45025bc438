"""What a kernel is: one way to compute an op, told as plain data.

A kernel is used in two moments. When a Plan is made it is asked to ``arrange`` a node: which physical layouts it
takes and gives, how much scratch memory it wants, which outputs may take the place of inputs. When the Plan is made
executable it is asked to ``bind``: every argument, buffers included, is fixed, and what comes back is called once a
step without arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from runner.kernels.memory import address_of, numpy_dtype, on_host
from runner.kernels.platform import Bytes, DeviceCall, Platform

Array = NDArray[Any]
Attributes = Mapping[str, Any]
FLOATS = frozenset({"float32", "float64", "bfloat16"})


class Spec(Protocol):
    """What a kernel may know of a tensor before it sees one."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> str: ...

    @property
    def nbytes(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Layout:
    """How a tensor lies in memory.

    tag: "" for C order without gaps, which every kernel and every user understands; otherwise a name that the library
    which gave it understands, such as "aBcd16b". nbytes: memory it takes, padding included.
    """

    tag: str
    nbytes: int

    @property
    def is_plain(self) -> bool:
        """Whether it is C order without gaps."""
        return not self.tag


def plain(spec: Spec) -> Layout:
    """C order without gaps."""
    return Layout("", spec.nbytes)


@dataclass(frozen=True)
class Arrangement:
    """What a kernel asks of memory for one node.

    inputs, outputs: the layout of each. scratch_bytes: memory it may spoil during the call. in_place: pairs (input,
    output) that may share memory, where input and output have the same bytes and the input is not needed afterwards.
    """

    inputs: tuple[Layout, ...]
    outputs: tuple[Layout, ...]
    scratch_bytes: int = 0
    in_place: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class Operand:
    """One tensor of a bound call: what it is, how it lies, and its bytes, 64-byte aligned."""

    spec: Spec
    layout: Layout
    data: Bytes

    @property
    def address(self) -> int:
        """Where the bytes begin."""
        return address_of(self.data)

    @property
    def host(self) -> NDArray[np.uint8]:
        """The bytes, where the host has them; raises TypeError where a card does."""
        return on_host(self.data)

    @property
    def array(self) -> Array:
        """The bytes as an array of the spec; only for plain layouts, and on the host."""
        if not self.layout.is_plain:
            raise ValueError(f"a tensor in layout {self.layout.tag!r} was taken for a plain array")
        count = self.spec.nbytes
        return self.host[:count].view(numpy_dtype(self.spec.dtype)).reshape(self.spec.shape)


@dataclass(frozen=True)
class Buffers:
    """The memory of one bound call. scratch: as many bytes as the arrangement asked for."""

    inputs: tuple[Operand, ...]
    outputs: tuple[Operand, ...]
    scratch: Bytes

    @property
    def host_scratch(self) -> NDArray[np.uint8]:
        """The scratch memory, where the host has it; raises TypeError where a card does."""
        return on_host(self.scratch)


@dataclass(frozen=True)
class NativeCall:
    """A bound call in machine code: ``function(*arguments)`` returns 0, or a status that is an error.

    function: address of an ``int (*)(intptr_t, intptr_t, intptr_t, intptr_t)``. keep: what must stay alive with it.
    explain: what a status means, for the user; asked right after the call that returned it, while its inputs are as
        they were. None where a status is only a number.
    """

    function: int
    arguments: tuple[int, int, int, int]
    keep: object
    explain: Callable[[int], str] | None = None


PythonCall = Callable[[], None]
Bound = NativeCall | Sequence[NativeCall] | PythonCall | DeviceCall
"""What one node does in a step: calls of machine code, one after the other and at least one, a function, or what the
platform of its device understands."""


class MeetingLibrary(Protocol):
    """A library for what devices of several processes compute together."""

    def unique_id(self) -> bytes:
        """By which processes find each other. Raises RuntimeError where they cannot."""
        ...

    def join(self, unique_id: bytes, rank: int, size: int) -> None:
        """Make the device that the thread uses number ``rank`` of ``size``; returns when all have joined.

        Raises RuntimeError where it cannot.
        """
        ...

    def leave(self) -> None:
        """Give up what was joined; all processes do, when nothing is under way any more."""
        ...


PlatformOf = Callable[[int], Platform]
"""Makes the platform of a logical device on the card of a number."""

Arrange = Callable[[Attributes, Sequence[Spec], Sequence[Spec], Sequence[Layout | None]], Arrangement | None]
Bind = Callable[[Attributes, Arrangement, Buffers], Bound]


Join = Callable[[Sequence[NativeCall]], Callable[[], int]]
"""Makes one call of several, run in order. It returns 0, or (1 + position of the call that failed) << 16 | status."""


class KernelError(LookupError):
    """No kernel, or more than one of the same rank, for an op on a device type."""


@dataclass(frozen=True)
class Kernel:
    """One way to compute an op on one device type.

    library: what does the work, as told in summary.json ("numpy", "onednn", ...).
    priority: higher is tried first.
    dtypes: the dtypes its floating inputs and outputs may have.
    arrange: (attributes, input specs, output specs, offered layouts) -> Arrangement, or None where the kernel cannot
        do this node. An offered layout is that of the input as it is; None means that it is the kernel's to choose,
        as the layout of a variable that nobody has read yet. A pure function of these and of the number of threads
        that the caller has for kernels; the caller of ``bind`` has as many.
    bind: (attributes, arrangement, buffers) -> what computes the outputs from the inputs.
    """

    op: str
    device_type: str
    library: str
    priority: int
    dtypes: frozenset[str]
    arrange: Arrange
    bind: Bind


@dataclass(frozen=True)
class Choice:
    """The kernel that a node is given, and what it asks of memory."""

    kernel: Kernel
    arrangement: Arrangement


def as_array(value: Any, spec: Spec) -> Array:
    """View a fed value as an array of exactly ``spec``; raises ValueError naming both."""
    array = np.asarray(value)
    if array.shape != tuple(spec.shape) or array.dtype.name != spec.dtype:
        raise ValueError(f"came {array.dtype.name}{list(array.shape)}, expected {spec.dtype}{list(spec.shape)}")
    return array


def native_calls(bound: Bound) -> Sequence[NativeCall]:
    """The calls of machine code that a node is; none where it is a function."""
    if isinstance(bound, NativeCall):
        return (bound,)
    return bound if isinstance(bound, Sequence) else ()


def refuse_native_calls(calls: Sequence[NativeCall]) -> Callable[[], int]:
    """What joins calls of machine code where none can be: raises KernelError."""
    raise KernelError(f"{len(calls)} calls of machine code are to be joined, but no library for that was loaded")
