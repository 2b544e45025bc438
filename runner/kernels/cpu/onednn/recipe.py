"""The common part of oneDNN kernels: a recipe names the primitive of a node and the argument of each tensor.

A kernel module has a function ``describe``, which makes the description of a primitive from the node and the fixed
layouts and leaves the other layouts to the library. It is called with requested layouts to arrange a node, and with all
layouts fixed to bind it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from runner.kernels.contract import (
    Arrange,
    Arrangement,
    Attributes,
    Bound,
    Buffers,
    Kernel,
    Layout,
    PythonCall,
    Spec,
    Specs,
)
from runner.kernels.cpu.onednn.library import Library, Unimplemented
from runner.kernels.cpu.onednn.memory import BITS, BYTES, layout_of, split_tag
from runner.kernels.cpu.onednn.primitive import Description, bound, in_turn
from runner.kernels.registry import Registry

PRIORITY = 20
FLOATS = frozenset({"float32", "bfloat16"})

Layouts = Sequence[Layout | None]


@dataclass(frozen=True)
class Node:
    """The node to compute."""

    attributes: Attributes
    inputs: Sequence[Spec]
    outputs: Sequence[Spec]


@dataclass(frozen=True)
class Port:
    """The argument of one tensor: DNNL_ARG number, descriptor, and the prefix under which oneDNN sees the tensor.

    layout: the layout for the planner if the descriptor does not determine it.
    """

    number: int
    descriptor: Any
    prefix: str = ""
    layout: Layout | None = None


@dataclass(frozen=True)
class Recipe:
    """A primitive and the ports of a node's inputs and outputs, in order.

    in_place: pairs (input, output) that may share memory.
    """

    description: Description
    inputs: Sequence[Port]
    outputs: Sequence[Port]
    in_place: tuple[tuple[int, int], ...] = ()


Describe = Callable[[Library, Node, Layouts, Layouts], Recipe]
"""(library, node, fixed layouts of inputs, of outputs) -> recipe; None is a layout that is not fixed yet."""

Request = Callable[[Node, Layouts], tuple[Layouts, Layouts] | None]
"""(node, offered layouts) -> requested layouts of inputs and outputs, or None if the node is not supported."""

Finish = Callable[[Buffers], PythonCall]
"""(memory of a node) -> the function that runs after the primitive."""


def add_kernel(
    registry: Registry,
    library: Library,
    op: str,
    describe: Describe,
    request: Request,
    dtypes: frozenset[str] = FLOATS,
    finish: Finish | None = None,
) -> None:
    """Register a oneDNN kernel made of one primitive. finish: makes the function that runs after it, if any."""

    def arrange(node: Node, offered: Layouts) -> Arrangement | None:
        requested = request(node, offered)
        return None if requested is None else _arranged(library, describe(library, node, *requested), node)

    def bind(attributes: Attributes, arrangement: Arrangement, buffers: Buffers) -> Bound:
        node = Node(attributes, [each.spec for each in buffers.inputs], [each.spec for each in buffers.outputs])
        recipe = describe(library, node, arrangement.inputs, arrangement.outputs)
        arguments = {
            port.number: (port.descriptor, operand)
            for port, operand in zip(
                (*recipe.inputs, *recipe.outputs), (*buffers.inputs, *buffers.outputs), strict=True
            )
        }
        primitive = bound(recipe.description, arguments, buffers.host_scratch)
        return primitive if finish is None else _followed(in_turn(library, [primitive]), finish(buffers))

    registry.add(Kernel(op, "cpu", "onednn", PRIORITY, dtypes, answering(library, arrange), bind))


def _followed(first: PythonCall, second: PythonCall) -> PythonCall:
    def run() -> None:
        first()
        second()

    return run


def answering(library: Library, arrange: Callable[[Node, Layouts], Arrangement | None]) -> Arrange:
    """Return an arrange function that refuses what oneDNN does not support and caches its answers.

    Networks repeat layers, and queries of the library are slow. The cache key has the number of threads, because most
    scratch memory is per thread.
    """
    known: dict[object, Arrangement | None] = {}

    def answer(attributes: Attributes, inputs: Specs, outputs: Specs, offered: Layouts) -> Arrangement | None:
        key = (library.threads(), tuple(sorted(attributes.items())), tuple(inputs), tuple(outputs), tuple(offered))
        if key not in known:
            known[key] = _asked(library, arrange, Node(attributes, inputs, outputs), offered)
        return known[key]

    return answer


def _asked(
    library: Library, arrange: Callable[[Node, Layouts], Arrangement | None], node: Node, offered: Layouts
) -> Arrangement | None:
    # oneDNN has no primitives for empty tensors and for tensors without axes.
    for spec in (*node.inputs, *node.outputs):
        if not spec.shape or 0 in spec.shape or spec.dtype not in library.dtypes:
            return None
    try:
        return arrange(node, offered)
    except Unimplemented:
        return None


def _arranged(library: Library, recipe: Recipe, node: Node) -> Arrangement:
    return Arrangement(
        tuple(_layout(library, port, spec) for port, spec in zip(recipe.inputs, node.inputs, strict=True)),
        tuple(_layout(library, port, spec) for port, spec in zip(recipe.outputs, node.outputs, strict=True)),
        recipe.description.scratch_bytes,
        recipe.in_place,
    )


def _layout(library: Library, port: Port, spec: Spec) -> Layout:
    return port.layout or layout_of(library, port.descriptor, spec, port.prefix)


def as_offered(node: Node, offered: Layouts) -> tuple[Layouts, Layouts]:
    """Request the offered layouts, for ops that are bound by memory."""
    return offered, [None] * len(node.outputs)


def format_of(*layouts: Layout | None) -> str:
    """Return the name of the first format that is not C order, or ""."""
    for layout in layouts:
        prefix, name = split_tag(layout.tag) if layout is not None else ("", "")
        if name and prefix in ("", BYTES, BITS):
            return name
    return ""
