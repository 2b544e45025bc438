"""Kernels of concat, broadcast_to, split, slice and pad. Split, slice and pad copy between a tensor and its parts.

A tensor in a blocked layout can be divided only between blocks. To divide elsewhere, an op requests C order.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from typing import Any

from runner.kernels.contract import FLOATS, Arrangement, Attributes, Bound, Buffers, Kernel, Layout, Spec, plain
from runner.kernels.cpu.onednn import constants as dnnl
from runner.kernels.cpu.onednn.convolution import preferred_layout
from runner.kernels.cpu.onednn.library import Library, OneDnnError, Unimplemented
from runner.kernels.cpu.onednn.memory import Dims, block_along, c_order, described, formatted, layout_of, strided
from runner.kernels.cpu.onednn.recipe import (
    PRIORITY,
    Description,
    Layouts,
    Node,
    Port,
    Recipe,
    add_kernel,
    answering,
    as_offered,
    bound,
    followed,
    format_of,
    in_turn,
)
from runner.kernels.memory import numpy_dtype
from runner.kernels.registry import Registry


def register(registry: Registry, library: Library) -> None:
    """Add the kernels of this family."""
    add_kernel(registry, library, "concat", _concat, as_offered)
    add_kernel(registry, library, "broadcast_to", _broadcast, as_offered)
    _add(registry, library, "split", _split_blocks, into=False)
    _add(registry, library, "slice", _slice_block, into=False)
    _add(registry, library, "pad", lambda node: [_Block(node.attributes["low"], node.inputs[0].shape)], into=True)


def _concat(library: Library, node: Node, inputs: Layouts, outputs: Layouts) -> Recipe:
    """Return the recipe of concat, which reads each input in its offered layout."""
    axis, (y,) = node.attributes["axis"], node.outputs
    parts = [
        formatted(library, spec.shape, spec.dtype, format_of(layout))
        for spec, layout in zip(node.inputs, inputs, strict=True)
    ]
    joined = formatted(library, y.shape, y.dtype, format_of(*outputs) or _joined_format(node, inputs))
    parts_in_c = library.ffi.new("object[]", parts)
    desc = Description(library, "concat", joined, len(parts), axis, parts_in_c)
    ports = [Port(dnnl.MULTIPLE_SRC + number, part) for number, part in enumerate(parts)]
    return Recipe(desc, ports, [Port(dnnl.DST, joined)])


def _joined_format(node: Node, inputs: Layouts) -> str:
    """Return the largest input's format if all inputs but the last fill whole blocks of this format, else C order."""
    largest = max(range(len(inputs)), key=lambda each: node.inputs[each].nbytes)
    name, axis = format_of(inputs[largest]), node.attributes["axis"]
    whole = all(spec.shape[axis] % block_along(name, axis) == 0 for spec in node.inputs[:-1])
    return name if whole else ""


def _broadcast(library: Library, node: Node, inputs: Layouts, outputs: Layouts) -> Recipe:
    """Return the recipe of broadcast_to: x is in C order and is read with stride 0 along repeated axes."""
    (x,), (y,) = node.inputs, node.outputs
    repeated = _repeated(library, x, y.shape)
    result = described(library, y, outputs[0] or _result_layout(library, x, y))
    desc = Description(library, "reorder", repeated, library.engine, result, library.engine)
    return Recipe(desc, [Port(dnnl.SRC, repeated, layout=plain(x))], [Port(dnnl.DST, result)])


def _repeated(library: Library, x: Spec, shape: Dims) -> Any:
    new_axes = len(shape) - len(x.shape)
    steps = [0 if extent == 1 else step for extent, step in zip(x.shape, c_order(x.shape), strict=True)]
    try:
        return strided(library, shape, x.dtype, [0] * new_axes + steps)
    except OneDnnError as error:
        raise Unimplemented(f"this oneDNN does not read a tensor with strides of 0: {error}") from error


def _result_layout(library: Library, x: Spec, y: Spec) -> Layout:
    """Return the layout that convolutions prefer if x (N, C, 1, 1) is broadcast to images, else C order."""
    is_pixels = len(x.shape) == 4 and x.shape[2:] == (1, 1) != y.shape[2:] and x.shape[1] == y.shape[1]
    return preferred_layout(library, y) if is_pixels and y.dtype in FLOATS else plain(y)


@dataclass(frozen=True)
class _Block:
    """The first element and the extents of one part."""

    begin: Dims
    size: Dims

    def is_cut_between(self, name: str, extents: Dims) -> bool:
        """Return whether the part begins at a block boundary, and ends at a block boundary or the tensor's end."""
        return all(
            begin % block_along(name, axis) == 0
            and (size % block_along(name, axis) == 0 or begin + size == extents[axis])
            for axis, (begin, size) in enumerate(zip(self.begin, self.size, strict=True))
        )


