"""Run one kernel as planner and executor do: with buffers in the requested layouts, and conversions between layouts.

Outputs and scratch memory hold garbage, and every buffer is followed by guard bytes.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from runner.engine.graph import Graph, Node
from runner.engine.run.kernel_table import load_kernels
from runner.kernels.contract import (
    Arrangement,
    Array,
    Bound,
    Buffers,
    Kernel,
    Layout,
    Offers,
    Operand,
    Spec,
    native_calls,
    plain,
)
from runner.kernels.memory import ALIGNMENT, allocate, numpy_dtype
from runner.kernels.registry import Registry

GARBAGE = 0xFF
"""The byte that fills unwritten memory and guards; as floats, these bytes are NaN."""


@dataclass(frozen=True)
class Shaped:
    """The spec of a tensor, with any dtype of NumPy."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.shape)) * numpy_dtype(self.dtype).itemsize

    @classmethod
    def of(cls, array: Array) -> "Shaped":
        return cls(array.shape, array.dtype.name)


@dataclass(frozen=True)
class Ran:
    """The result of a kernel: outputs as arrays, the arrangement, and the operands in memory."""

    outputs: list[Array]
    arrangement: Arrangement
    outputs_in_memory: list[Operand]

    @property
    def tags(self) -> tuple[list[str], list[str]]:
        """Tags of the layouts of inputs and outputs."""
        arrangement = self.arrangement
        return [each.tag for each in arrangement.inputs], [each.tag for each in arrangement.outputs]


def arranged(
    kernel: Kernel,
    attributes: Mapping[str, Any],
    inputs: Sequence[Spec],
    outputs: Sequence[Spec],
    offered: Offers | None = None,
) -> Arrangement:
    """Return the arrangement of a node whose inputs are offered in these layouts (None: all plain)."""
    layouts = [plain(spec) for spec in inputs] if offered is None else offered
    found = kernel.arrange(attributes, inputs, outputs, layouts)
    assert found is not None, f"{kernel.library} refuses {kernel.op} of {inputs}, offered {layouts}"
    return found


def run(
    kernel: Kernel,
    attributes: Mapping[str, Any],
    in_specs: Sequence[Spec],
    out_specs: Sequence[Spec],
    arrays: Sequence[Array | Operand],
    offered: Offers | None = None,
    *,
    registry: Registry | None = None,
    in_place: bool = False,
) -> Ran:
    """Run a kernel on arrays, offered in the layouts ``offered`` (None: all plain), or on operands in memory.

    registry: has the kernels of op ``convert``. in_place: outputs share the memory of inputs if the kernel allows it.
    """
    layouts = [plain(spec) for spec in in_specs] if offered is None else offered
    arrangement = arranged(kernel, attributes, in_specs, out_specs, layouts)
    inputs = [
        _brought(registry, spec, value, layout, wanted)
        for spec, value, layout, wanted in zip(in_specs, arrays, layouts, arrangement.inputs, strict=True)
    ]
    outputs = [filled(spec, layout) for spec, layout in zip(out_specs, arrangement.outputs, strict=True)]
    for i, o in once_each(arrangement.in_place).items() if in_place else ():
        assert inputs[i].layout.nbytes == outputs[o].layout.nbytes, "operands that share memory have equal sizes"
        outputs[o] = Operand(outputs[o].spec, outputs[o].layout, inputs[i].data)
    before = [operand.data.copy() for operand in inputs]
    call_bound(kernel, attributes, arrangement, inputs, outputs)
    shared = {id(operand.data) for operand in outputs}
    for operand, bytes_before in zip(inputs, before, strict=True):
        assert id(operand.data) in shared or np.array_equal(operand.data, bytes_before), "the kernel wrote to an input"
    plain_outputs = [converted(registry, each, plain(each.spec)).array.copy() for each in outputs]
    return Ran(plain_outputs, arrangement, outputs)


def run_node(
    kernel: Kernel,
    attributes: Mapping[str, Any],
    arrays: Sequence[Array],
    offered: Offers | None = None,
    *,
    registry: Registry | None = None,
    in_place: bool = False,
) -> Ran:
    """Run a kernel, as :func:`run` does, on the node of its op with these inputs and attributes."""
    node, specs = node_of(kernel.op, arrays, attributes), [Shaped.of(array) for array in arrays]
    return run(kernel, node.attributes, specs, node.outputs, arrays, offered, registry=registry, in_place=in_place)


def run_shared(
    kernel: Kernel, attributes: Mapping[str, Any], arrays: Sequence[Array], places: Sequence[int | None]
) -> list[Array]:
    """Run a kernel on plain arrays. places: for each output, the input whose memory it shares, or None."""
    node, inputs = node_of(kernel.op, arrays, attributes), [holding(array) for array in arrays]
    arrangement = arranged(kernel, node.attributes, [each.spec for each in inputs], node.outputs)
    fresh = [filled(spec, plain(spec)) for spec in node.outputs]
    outputs = [own if place is None else inputs[place] for own, place in zip(fresh, places, strict=True)]
    call_bound(kernel, node.attributes, arrangement, inputs, outputs)
    return [output.array for output in outputs]


