"""Kernels with the results of the reference kernels, unusual layouts and aggressive use of memory.

Before a call reads its inputs, it fills its outputs and scratch memory with garbage. Only inputs that may share
memory with an output are read earlier. After the computation, the call fills its scratch memory with garbage again.
Therefore, if the planner places a value wrongly, the value is destroyed.
"""

import random
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from runner.engine.graph import OPS
from runner.engine.run.kernel_table import load_kernels
from runner.kernels import contract
from runner.kernels.contract import Arrange, Arrangement, Array, Attributes, Bound, Buffers, Layout, Operand, Spec
from runner.kernels.memory import ALIGNMENT, allocate
from runner.kernels.registry import Registry

Specs = Sequence[Spec]
Offered = Sequence[Layout | None]

PLAIN = ""
REVERSED = "reversed"  # a layout with all bytes in reverse order, after some padding
MASKED = "masked"  # a layout with all bytes inverted, before some padding
NOT_PLAIN = (REVERSED, MASKED)
VIA_PLAIN = frozenset((a, b) for a in (PLAIN, *NOT_PLAIN) for b in (PLAIN, *NOT_PLAIN) if a == b or PLAIN in (a, b))
"""The conversions that every library must support: to and from the plain layout, and copies."""

_PADDING_BYTES = {REVERSED: 24, MASKED: 8}
_PADDING, _GARBAGE = 0x77, 0xAB


def layout(tag: str, spec: Spec) -> Layout:
    return Layout(tag, spec.nbytes + _PADDING_BYTES[tag]) if tag else contract.plain(spec)


def encode(operand: Operand, array: Array) -> None:
    """Write an array into an operand, in the operand's layout."""
    raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    if operand.layout.tag == REVERSED:
        raw = np.concatenate([np.full(_PADDING_BYTES[REVERSED], _PADDING, np.uint8), raw[::-1]])
    elif operand.layout.tag == MASKED:
        raw = np.concatenate([~raw, np.full(_PADDING_BYTES[MASKED], _PADDING, np.uint8)])
    operand.data[:] = raw


def decode(operand: Operand) -> Array:
    """Return a copy of an operand's value, or garbage if its padding is not that of :func:`encode`."""
    raw, count = operand.data, operand.spec.nbytes
    if operand.layout.tag == REVERSED:
        padding, raw = raw[:-count] if count else raw, raw[::-1][:count]
    elif operand.layout.tag == MASKED:
        padding, raw = raw[count:], ~raw[:count]
    else:
        padding = raw[count:]
    if (padding != _PADDING).any():
        raw = np.full(count, _GARBAGE, np.uint8)
    return raw.copy().view(operand.spec.dtype).reshape(operand.spec.shape)


Tags = str | Sequence[str]
Pairs = Collection[tuple[int, int]]


def always(inputs: Tags, outputs: Tags, *, scratch_bytes: int = 0, in_place: Pairs = ()) -> Arrange:
    """Return an arrange function that always requests the same layouts: one tag for all operands, or one for each."""

    def arrange(attributes: Attributes, ins: Specs, outs: Specs, offered: Offered) -> Arrangement:
        return Arrangement(_each(inputs, ins), _each(outputs, outs), scratch_bytes, tuple(in_place))

    return arrange


def following(attributes: Attributes, ins: Specs, outs: Specs, offered: Offered) -> Arrangement:
    """Request, for all operands, the first offered layout that is not plain."""
    tag = next((each.tag for each in offered if each and each.tag), PLAIN)
    return Arrangement(_each(tag, ins), _each(tag, outs))


def converting(pairs: Collection[tuple[str, str]]) -> Arrange:
    """Return an arrange function for ``convert`` that accepts only the given pairs of layout tags (from, to)."""

    def arrange(attributes: Attributes, ins: Specs, outs: Specs, offered: Offered) -> Arrangement | None:
        source, wanted = offered
        if source is None or wanted is None or (source.tag, wanted.tag) not in pairs:
            return None
        return Arrangement((source,), (wanted,))

    return arrange


def _each(tags: Tags, specs: Sequence[Spec]) -> tuple[Layout, ...]:
    several = [tags] * len(specs) if isinstance(tags, str) else tags
    return tuple(layout(tag, spec) for tag, spec in zip(several, specs, strict=True))


def fake_kernel(op: str, arrange: Arrange, *, native: bool | int = False) -> contract.Kernel:
    """Return a kernel of library "fake", preferred to NumPy kernels. native: number of its fake machine-code calls."""

    def bind(attributes: Attributes, arrangement: Arrangement, buffers: Buffers) -> Bound:
        call = _DestructiveCall(op, attributes, arrangement, buffers)
        calls = [contract.NativeCall(0, (0, 0, 0, 0), call)] * native
        return (calls[0] if native == 1 else calls) if calls else call

    return contract.Kernel(op, "cpu", "fake", 20, frozenset({"float32", "float64"}), arrange, bind)


def reference_registry() -> Registry:
    """Return a registry of only the reference kernels."""
    registry = Registry()
    for op in kernel_ops():
        registry.add(load_kernels().find(op, "cpu", "numpy"))
    return registry


