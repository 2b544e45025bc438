"""The one table of kernels: (op, device type) -> implementations in order of priority.

A kernel is used in two moments. When a Plan is made it is asked to ``arrange`` a node: which physical layouts it
takes and gives, how much scratch memory it wants, which outputs may take the place of inputs. When the Plan is made
executable it is asked to ``bind``: every argument, buffers included, is fixed, and what comes back is called once a
step without arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

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


class Meeting(Protocol):
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


class Registry:
    """Kernels of one process. Filled by importing kernel modules, and by plugins; read by the planner and the executor.

    join: how neighbouring native calls become one; whoever registers kernels in machine code sets it. platforms: of
    the device types other than the host's; whoever registers their kernels sets it. meetings: libraries
    between devices, by name; set with their kernels.
    """

    def __init__(self) -> None:
        self._kernels: dict[tuple[str, str], list[Kernel]] = {}
        self.join: Join = refuse_native_calls
        self.platforms: dict[str, PlatformOf] = {}
        self.meetings: dict[str, Meeting] = {}

    def copy(self) -> Registry:
        """A registry of the same kernels, to which others can be added."""
        copied = Registry()
        copied.join = self.join
        copied.platforms = dict(self.platforms)
        copied.meetings = dict(self.meetings)
        copied._kernels = {key: list(kernels) for key, kernels in self._kernels.items()}
        return copied

    def add(self, kernel: Kernel) -> None:
        """Register a kernel; two of one priority for the same op and device type are an error."""
        rivals = self._kernels.setdefault((kernel.op, kernel.device_type), [])
        if any(rival.priority == kernel.priority for rival in rivals):
            raise KernelError(f"op {kernel.op!r} on {kernel.device_type!r}: two kernels of priority {kernel.priority}")
        rivals.append(kernel)
        rivals.sort(key=lambda each: -each.priority)

    def choose(
        self,
        op: str,
        device_type: str,
        attributes: Attributes,
        inputs: Sequence[Spec],
        outputs: Sequence[Spec],
        offered: Sequence[Layout | None],
    ) -> Choice:
        """The first kernel by priority that takes these dtypes and can do this node; KernelError says who could."""
        wanted = FLOATS.intersection(spec.dtype for spec in (*inputs, *outputs))
        for kernel in self._kernels.get((op, device_type), ()):
            if wanted <= kernel.dtypes:
                arrangement = kernel.arrange(attributes, inputs, outputs, offered)
                if arrangement is not None:
                    return Choice(kernel, arrangement)
        able = sorted({device for (name, device) in self._kernels if name == op})
        raise KernelError(
            f"no kernel for op {op!r} with dtypes {sorted(wanted)} on device type {device_type!r}; "
            f"device types that have the op: {', '.join(able) or 'none'}"
        )

    def find(self, op: str, device_type: str, library: str) -> Kernel:
        """The kernel of one library; raises KernelError listing the libraries that have the op."""
        kernels = self._kernels.get((op, device_type), [])
        for kernel in kernels:
            if kernel.library == library:
                return kernel
        raise KernelError(
            f"op {op!r} on {device_type!r} has no kernel of {library!r}; "
            f"it has those of: {', '.join(kernel.library for kernel in kernels) or 'none'}"
        )

    def of(self, op: str, device_type: str) -> tuple[Kernel, ...]:
        """The kernels of an op on a device type, by priority."""
        return tuple(self._kernels.get((op, device_type), ()))

    def device_types(self, op: str) -> frozenset[str]:
        """Device types that have at least one kernel for the op."""
        return frozenset(device for (name, device) in self._kernels if name == op)

    def require(self, ops: Iterable[str], device_type: str, possible: Iterable[str] = ()) -> None:
        """Raise KernelError naming every op of ``ops`` without a kernel and every kernel without an op.

        possible: ops that have a kernel there or have none.
        """
        needed = set(ops)
        have = {name for (name, device) in self._kernels if device == device_type}
        gaps, strays = sorted(needed - have), sorted(have - needed - set(possible))
        if gaps or strays:
            raise KernelError(
                f"kernels for {device_type!r}: missing for ops {gaps}, registered for unknown ops {strays}"
            )


def native_calls(bound: Bound) -> Sequence[NativeCall]:
    """The calls of machine code that a node is; none where it is a function."""
    if isinstance(bound, NativeCall):
        return (bound,)
    return bound if isinstance(bound, Sequence) else ()


def refuse_native_calls(calls: Sequence[NativeCall]) -> Callable[[], int]:
    """What joins calls of machine code where none can be: raises KernelError."""
    raise KernelError(f"{len(calls)} calls of machine code are to be joined, but no library for that was loaded")


REGISTRY = Registry()


def arrange_plain(
    attributes: Attributes, inputs: Sequence[Spec], outputs: Sequence[Spec], offered: Sequence[Layout | None]
) -> Arrangement:
    """Everything in C order, nothing in place: what a NumPy function wants."""
    return Arrangement(tuple(map(plain, inputs)), tuple(map(plain, outputs)))


def reference(op: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a plain NumPy function as the reference kernel of ``op``.

    The function takes the inputs as arrays and the attributes as keywords and returns one array, or a tuple
    of arrays for an op with several outputs. Reference kernels run on device type "cpu" with priority 0.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        REGISTRY.add(function_kernel(op, function))
        return function

    return decorate


def function_kernel(
    op: str, function: Callable[..., Any], *, device_type: str = "cpu", library: str = "numpy"
) -> Kernel:
    """The kernel that a function of arrays is: results are copied to where they belong; inputs cannot be written.

    bfloat16 is computed in float32 and rounded once, at the end.
    """

    def bind(attributes: Attributes, arrangement: Arrangement, buffers: Buffers) -> Bound:
        inputs = [_read_only(operand.array) for operand in buffers.inputs]
        outputs = [operand.array for operand in buffers.outputs]
        compute = partial(_in_float32 if _has_bfloat16(inputs) else _directly, function, inputs, attributes)

        def call() -> None:
            result = compute()
            several = result if isinstance(result, tuple) else (result,)
            for output, value in zip(outputs, several, strict=True):
                _fill(output, value)

        return call

    return Kernel(op, device_type, library, 0, FLOATS, arrange_plain, bind)


def _directly(function: Callable[..., Any], inputs: Sequence[Array], attributes: Attributes) -> Any:
    return function(*inputs, **attributes)


def _in_float32(function: Callable[..., Any], inputs: Sequence[Array], attributes: Attributes) -> Any:
    wide = [each.astype(np.float32) if each.dtype.name == "bfloat16" else each for each in inputs]
    return function(*wide, **attributes)


def _has_bfloat16(inputs: Sequence[Array]) -> bool:
    return any(each.dtype.name == "bfloat16" for each in inputs)


def _read_only(array: Array) -> Array:
    view = array.view()
    view.flags.writeable = False
    return view


def _fill(output: Array, value: Any) -> None:
    # copyto would broadcast and convert; a kernel that computes another shape or dtype than its op says is wrong.
    array = np.asarray(value)
    if output.dtype.name == "bfloat16" and array.dtype == np.float32:
        array = array.astype(output.dtype)
    if array.shape != output.shape or array.dtype != output.dtype:
        raise TypeError(
            f"the kernel gave {array.dtype}{list(array.shape)}, expected {output.dtype}{list(output.shape)}"
        )
    np.copyto(output, array)


def as_array(value: Any, spec: Spec) -> Array:
    """View a fed value as an array of exactly ``spec``; raises ValueError naming both."""
    array = np.asarray(value)
    if array.shape != tuple(spec.shape) or array.dtype.name != spec.dtype:
        raise ValueError(f"came {array.dtype.name}{list(array.shape)}, expected {spec.dtype}{list(spec.shape)}")
    return array


def on_host(data: Bytes) -> NDArray[np.uint8]:
    """Memory of the host; raises TypeError for that of a card."""
    if not isinstance(data, np.ndarray):
        raise TypeError(f"memory of a card was taken for memory of the host: {data}")
    return data


def address_of(data: Bytes) -> int:
    """Where bytes begin, on the host or on a card."""
    return int(data.ctypes.data) if isinstance(data, np.ndarray) else int(data.address)  # type: ignore[attr-defined]


def numpy_dtype(name: str) -> np.dtype[Any]:
    """The NumPy dtype of a dtype name of the engine."""
    return np.dtype(name)


def allocate(nbytes: int) -> NDArray[np.uint8]:
    """Fresh zeroed bytes that begin at a multiple of 64."""
    raw = np.zeros(nbytes + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + nbytes]


ALIGNMENT = 64
"""Bytes: a cache line, and the widest vector register."""
