"""What all oneDNN kernels share: a recipe says which primitive does a node and where each tensor goes.

A kernel module writes one function, ``describe``: from the node and the layouts that are already fixed it makes the
primitive's description, leaving the other layouts to the library. Asked with nothing but wishes it arranges the node;
asked with every layout fixed it binds it.
"""

from __future__ import annotations

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
    """What there is to compute."""

    attributes: Attributes
    inputs: Sequence[Spec]
    outputs: Sequence[Spec]


@dataclass(frozen=True)
class Port:
    """Where one tensor goes: DNNL_ARG number, its descriptor, and the prefix under which oneDNN sees it.

    layout: what the planner is told, where it is more than the descriptor says.
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

Wish = Callable[[Node, Layouts], tuple[Layouts, Layouts] | None]
"""(node, offered layouts) -> what to fix before the library is asked, or None for a node it cannot do."""

Finish = Callable[[Buffers], PythonCall]
"""(memory of a node) -> what is called when the primitive has run."""


def add_kernel(
    registry: Registry,
    library: Library,
    op: str,
    describe: Describe,
    wish: Wish,
    dtypes: frozenset[str] = FLOATS,
    finish: Finish | None = None,
) -> None:
    """Register a oneDNN kernel made of one primitive. finish: what is done behind it, if anything."""

    def arrange(node: Node, offered: Layouts) -> Arrangement | None:
        wished = wish(node, offered)
        return None if wished is None else _arranged(library, describe(library, node, *wished), node)

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
    """A registry's arrange function: refuses what oneDNN cannot know or has not implemented, remembers its answers.

    Networks repeat their layers, and asking the library costs more than remembering what it said. It says it for the
    threads that the caller has: most scratch memory is a piece for each of them.
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
    """The wish of an op that is bound by memory: it takes tensors as they come."""
    return offered, [None] * len(node.outputs)


def format_of(*layouts: Layout | None) -> str:
    """Name of the format of the first tensor that has one of its own; "" for C order."""
    for layout in layouts:
        prefix, name = split_tag(layout.tag) if layout is not None else ("", "")
        if name and prefix in ("", BYTES, BITS):
            return name
    return ""
