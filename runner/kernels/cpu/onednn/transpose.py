"""Axes in another order."""

from __future__ import annotations

from runner.kernels.cpu.onednn import constants as dnnl
from runner.kernels.cpu.onednn.library import Library
from runner.kernels.cpu.onednn.memory import c_order, in_c_order, strided
from runner.kernels.cpu.onednn.primitive import Description, attributes
from runner.kernels.cpu.onednn.recipe import Layouts, Node, Port, Recipe, add_kernel, as_offered
from runner.kernels.registry import Registry, plain


def register(registry: Registry, library: Library) -> None:
    """Add the kernel of op ``transpose``."""
    add_kernel(registry, library, "transpose", _transpose, as_offered)


def _transpose(library: Library, node: Node, inputs: Layouts, outputs: Layouts) -> Recipe:
    """Input x in C order, seen with its axes as the result has them; output y in C order."""
    (x,), (y,) = node.inputs, node.outputs
    steps = c_order(x.shape)
    seen = strided(library, y.shape, x.dtype, [steps[axis] for axis in node.attributes["perm"]])
    result = in_c_order(library, y.shape, y.dtype)
    ends = (seen, library.engine, result, library.engine)
    made = Description(library, "reorder", *ends, attributes(library))
    return Recipe(made, [Port(dnnl.SRC, seen, layout=plain(x))], [Port(dnnl.DST, result)])