def node_of(op: str, inputs: Sequence[Array], attributes: Mapping[str, Any]) -> Node:
    """Return a node of the op whose inputs are placeholders with the shapes and dtypes of ``inputs``."""
    graph = Graph()
    placeholders = [
        graph.add("placeholder", (), {"shape": each.shape, "dtype": each.dtype.name}, name=f"input_{number}")[0]
        for number, each in enumerate(inputs)
    ]
    return graph.add(op, placeholders, attributes)


def reference(op: str, inputs: Sequence[Array], attributes: Mapping[str, Any] | None = None) -> list[Array]:
    """Return the results of the reference kernel."""
    with np.errstate(all="ignore"):
        return run_node(load_kernels().find(op, "cpu", "numpy"), attributes or {}, inputs).outputs


def exact(op: str, inputs: Sequence[Array], attributes: Mapping[str, Any] | None = None) -> list[Array]:
    """Return the results of the reference kernel in float64."""
    wide = [array.astype(np.float64) if is_float(array.dtype.name) else array for array in inputs]
    given = {key: "float64" if key == "dtype" else value for key, value in (attributes or {}).items()}
    return run_node(load_kernels().find(op, "cpu", "numpy"), given, wide).outputs


def is_float(dtype: str) -> bool:
    return dtype in ("float32", "float64", "bfloat16")


def once_each(pairs: Iterable[tuple[int, int]]) -> dict[int, int]:
    """Return input -> output of the pairs that a planner chooses: pairs without a tensor of an earlier pair."""
    chosen: dict[int, int] = {}
    for i, o in pairs:
        if i not in chosen and o not in chosen.values():
            chosen[i] = o
    return chosen


def call_bound(
    kernel: Kernel,
    attributes: Mapping[str, Any],
    arrangement: Arrangement,
    inputs: Sequence[Operand],
    outputs: Sequence[Operand],
) -> None:
    """Bind a kernel to operands, run it, and check the guard bytes after all buffers."""
    scratch = filled(Shaped((arrangement.scratch_bytes,), "uint8"), Layout("", arrangement.scratch_bytes))
    bound = kernel.bind(attributes, arrangement, Buffers(tuple(inputs), tuple(outputs), scratch.data))
    invoke(bound)
    for operand in (*inputs, *outputs, scratch):
        memory, end = np.asarray(operand.data.base), operand.data.ctypes.data + operand.data.size
        guard = memory[end - memory.ctypes.data :][:ALIGNMENT]
        assert len(guard) == ALIGNMENT, "a buffer is a view of its memory with guard bytes"
        assert (guard == GARBAGE).all(), "the kernel wrote past the end of a buffer"


def invoke(bound: Bound) -> None:
    """Make a bound call once."""
    if callable(bound):
        bound()
    elif calls := native_calls(bound):
        # Import here, because GPU kernels are also tested without cffi.
        from runner.kernels.cpu.dispatch import join_in_python

        status = join_in_python(calls)() & 0xFFFF
        assert status == 0, f"status {status}"


def filled(spec: Spec, layout: Layout) -> Operand:
    """Return memory that holds garbage, with guard bytes after it."""
    memory = allocate(layout.nbytes + ALIGNMENT)
    memory.fill(GARBAGE)
    return Operand(spec, layout, memory[: layout.nbytes])


def holding(array: Array, spec: Spec | None = None) -> Operand:
    """Return plain memory that holds an array."""
    spec = Shaped.of(array) if spec is None else spec
    assert (array.shape, array.dtype.name) == (spec.shape, spec.dtype), f"{array.dtype}{array.shape} for {spec}"
    operand = filled(spec, plain(spec))
    np.copyto(operand.array, array)
    return operand


def converted(registry: Registry | None, operand: Operand, wanted: Layout) -> Operand:
    """Return the same tensor in another layout."""
    if operand.layout == wanted:
        return operand
    choice = (registry or load_kernels()).choose(
        "convert", "cpu", {}, [operand.spec], [operand.spec], [operand.layout, wanted]
    )
    assert choice.arrangement.outputs == (wanted,), f"no kernel converts {operand.layout} to {wanted}"
    result = filled(operand.spec, wanted)
    call_bound(choice.kernel, {}, choice.arrangement, [operand], [result])
    return result


def _brought(
    registry: Registry | None, spec: Spec, value: Array | Operand, offered: Layout | None, wanted: Layout
) -> Operand:
    """Return a value in the requested layout, converted from the offered one."""
    operand = value if isinstance(value, Operand) else converted(registry, holding(value, spec), offered or wanted)
    return converted(registry, operand, wanted)