_Blocks = Callable[[Node], list[_Block]]


def _split_blocks(node: Node) -> list[_Block]:
    axis, rank = node.attributes["axis"], len(node.inputs[0].shape)
    starts = accumulate(node.attributes["sizes"], initial=0)
    begins = [[start if each == axis else 0 for each in range(rank)] for start in starts]
    return [_Block(begin, part.shape) for begin, part in zip(begins[:-1], node.outputs, strict=True)]


def _slice_block(node: Node) -> list[_Block]:
    if any(step != 1 for step in node.attributes["steps"]):
        raise Unimplemented("a slice with steps other than 1 is not a block")
    return [_Block(node.attributes["begin"], node.attributes["size"])]


def _add(registry: Registry, library: Library, op: str, blocks: _Blocks, *, into: bool) -> None:
    """Add an op that copies parts of its input to its outputs or, with ``into``, its input into an output of zeros."""

    def arrange(node: Node, offered: Layouts) -> Arrangement:
        (whole,) = node.outputs if into else node.inputs
        name = format_of(offered[0])
        if not all(block.is_cut_between(name, whole.shape) for block in blocks(node)):
            name = ""
        copies = _copies(library, node, name, blocks(node), into=into)
        return Arrangement(
            tuple(_layout(library, spec, name) for spec in node.inputs),
            tuple(_layout(library, spec, name) for spec in node.outputs),
            max(copy.desc.scratch_bytes for copy in copies),
        )

    def bind(given: Attributes, arrangement: Arrangement, buffers: Buffers) -> Bound:
        node = Node(given, *buffers.specs)
        # Images of one channel or one pixel are plain even if other tensors have channels last.
        name = format_of(*arrangement.inputs, *arrangement.outputs)
        copies = _copies(library, node, name, blocks(node), into=into)
        (source,) = buffers.inputs
        calls = []
        for copy, result in zip(copies, buffers.outputs, strict=True):
            whole, piece = (result, source) if into else (source, result)
            inside = replace(whole, data=whole.data[copy.offset :])
            first, last = (piece, inside) if into else (inside, piece)
            ends = {dnnl.SRC: (copy.source, first), dnnl.DST: (copy.result, last)}
            calls.append(bound(copy.desc, ends, buffers.host_scratch))
        if into:
            return followed(partial(buffers.outputs[0].host.fill, 0), in_turn(library, calls))
        return calls

    registry.add(Kernel(op, "cpu", "onednn", PRIORITY, FLOATS, answering(library, arrange), bind))


def _layout(library: Library, spec: Spec, name: str) -> Layout:
    return layout_of(library, formatted(library, spec.shape, spec.dtype, name), spec)


@dataclass(frozen=True)
class _Copy:
    """A copy, with the descriptors of source and result. offset: bytes to skip at the start of the whole tensor."""

    desc: Description
    source: Any
    result: Any
    offset: int


def _copies(library: Library, node: Node, name: str, blocks: Sequence[_Block], *, into: bool) -> list[_Copy]:
    """Return one copy for each block; all tensors have the named format."""
    (whole,), pieces = (node.outputs, node.inputs) if into else (node.inputs, node.outputs)
    copies = []
    for block, piece in zip(blocks, pieces, strict=True):
        offset = 0 if name else _bytes_before(whole, block)
        # oneDNN copies slowly from descriptors with an offset. In C order, the offset is added to the address instead.
        moved = block if name else replace(block, begin=(0,) * len(block.begin))
        inside = _part_of(library, formatted(library, whole.shape, whole.dtype, name), moved)
        alone = formatted(library, piece.shape, piece.dtype, name)
        source, result = (alone, inside) if into else (inside, alone)
        ends = (source, library.engine, result, library.engine)
        copies.append(_Copy(Description(library, "reorder", *ends), source, result, offset))
    return copies


def _bytes_before(whole: Spec, block: _Block) -> int:
    """Return the byte offset of a block in a tensor in C order."""
    elements = sum(begin * step for begin, step in zip(block.begin, c_order(whole.shape), strict=True))
    return elements * numpy_dtype(whole.dtype).itemsize


def _part_of(library: Library, whole: Any, block: _Block) -> Any:
    arguments = (whole, library.ints(block.size), library.ints(block.begin))
    return library.owned(library.create("memory_desc_create_submemory", *arguments), "memory_desc")
