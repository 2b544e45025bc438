"""The common part of oneDNN kernels: a recipe has the primitive of a node and a port (an argument) for each tensor.

Each kernel has a function ``describe``, which returns the recipe for a node. Some or all layouts of the node's tensors
are fixed, and oneDNN chooses the others. When a node is arranged, ``describe`` receives the requested layouts; when it
is bound, ``describe`` receives all layouts.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from runner.kernels.contract import (
    Arrange,
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
    Specs,
)
from runner.kernels.cpu.dispatch import join_in_python
from runner.kernels.cpu.onednn import constants as dnnl
from runner.kernels.cpu.onednn.library import Library, Unimplemented
from runner.kernels.cpu.onednn.memory import AXES, BITS, BYTES, layout_of, nbytes, split_tag
from runner.kernels.memory import require_scratch
from runner.kernels.registry import Registry

LARGEST = float(np.finfo(np.float32).max)
"""The largest float32."""


class Description:
    """The descriptor of a primitive that oneDNN has chosen for given shapes, with the layouts of all arguments."""

    def __init__(self, library: Library, kind: str, *arguments: Any, attr: Any = None) -> None:
        """Create the descriptor; raises Unimplemented if oneDNN has no such primitive.

        arguments: the arguments of ``dnnl_<kind>_primitive_desc_create`` without the engine at the beginning (which a
        reorder does not have) and the attributes at the end. attr: the attributes; by default without post-ops.
        """
        engine = () if kind == "reorder" else (library.engine,)
        attr = attributes(library) if attr is None else attr
        created = library.create(f"{kind}_primitive_desc_create", *engine, *arguments, attr)
        self.library = library
        self.handle = library.owned(created, "primitive_desc")

    def descriptor(self, argument: int) -> Any:
        """Return the memory descriptor of an argument (DNNL_ARG number); valid as long as this description exists."""
        return self.library.c.dnnl_primitive_desc_query_md(self.handle, dnnl.QUERIES[argument], 0)

    def port(self, argument: int, prefix: str = "") -> "Port":
        """Return the port of an argument. prefix: names oneDNN's view of the tensor (see ``memory``)."""
        return Port(argument, self.descriptor(argument), prefix)

    def nbytes(self, argument: int) -> int:
        """Return the size of an argument in bytes."""
        return nbytes(self.library, self.descriptor(argument))

    @property
    def implementation(self) -> str:
        """oneDNN's name for the kernel that it has chosen, such as "jit:avx512_core"."""
        name = self.library.ffi.new("const char **")
        status = self.library.c.dnnl_primitive_desc_query(self.handle, dnnl.QUERY_IMPLEMENTATION, 0, name)
        self.library.check("primitive_desc_query", status)
        return str(self.library.ffi.string(name[0]).decode())

    @property
    def scratch_bytes(self) -> int:
        """Size, in bytes, of the scratch memory that the primitive needs."""
        return self.nbytes(dnnl.SCRATCHPAD)


def attributes(library: Library, *, relu: bool = False, added: Any = None) -> Any:
    """Return the attributes of a primitive whose scratch memory the caller provides.

    added: descriptor of a tensor that is added to the result. relu: whether max(result, 0) follows; then NaN gives NaN,
    minus infinity gives NaN instead of 0, and a zero may be -0.
    """
    attr = library.owned(library.create("primitive_attr_create"), "primitive_attr")
    library.check("scratchpad", library.c.dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl.SCRATCHPAD_BY_USER))
    if relu or added is not None:
        post_ops = library.owned(library.create("post_ops_create"), "post_ops")
        if added is not None:
            library.check("add", library.c.dnnl_post_ops_append_binary(post_ops, dnnl.BINARY_ADD, added))
        if relu:
            # oneDNN's ReLU turns NaN into 0. The hard swish is x * max(0, min(1, LARGEST * x)): 0 for negative x, and
            # x itself from 3e-39 on. Only smaller positive numbers, all subnormal in float32, are not exact.
            kind = dnnl.ELTWISE_HARDSWISH
            library.check("relu", library.c.dnnl_post_ops_append_eltwise(post_ops, kind, LARGEST, 0.0))
        library.check("post_ops", library.c.dnnl_primitive_attr_set_post_ops(attr, post_ops))
    return attr


Argument = tuple[Any, Operand]
"""A memory descriptor, and the tensor whose memory the descriptor describes."""


def bound(description: Description, arguments: Mapping[int, Argument], scratch: Array) -> NativeCall:
    """Create the primitive and bind its arguments. arguments: DNNL_ARG number -> (descriptor, tensor).

    Raises ValueError if ``scratch`` has fewer than ``description.scratch_bytes`` bytes.
    """
    library = description.library
    require_scratch(scratch, description.scratch_bytes, library.threads())
    ffi = library.ffi
    primitive = library.owned(library.create("primitive_create", description.handle), "primitive")
    places = {number: (descriptor, operand.address) for number, (descriptor, operand) in arguments.items()}
    if description.scratch_bytes:
        places[dnnl.SCRATCHPAD] = (description.descriptor(dnnl.SCRATCHPAD), int(scratch.ctypes.data))
    memories = [
        library.owned(
            library.create("memory_create", descriptor, library.engine, ffi.cast("void *", address)), "memory"
        )
        for descriptor, address in places.values()
    ]
    table = ffi.new("dnnl_exec_arg_t[]", list(zip(places, memories, strict=True)))
    execute = library.address(ffi.addressof(library.c, "dnnl_primitive_execute"))
    call = (library.address(primitive), library.address(library.stream), len(memories), library.address(table))
    held = (description, primitive, memories, table, scratch, tuple(arguments.values()))
    return NativeCall(execute, call, held)


