"""Conversion of layouts, and casts between float32 and bfloat16."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from runner.kernels.contract import (
    Arrangement,
    Array,
    Attributes,
    Bound,
    Buffers,
    Kernel,
    Layout,
    NativeCall,
    Operand,
    PythonCall,
    Spec,
    plain,
)
from runner.kernels.cpu.onednn import constants as dnnl
from runner.kernels.cpu.onednn.library import Library
from runner.kernels.cpu.onednn.memory import BITS, described, formatted, nbytes, split_tag, viewed
from runner.kernels.cpu.onednn.recipe import FLOATS, PRIORITY, Description, Layouts, Node, answering, bound, in_turn
from runner.kernels.registry import Registry


def register(registry: Registry, library: Library) -> None:
    """Add the kernels of op ``convert``, and of op ``cast`` between float dtypes.

    For ``convert``, the offers are the layouts of input and output. For ``cast``, that of the output may be missing.
    """

    def arrange_convert(node: Node, offered: Layouts) -> Arrangement | None:
        (spec,), (source, wanted) = node.inputs, offered
        if source is None or wanted is None or _common_view(library, _unpacked(source), wanted) is None:
            return None
        scratch_bytes = _scratch_bytes(library, _steps(library, spec, _unpacked(source), spec, wanted))
        unpacked_bytes = _unpacked(source).nbytes if source.tag.startswith(BITS) else 0
        return Arrangement((source,), (wanted,), unpacked_bytes + scratch_bytes)

    def arrange_cast(node: Node, offered: Layouts) -> Arrangement | None:
        (x,), (y,) = node.inputs, node.outputs
        if not {x.dtype, y.dtype} <= FLOATS:
            return None
        source = offered[0] or plain(x)
        wanted = (offered[1] if len(offered) > 1 else None) or _alike(library, source, y)
        if wanted is None or _common_view(library, source, wanted) is None:
            return None
        return Arrangement((source,), (wanted,), _scratch_bytes(library, _steps(library, x, source, y, wanted)))

    def bind(node: Attributes, arrangement: Arrangement, buffers: Buffers) -> Bound:
        source, result = buffers.inputs[0], buffers.outputs[0]
        if not source.layout.tag.startswith(BITS):
            return _conversion(library, source, result, buffers.host_scratch)
        layout = _unpacked(source.layout)
        unpacked = replace(source, layout=layout, data=buffers.host_scratch[: layout.nbytes])
        reorder = in_turn(library, _conversion(library, unpacked, result, buffers.host_scratch[layout.nbytes :]))
        return _unpacking(source.host, unpacked.host, reorder)

    for op, arrange in (("convert", arrange_convert), ("cast", arrange_cast)):
        registry.add(Kernel(op, "cpu", "onednn", PRIORITY, FLOATS, answering(library, arrange), bind))


def _alike(library: Library, layout: Layout, spec: Spec) -> Layout | None:
    """Return the layout of ``spec`` in the memory format of ``layout``, or None if oneDNN has no such layout."""
    prefix, name = split_tag(layout.tag)
    if layout.is_plain or name not in library.tags:
        return plain(spec) if layout.is_plain else None
    return Layout(layout.tag, nbytes(library, formatted(library, viewed(spec.shape, prefix), spec.dtype, name)))


def _common_view(library: Library, *layouts: Layout) -> str | None:
    """Return a prefix (see ``memory``) under which oneDNN can read all layouts, or None if there is no such prefix."""
    prefixes = set()
    for layout in layouts:
        if not layout.is_plain:
            prefix, name = split_tag(layout.tag)
            if name not in library.tags or prefix == BITS:
                return None
            prefixes.add(prefix)
    return next(iter(prefixes), "") if len(prefixes) < 2 else None


def _reorder(library: Library, x: Spec, source: Layout, y: Spec, wanted: Layout) -> tuple[Description, tuple[Any, Any]]:
    view = _common_view(library, source, wanted)
    assert view is not None, "bound without an arrangement"
    before, after = described(library, x, source, view), described(library, y, wanted, view)
    desc = Description(library, "reorder", before, library.engine, after, library.engine)
    return desc, (before, after)


_Step = tuple[Spec, Layout, Spec, Layout]
"""A reorder: spec and layout before and after."""


def _steps(library: Library, x: Spec, source: Layout, y: Spec, wanted: Layout) -> list[_Step]:
    """Return the reorders that convert ``x`` into ``y``: one, or two through C order if a single reorder is slow.

    For some pairs of the blocked layouts that AMX needs, oneDNN 3.2 has only a scalar loop: 73 ms for the weights of
    AlexNet's fourth convolution, and 0.4 ms through C order.
    """
    direct = (x, source, y, wanted)
    if source.is_plain or wanted.is_plain or _reorder(library, *direct)[0].implementation != "simple:any":
        return [direct]
    return [(x, source, x, plain(x)), (x, plain(x), y, wanted)]


def _scratch_bytes(library: Library, steps: Sequence[_Step]) -> int:
    between = sum(layout.nbytes for *_, layout in steps[:-1])
    return between + max(_reorder(library, *step)[0].scratch_bytes for step in steps)


def _conversion(library: Library, source: Operand, result: Operand, scratch: Array) -> list[NativeCall]:
    *before, _ = steps = _steps(library, source.spec, source.layout, result.spec, result.layout)
    operands = [source]
    for *_, spec, layout in before:
        operands.append(replace(source, spec=spec, layout=layout, data=scratch[: layout.nbytes]))
        scratch = scratch[layout.nbytes :]
    pairs = pairwise([*operands, result])
    return [_reordering(library, step, *pair, scratch) for step, pair in zip(steps, pairs, strict=True)]


def _reordering(library: Library, step: _Step, source: Operand, result: Operand, scratch: Array) -> NativeCall:
    desc, (before, after) = _reorder(library, *step)
    return bound(desc, {dnnl.SRC: (before, source), dnnl.DST: (after, result)}, scratch)


def _unpacked(layout: Layout) -> Layout:
    """Return the layout of booleans stored as bytes instead of bits; return other layouts unchanged."""
    prefix, name = split_tag(layout.tag)
    return Layout(name, 8 * layout.nbytes) if prefix == BITS else layout


def _unpacking(bits: Array, values: Array, then: PythonCall) -> PythonCall:
    eight_values = values.view(np.uint64)

    def run() -> None:
        # With mode "clip", NumPy writes to ``out`` without a temporary copy; no byte is out of range.
        np.take(_VALUES_OF_BYTE, bits, out=eight_values, mode="clip")
        then()

    return run


_VALUES_OF_BYTE = np.unpackbits(np.arange(256, dtype=np.uint8), bitorder="little").view(np.uint64)
"""For every byte, its eight bits as the eight bytes of a uint64."""