def fake_registry(*kernels: contract.Kernel) -> Registry:
    """Return a registry of the reference kernels and the given kernels."""
    registry = reference_registry()
    registry.join = join
    for kernel in kernels:
        registry.add(kernel)
    return registry


def kernel_ops() -> list[str]:
    return [name for name, definition in OPS.items() if definition.executed_by == "kernel"]


def join(calls: Sequence[contract.NativeCall]) -> Callable[[], int]:
    """Join several fake machine-code calls into one call."""
    bodies: list[Any] = [call.keep for call in calls]

    def run() -> int:
        for position, body in enumerate(bodies):
            if status := body():
                return (1 + position) << 16 | int(status)
        return 0

    return run


def refusing(function: Callable[[Array], Any], refuses: Callable[[Array], Any]) -> Callable[[Array], Any]:
    """Return a function that calls ``function``, but raises FloatingPointError if ``refuses`` is true for the array."""

    def checked(value: Array) -> Any:
        if refuses(value):
            raise FloatingPointError
        return function(value)

    return checked


class _DestructiveCall:
    """A call that destroys the values in its outputs and scratch memory before it reads its other inputs."""

    def __init__(self, op: str, attributes: Attributes, arrangement: Arrangement, buffers: Buffers) -> None:
        assert len(buffers.scratch) == arrangement.scratch_bytes
        for operand in (*buffers.inputs, *buffers.outputs):
            assert operand.address % ALIGNMENT == 0 or not operand.data.size
        self._buffers = buffers
        self._early = {i for i in range(len(buffers.inputs)) if _may_share(i, arrangement, buffers)}
        self._compute = _reference(op, attributes, buffers)

    def __call__(self) -> None:
        inputs, outputs, scratch = self._buffers.inputs, self._buffers.outputs, self._buffers.scratch
        values = {i: decode(inputs[i]) for i in self._early}
        scratch[:] = _GARBAGE
        for output in outputs:
            output.data[:] = _GARBAGE
        values.update({i: decode(operand) for i, operand in enumerate(inputs) if i not in self._early})
        for output, value in zip(outputs, self._compute([values[i] for i in range(len(inputs))]), strict=True):
            encode(output, value)
        scratch[:] = _GARBAGE


def _may_share(i: int, arrangement: Arrangement, buffers: Buffers) -> bool:
    """Return whether an input shares memory with some outputs, and the kernel allows this for each of these outputs."""
    mine = buffers.inputs[i]
    met = [(o, each) for o, each in enumerate(buffers.outputs) if np.may_share_memory(mine.data, each.data)]
    return bool(met) and all(
        (i, o) in arrangement.in_place and (each.address, each.layout) == (mine.address, mine.layout) for o, each in met
    )


def _reference(op: str, attributes: Attributes, buffers: Buffers) -> Callable[[Sequence[Array]], list[Array]]:
    kernel = load_kernels().find(op, "cpu", "numpy")
    inputs, outputs = (
        tuple(Operand(each.spec, contract.plain(each.spec), allocate(each.spec.nbytes)) for each in side)
        for side in (buffers.inputs, buffers.outputs)
    )
    specs = [each.spec for each in inputs]
    arrangement = kernel.arrange(attributes, specs, [each.spec for each in outputs], [each.layout for each in inputs])
    assert arrangement is not None
    call = kernel.bind(attributes, arrangement, Buffers(inputs, outputs, allocate(arrangement.scratch_bytes)))
    assert callable(call)

    def compute(values: Sequence[Array]) -> list[Array]:
        for operand, value in zip(inputs, values, strict=True):
            np.copyto(operand.array, value)
        call()
        return [operand.array for operand in outputs]

    return compute


def random_registry(seed: int) -> Registry:
    """Return a registry of fake kernels. Their requested layouts are random, but fixed for each seed and node."""
    others = [op for op in kernel_ops() if op != "convert"]
    kernels = [fake_kernel(op, _random_arrange(seed, op), native=_random(seed, op).random() < 0.5) for op in others]
    return fake_registry(*kernels, fake_kernel("convert", converting(VIA_PLAIN)))


def _random(seed: int, *subject: object) -> random.Random:
    """Return a random generator that depends only on the seed and the subject."""
    return random.Random(f"{seed} {subject}")


def _random_arrange(seed: int, op: str) -> Arrange:
    def arrange(attributes: Attributes, ins: Specs, outs: Specs, offered: Offered) -> Arrangement | None:
        draw = _random(seed, op, sorted(attributes.items()), [str(each) for each in (*ins, *outs)])
        manner = draw.choice(["refuse", "follow", "follow", "choose", "choose"])
        if manner == "refuse":
            return None
        if manner == "follow":
            followed = following(attributes, ins, outs, offered)
            assert followed is not None
            inputs, outputs = followed.inputs, followed.outputs
        else:
            inputs, outputs = (
                tuple(layout(draw.choice((PLAIN, *NOT_PLAIN)), spec) for spec in specs) for specs in (ins, outs)
            )
        may_share = [
            (i, o)
            for i, mine in enumerate(zip(ins, inputs, strict=True))
            for o, other in enumerate(zip(outs, outputs, strict=True))
            if mine == other and draw.random() < 0.7
        ]
        return Arrangement(inputs, outputs, draw.choice([0, 0, 1, 200]), tuple(may_share))

    return arrange