def in_turn(library: Library, calls: Sequence[NativeCall]) -> PythonCall:
    """Return a function that runs calls in order and raises the errors of ``check``, for kernels that use Python."""
    joined = join_in_python(calls)

    def run() -> None:
        library.check("primitive_execute", joined() & 0xFFFF)

    return run


PRIORITY = 20
FLOATS = frozenset({"float32", "bfloat16"})

Layouts = Sequence[Layout | None]


@dataclass(frozen=True)
class Node:
    """The attributes of a node and the specs of its inputs and outputs."""

    attributes: Attributes
    inputs: Sequence[Spec]
    outputs: Sequence[Spec]


@dataclass(frozen=True)
class Port:
    """The argument of one tensor: DNNL_ARG number, descriptor, and a prefix that names oneDNN's view of the tensor.

    layout: the layout that the planner sees; None to derive it from the descriptor.
    """

    number: int
    descriptor: Any
    prefix: str = ""
    layout: Layout | None = None


@dataclass(frozen=True)
class Recipe:
    """A primitive and its ports for inputs and outputs. in_place: pairs (input, output) that may share memory."""

    description: Description
    inputs: Sequence[Port]
    outputs: Sequence[Port]
    in_place: tuple[tuple[int, int], ...] = ()


Describe = Callable[[Library, Node, Layouts, Layouts], Recipe]
"""(library, node, layouts of inputs, layouts of outputs) -> recipe. A layout that is not fixed yet is None."""

Request = Callable[[Node, Layouts], tuple[Layouts, Layouts] | None]
"""(node, offered layouts) -> requested layouts of inputs and outputs, or None if the node is not supported."""

Finish = Callable[[Buffers], PythonCall]
"""(buffers of a node) -> the function that runs after the primitive."""


def add_kernel(
    registry: Registry, library: Library, op: str, describe: Describe, request: Request, finish: Finish | None = None
) -> None:
    """Register a oneDNN kernel of one primitive. finish: returns a function that runs after the primitive."""

    def arrange(node: Node, offered: Layouts) -> Arrangement | None:
        requested = request(node, offered)
        if requested is None:
            return None
        found = _arranged(library, describe(library, node, *requested), node)
        # oneDNN may choose another kernel once all layouts are fixed, as when the node is bound.
        final = describe(library, node, found.inputs, found.outputs).description
        return replace(found, scratch_bytes=final.scratch_bytes)

    def bind(attributes: Attributes, arrangement: Arrangement, buffers: Buffers) -> Bound:
        node = Node(attributes, *buffers.specs)
        recipe = describe(library, node, arrangement.inputs, arrangement.outputs)
        ports, operands = (*recipe.inputs, *recipe.outputs), (*buffers.inputs, *buffers.outputs)
        pairs = zip(ports, operands, strict=True)
        arguments = {port.number: (port.descriptor, operand) for port, operand in pairs}
        primitive = bound(recipe.description, arguments, buffers.host_scratch)
        return primitive if finish is None else followed(in_turn(library, [primitive]), finish(buffers))

    registry.add(Kernel(op, "cpu", "onednn", PRIORITY, FLOATS, answering(library, arrange), bind))


def followed(first: PythonCall, second: PythonCall) -> PythonCall:
    """Return a function that calls two functions, one after the other."""

    def run() -> None:
        first()
        second()

    return run


def answering(library: Library, arrange: Callable[[Node, Layouts], Arrangement | None]) -> Arrange:
    """Return an arrange function that returns None for unsupported nodes and caches its results.

    Networks repeat layers, and queries of oneDNN are slow. The cache key contains the number of threads, because most
    scratch memory is per thread.
    """
    known: dict[object, Arrangement | None] = {}

    def answer(attributes: Attributes, inputs: Specs, outputs: Specs, offered: Layouts) -> Arrangement | None:
        key = (library.threads(), tuple(sorted(attributes.items())), tuple(inputs), tuple(outputs), tuple(offered))
        if key not in known:
            known[key] = _arrange_or_none(library, arrange, Node(attributes, inputs, outputs), offered)
        return known[key]

    return answer


def _arrange_or_none(
    library: Library, arrange: Callable[[Node, Layouts], Arrangement | None], node: Node, offered: Layouts
) -> Arrangement | None:
    # oneDNN has no primitives for empty tensors, or for tensors without axes or with more than 12 axes.
    for spec in (*node.inputs, *node.outputs):
        if not 0 < len(spec.shape) <= len(AXES) or 0 in spec.shape or spec.dtype not in library.dtypes:
            return None
    try:
        return arrange(node, offered)
    except Unimplemented:
        return None


def _arranged(library: Library, recipe: Recipe, node: Node) -> Arrangement:
    return Arrangement(
        tuple(_layout(library, port, spec) for port, spec in zip(recipe.inputs, node.inputs, strict=True)),
        tuple(_layout(library, port, spec) for port, spec in zip(recipe.outputs, node.outputs, strict=True)),
        in_place=recipe.in_place,
    )


def _layout(library: Library, port: Port, spec: Spec) -> Layout:
    return port.layout or layout_of(library, port.descriptor, spec, port.prefix)


def as_offered(node: Node, offered: Layouts) -> tuple[Layouts, Layouts]:
    """Request the offered layouts for inputs and no layouts for outputs; for memory-bound ops."""
    return offered, [None] * len(node.outputs)


def format_of(*layouts: Layout | None) -> str:
    """Return the name of the first format that is not C order, or "". Skip layouts with prefix "t:" or "g<groups>:"."""
    for layout in layouts:
        prefix, name = split_tag(layout.tag) if layout is not None else ("", "")
        if name and prefix in ("", BYTES, BITS):
            return name
    return ""
