"""Translation between layouts of the planner and memory descriptors of oneDNN.

A tag is the name of a oneDNN memory format, such as "aBcd16b", after an optional prefix. "t:" exchanges the two axes of
the tensor; "g2:" splits the first axis into 2 groups; "u8:" stores the elements as bytes, "bits:" as bits.
"""

import math
import re
from collections.abc import Sequence
from itertools import pairwise, permutations
from typing import Any

from runner.kernels.contract import Layout, Spec
from runner.kernels.cpu.onednn import constants as dnnl
from runner.kernels.cpu.onednn.library import Library, Unimplemented

BYTES = "u8:"
"""Prefix of integers stored as uint8, such as the positions of maxima in small windows."""

BITS = "bits:"
"""Prefix of booleans stored as bits: element n is bit n % 8 of byte n // 8."""

UNKNOWN = 0
"""``nbytes`` of a layout that is requested by tag only; oneDNN computes the size."""

AXES = "abcdefghijkl"
"""The letters of axes in names of formats. oneDNN has no tensors with more than 12 axes."""

Dims = Sequence[int]


def viewed(shape: Dims, prefix: str) -> tuple[int, ...]:
    """Return the dimensions that oneDNN sees for a tensor of ``shape`` under a prefix."""
    if prefix == "t:":
        return (shape[1], shape[0])
    if prefix.startswith("g"):
        groups = int(prefix[1:-1])
        return (groups, shape[0] // groups, *shape[1:])
    return tuple(shape)


def split_tag(tag: str) -> tuple[str, str]:
    """Split a tag into the prefix, with its colon, and the name of the format."""
    prefix, colon, name = tag.rpartition(":")
    return prefix + colon, name


def block_along(name: str, axis: int) -> int:
    """Return the block size of an axis in the named format, such as 16 for axis 1 of "aBcd16b"; 1 without blocks."""
    sizes = re.findall(rf"(\d+){AXES[axis]}", name)
    return math.prod(map(int, sizes))


def c_order(dims: Dims) -> list[int]:
    """Return the strides of C order, in elements."""
    strides, step = [], 1
    for extent in reversed(dims):
        strides.append(step)
        step *= extent
    return strides[::-1]


def free(library: Library, dims: Dims, dtype: str) -> Any:
    """Return a descriptor whose format oneDNN chooses."""
    return _with_tag(library, dims, dtype, dnnl.ANY)


def strided(library: Library, dims: Dims, dtype: str, strides: Dims) -> Any:
    """Return a descriptor with given strides, in elements."""
    arguments = (len(dims), library.ints(dims), dnnl.TYPES[dtype], library.ints(strides))
    return library.owned(library.create("memory_desc_create_with_strides", *arguments), "memory_desc")


def in_c_order(library: Library, dims: Dims, dtype: str) -> Any:
    """Return a descriptor of an array in C order."""
    return strided(library, dims, dtype, c_order(dims))


def described(library: Library, spec: Spec, layout: Layout, prefix: str = "") -> Any:
    """Return the descriptor of a tensor in a layout, seen under ``prefix``.

    A plain layout (C order) fits every prefix. Raises ValueError if the prefix or the size of another layout is wrong.
    """
    if layout.is_plain:
        return strided(library, viewed(spec.shape, prefix), spec.dtype, _plain_strides(spec.shape, prefix))
    own, name = split_tag(layout.tag)
    if own != prefix:
        raise ValueError(f"a tensor in layout {layout.tag!r} cannot be read as {prefix!r}")
    descriptor = formatted(library, viewed(spec.shape, own), "uint8" if own == BYTES else spec.dtype, name)
    # ``nbytes`` may come from another process and be wrong; oneDNN writes as many bytes as the tag implies.
    if layout.nbytes not in (UNKNOWN, nbytes(library, descriptor)):
        raise ValueError(
            f"{spec} in layout {layout.tag!r} takes {nbytes(library, descriptor)} bytes, not {layout.nbytes}"
        )
    return descriptor


def formatted(library: Library, dims: Dims, dtype: str, name: str) -> Any:
    """Return a descriptor of the named format, or of C order if the name is ""."""
    return _with_tag(library, dims, dtype, library.tags[name]) if name else in_c_order(library, dims, dtype)


def layout_of(library: Library, descriptor: Any, spec: Spec, prefix: str = "") -> Layout:
    """Return the layout of a tensor with this descriptor, seen under ``prefix``."""
    dims = viewed(spec.shape, prefix)
    strides = _query_ints(library, descriptor, dnnl.QUERY_STRIDES, len(dims))
    blocks = _inner_blocks(library, descriptor)
    in_order = _plain_strides(spec.shape, prefix)
    # The stride of an axis of extent 1 is arbitrary.
    alike = all(a == b for a, b, extent in zip(strides, in_order, dims, strict=True) if extent > 1)
    if prefix != BYTES and not blocks and alike:
        return Layout("", nbytes(library, descriptor))
    found = Layout(prefix + _format_name(library, strides, blocks), nbytes(library, descriptor))
    by_name = described(library, spec, Layout(found.tag, UNKNOWN), prefix)
    if nbytes(library, by_name) != found.nbytes:
        raise Unimplemented(f"the memory format {found.tag} of {spec.shape} has gaps, which no format name describes")
    return found


def nbytes(library: Library, descriptor: Any) -> int:
    """Return the size of a tensor in bytes, padding included."""
    return int(library.c.dnnl_memory_desc_get_size(descriptor))


def data_type(library: Library, descriptor: Any) -> int:
    """Return the number of a tensor's element type, as in ``constants.TYPES``."""
    return _query_int(library, descriptor, dnnl.QUERY_DATA_TYPE)


def _plain_strides(shape: Dims, prefix: str) -> list[int]:
    return c_order(shape)[::-1] if prefix == "t:" else c_order(viewed(shape, prefix))


def _format_name(library: Library, strides: Dims, blocks: Sequence[tuple[int, int]]) -> str:
    """Return the name of a format, such as "ABcd16b16a": axes by decreasing stride, then inner blocks (size, axis).

    An axis of extent 1 may have the same stride as another axis. Both orders are then right, but one may have no name.
    """
    blocked = {axis for _, axis in blocks}
    letters = [letter.upper() if axis in blocked else letter for axis, letter in enumerate(AXES[: len(strides)])]
    inner = "".join(f"{block}{AXES[axis]}" for block, axis in blocks)
    for order in permutations(sorted(range(len(strides)), key=lambda axis: -strides[axis])):
        falling = all(strides[a] >= strides[b] for a, b in pairwise(order))
        name = "".join(letters[axis] for axis in order) + inner
        if falling and name in library.tags:
            return name
    raise Unimplemented(f"no name for the memory format with strides {list(strides)} and inner blocks {list(blocks)}")


def _inner_blocks(library: Library, descriptor: Any) -> list[tuple[int, int]]:
    """Return (size, axis) of each inner block, outermost first."""
    count = _query_int(library, descriptor, dnnl.QUERY_INNER_COUNT)
    blocks = _query_ints(library, descriptor, dnnl.QUERY_INNER_BLOCKS, count)
    return list(zip(blocks, _query_ints(library, descriptor, dnnl.QUERY_INNER_AXES, count), strict=True))


def _with_tag(library: Library, dims: Dims, dtype: str, tag: int) -> Any:
    arguments = (len(dims), library.ints(dims), dnnl.TYPES[dtype], tag)
    return library.owned(library.create("memory_desc_create_with_tag", *arguments), "memory_desc")


def _query_int(library: Library, descriptor: Any, what: int) -> int:
    result = library.ffi.new("int *")
    library.check("memory_desc_query", library.c.dnnl_memory_desc_query(descriptor, what, result))
    return int(result[0])


def _query_ints(library: Library, descriptor: Any, what: int, count: int) -> list[int]:
    if count == 0:
        return []
    result = library.ffi.new("int64_t **")
    library.check("memory_desc_query", library.c.dnnl_memory_desc_query(descriptor, what, result))
    return [int(result[0][i]) for i in range(count)]
