"""Joining tensors along an axis."""

from __future__ import annotations

from runner.kernels.cpu.onednn import constants as dnnl
from runner.kernels.cpu.onednn.library import Library
from runner.kernels.cpu.onednn.memory import block_along, formatted
from runner.kernels.cpu.onednn.primitive import Description, attributes
from runner.kernels.cpu.onednn.recipe import Layouts, Node, Port, Recipe, add_kernel, as_offered, format_of
from runner.kernels.registry import Registry


def register(registry: Registry, library: Library) -> None:
    """Add the kernel of op ``concat``."""
    add_kernel(registry, library, "concat", _concat, as_offered)


def _concat(library: Library, node: Node, inputs: Layouts, outputs: Layouts) -> Recipe:
    """Every input is read as it lies, on the way into the result."""
    axis, (y,) = node.attributes["axis"], node.outputs
    parts = [
        formatted(library, spec.shape, spec.dtype, format_of(layout))
        for spec, layout in zip(node.inputs, inputs, strict=True)
    ]
    joined = formatted(library, y.shape, y.dtype, _joined_format(node, inputs))
    parts_in_c = library.ffi.new("object[]", parts)
    what = (joined, len(parts), axis, parts_in_c, attributes(library))
    made = Description(library, "concat", library.engine, *what)
    ports = [Port(dnnl.MULTIPLE_SRC + number, part) for number, part in enumerate(parts)]
    return Recipe(made, ports, [Port(dnnl.DST, joined)])


def _joined_format(node: Node, inputs: Layouts) -> str:
    """The format of the largest input, where all others but the last begin and end with its blocks; else C order."""
    largest = max(range(len(inputs)), key=lambda each: node.inputs[each].nbytes)
    name, axis = format_of(inputs[largest]), node.attributes["axis"]
    whole = all(spec.shape[axis] % block_along(name, axis) == 0 for spec in node.inputs[:-1])
    return name if whole else ""
