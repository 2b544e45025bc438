"""Descriptions of primitives and their bound calls."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from runner.kernels.contract import Array, Layout, NativeCall, Operand, PythonCall, Spec
from runner.kernels.cpu.dispatch import join_in_python
from runner.kernels.cpu.onednn import constants as dnnl
from runner.kernels.cpu.onednn import memory
from runner.kernels.cpu.onednn.library import Library

LARGEST = float(np.finfo(np.float32).max)
"""The largest float32."""


class Description:
    """A primitive that oneDNN has chosen for given shapes, before it is built; it knows the layouts it requests."""

    def __init__(self, library: Library, kind: str, *arguments: Any) -> None:
        """``arguments`` are those of ``dnnl_<kind>_primitive_desc_create`` after the result; raises Unimplemented."""
        created = library.create(f"{kind}_primitive_desc_create", *arguments)
        self.library = library
        self.handle = library.owned(created, "primitive_desc")

    def layout(self, query: int, spec: Spec, prefix: str = "") -> Layout:
        """The layout of one argument, for a tensor of ``spec`` seen as ``prefix`` says."""
        return memory.layout_of(self.library, self.descriptor(query), spec, prefix)

    def descriptor(self, query: int) -> Any:
        """The descriptor of one argument; it lives as long as this description."""
        return self.library.c.dnnl_primitive_desc_query_md(self.handle, query, 0)

    def nbytes(self, query: int) -> int:
        """Memory of one argument."""
        return memory.nbytes(self.library, self.descriptor(query))

    @property
    def scratch_bytes(self) -> int:
        """Bytes of scratch memory of the primitive."""
        return self.nbytes(dnnl.QUERY_SCRATCHPAD)


def attributes(library: Library, *, relu: bool = False, added: Any = None) -> Any:
    """Return the attributes of a primitive whose scratch memory the caller provides.

    added: descriptor of a tensor that is added to the result. relu: whether max(result, 0) follows, in which NaN
    stays NaN, minus infinity becomes NaN, and a zero may be -0.
    """
    made = library.owned(library.create("primitive_attr_create"), "primitive_attr")
    library.check("scratchpad", library.c.dnnl_primitive_attr_set_scratchpad_mode(made, dnnl.SCRATCHPAD_BY_USER))
    if relu or added is not None:
        post_ops = library.owned(library.create("post_ops_create"), "post_ops")
        if added is not None:
            library.check("add", library.c.dnnl_post_ops_append_binary(post_ops, dnnl.BINARY_ADD, added))
        if relu:
            # The library's ReLU turns NaN into 0. This is x * max(0, min(1, LARGEST * x)): 0 for negative x, and x
            # itself from 3e-39 on; smaller float32 numbers are subnormal.
            kind = dnnl.ELTWISE_HARDSWISH
            library.check("relu", library.c.dnnl_post_ops_append_eltwise(post_ops, kind, LARGEST, 0.0))
        library.check("post_ops", library.c.dnnl_primitive_attr_set_post_ops(made, post_ops))
    return made


Argument = tuple[Any, Operand]
"""A memory descriptor and the tensor whose bytes it describes."""


def bound(description: Description, arguments: Mapping[int, Argument], scratch: Array) -> NativeCall:
    """Build the primitive and fix its arguments: DNNL_ARG number -> (descriptor, tensor).

    Raises ValueError if ``scratch`` has less than ``description.scratch_bytes`` bytes.
    """
    library = description.library
    if scratch.nbytes < description.scratch_bytes:
        # The library receives an address without a size and would write past the end.
        raise ValueError(
            f"a primitive for {library.threads()} threads needs {description.scratch_bytes} bytes of scratch memory, "
            f"came {scratch.nbytes}: it was planned for other threads; plan and bind under one budget of threads"
        )
    ffi = library.ffi
    primitive = library.owned(library.create("primitive_create", description.handle), "primitive")
    places = {number: (descriptor, operand.address) for number, (descriptor, operand) in arguments.items()}
    if description.scratch_bytes:
        places[dnnl.SCRATCHPAD] = (description.descriptor(dnnl.QUERY_SCRATCHPAD), int(scratch.ctypes.data))
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
    """Return a function that runs calls in order, for kernels with a part in Python; it raises OneDnnError."""
    joined = join_in_python(calls)

    def run() -> None:
        library.check("primitive_execute", joined() & 0xFFFF)

    return run
