"""Repeating a tensor along axes."""

from __future__ import annotations

from typing import Any

from runner.kernels.contract import FLOATS, Layout, Spec, plain
from runner.kernels.cpu.onednn import constants as dnnl
from runner.kernels.cpu.onednn.convolution import preferred_layout
from runner.kernels.cpu.onednn.library import Library, OneDnnError, Unimplemented
from runner.kernels.cpu.onednn.memory import Dims, c_order, described, strided
from runner.kernels.cpu.onednn.primitive import Description, attributes
from runner.kernels.cpu.onednn.recipe import Layouts, Node, Port, Recipe, add_kernel, as_offered
from runner.kernels.registry import Registry


def register(registry: Registry, library: Library) -> None:
    """Add the kernel of op ``broadcast_to``."""
    add_kernel(registry, library, "broadcast_to", _broadcast, as_offered)


def _broadcast(library: Library, node: Node, inputs: Layouts, outputs: Layouts) -> Recipe:
    """Input x in C order, read with steps of 0 along the axes that are repeated."""
    (x,), (y,) = node.inputs, node.outputs
    repeated = _repeated(library, x, y.shape)
    result = described(library, y, outputs[0] or _result_layout(library, x, y))
    ends = (repeated, library.engine, result, library.engine)
    made = Description(library, "reorder", *ends, attributes(library))
    return Recipe(made, [Port(dnnl.SRC, repeated, layout=plain(x))], [Port(dnnl.DST, result)])


def _repeated(library: Library, x: Spec, shape: Dims) -> Any:
    new_axes = len(shape) - len(x.shape)
    steps = [0 if extent == 1 else step for extent, step in zip(x.shape, c_order(x.shape), strict=True)]
    try:
        return strided(library, shape, x.dtype, [0] * new_axes + steps)
    except OneDnnError as error:
        raise Unimplemented(f"this oneDNN does not read a tensor with steps of 0: {error}") from error


def _result_layout(library: Library, x: Spec, y: Spec) -> Layout:
    """C order, but where pixels become images, as in the gradient of a mean over images, what convolutions like."""
    is_pixels = len(x.shape) == 4 and x.shape[2:] == (1, 1) != y.shape[2:] and x.shape[1] == y.shape[1]
    return preferred_layout(library, y) if is_pixels and y.dtype in FLOATS else plain(y)
