"""Functions of one variable that oneDNN computes several times faster than NumPy.

Its logarithm is not among them: it is no faster, and off by more than 1e-6 near 1.
"""

from __future__ import annotations

from runner.kernels.contract import plain
from runner.kernels.cpu.onednn import constants as dnnl
from runner.kernels.cpu.onednn.library import Library
from runner.kernels.cpu.onednn.memory import formatted
from runner.kernels.cpu.onednn.primitive import Description, attributes
from runner.kernels.cpu.onednn.recipe import Layouts, Node, Port, Recipe, add_kernel, as_offered, format_of
from runner.kernels.registry import Registry

ALGORITHMS = {"exp": dnnl.ELTWISE_EXP, "sigmoid": dnnl.ELTWISE_LOGISTIC, "tanh": dnnl.ELTWISE_TANH}
"""op -> algorithm. Relative errors are below 5e-7, except that what is below e ** -86.6 may be given as 0; the
exponential of NaN is infinity."""


def register(registry: Registry, library: Library) -> None:
    """Add the kernels of this family. Tensors are taken as they lie."""
    for op, algorithm in ALGORITHMS.items():
        _add(registry, library, op, algorithm)


def _add(registry: Registry, library: Library, op: str, algorithm: int) -> None:
    keeps_zero = op == "tanh"

    def wish(node: Node, offered: Layouts) -> tuple[Layouts, Layouts]:
        (x,), (given,) = node.inputs, offered
        if given is None or keeps_zero or given.nbytes == x.nbytes:
            return as_offered(node, offered)
        # Blocks that are not full would no longer be filled up with zeros.
        return [plain(x)], [None]

    def describe(library: Library, node: Node, inputs: Layouts, outputs: Layouts) -> Recipe:
        (spec,) = node.inputs
        x = formatted(library, spec.shape, spec.dtype, format_of(*inputs))
        goal, attr = dnnl.FORWARD_INFERENCE, attributes(library)
        made = Description(library, "eltwise_forward", library.engine, goal, algorithm, x, x, 0.0, 0.0, attr)
        return Recipe(made, [Port(dnnl.SRC, x)], [Port(dnnl.DST, x)], in_place=((0, 0),))

    add_kernel(registry, library, op, describe, wish)
