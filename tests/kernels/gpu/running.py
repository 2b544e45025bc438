"""Run a single GPU kernel, as planner and executor do, on an emulated or a real GPU.

Each operand has separate GPU memory, which starts as garbage. Outputs are copied back on the stream that the kernel
receives, so they are garbage if the kernel enqueues its work on another stream.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runner.engine.graph import Node
from runner.kernels.contract import Arrangement, Buffers, Choice, Kernel, Layout, Operand, Spec, plain
from runner.kernels.gpu.layouts import CHANNELS_LAST, channels_last
from runner.kernels.gpu.runtime import DeviceMemory, Failures, Runtime, Stream, StreamCall
from runner.kernels.registry import Registry
from tests.kernels import harness
from tests.kernels.gpu.emulation import EmulatedRuntime
from tests.kernels.harness import node_of
from tests.samples import PRECISION, Case

Array = NDArray[Any]
LayoutsOfInputs = str | Sequence[Layout | None] | None
"""Offered layouts: one per input, or None for plain inputs, or "nhwc" for channels last in inputs with four axes."""

DTYPES = ("float32", "float64", "bfloat16")

_INNERMOST_LAST, _INNERMOST_SECOND = (0, 2, 3, 1), (0, 3, 1, 2)


def failures(runtime: Runtime, explain: Callable[[int], str]) -> Failures:
    """Return a new status word without a failure."""
    word = runtime.pinned(4).view(np.int32)
    word[0] = 0
    return Failures(word, explain)


def registry_of(runtime: Runtime, *modules: ModuleType) -> Registry:
    """Return a registry with the kernels of modules of ``runner.kernels.gpu``."""
    registry = Registry()
    for module in modules:
        for kernel in module.kernels(runtime):
            registry.add(kernel)
    return registry


def run_op(
    runtime: Runtime,
    op: str,
    inputs: Sequence[Array],
    attributes: Mapping[str, Any] | None = None,
    layouts: LayoutsOfInputs = None,
    *,
    registry: Registry,
    library: str | None = None,
    in_place: bool = False,
) -> list[Array]:
    """Run a node and return its outputs as plain arrays.

    library: the kernel's library; None for the first kernel by priority that accepts the node. in_place: outputs share
    the memory of inputs if the kernel allows it. Raises KernelError if no kernel accepts the node, AssertionError if
    the kernel writes to other memory, and RuntimeError with the message of the kernel if the kernel refuses a value.
    """
    node = node_of(op, inputs, attributes or {})
    specs = [harness.Shaped.of(array) for array in inputs]
    choice = chosen(registry, node, specs, offers_for(specs, layouts), library)
    return run_choice(runtime, node, choice, inputs, in_place=in_place)


def offers_for(specs: Sequence[Spec], layouts: LayoutsOfInputs) -> Sequence[Layout | None]:
    """Return the offered layout of each input."""
    if layouts is None:
        return [plain(spec) for spec in specs]
    if isinstance(layouts, str):
        assert layouts == CHANNELS_LAST, layouts
        return [channels_last(spec) if len(spec.shape) == 4 else plain(spec) for spec in specs]
    return layouts


def chosen(
    registry: Registry, node: Node, specs: Sequence[Spec], offered: Sequence[Layout | None], library: str | None
) -> Choice:
    """Return the kernel for a node, with its arrangement."""
    if library is None:
        return registry.choose(node.op, "gpu", node.attributes, specs, node.outputs, offered)
    kernel = registry.find(node.op, "gpu", library)
    arrangement = kernel.arrange(node.attributes, specs, node.outputs, offered)
    assert arrangement is not None, f"{library} refuses {node.op} of {specs}, offered {offered}"
    return Choice(kernel, arrangement)


def able(
    registry: Registry, op: str, inputs: Sequence[Array], attributes: Mapping[str, Any], layouts: LayoutsOfInputs = None
) -> list[tuple[Kernel, Arrangement]]:
    """Return the kernels that accept a node, each with its arrangement; fail if there is none."""
    node, specs = node_of(op, inputs, attributes), [harness.Shaped.of(array) for array in inputs]
    floats = {spec.dtype for spec in (*specs, *node.outputs) if spec.dtype in DTYPES}
    offered = offers_for(specs, layouts)
    asked = [
        (kernel, kernel.arrange(node.attributes, specs, node.outputs, offered))
        for kernel in registry.of(op, "gpu")
        if floats <= kernel.dtypes
    ]
    found = [(kernel, arrangement) for kernel, arrangement in asked if arrangement is not None]
    assert found, f"no kernel takes {op} of {specs}"
    return found


def bound_to(
    runtime: Runtime, node: Node, choice: Choice, specs: Sequence[Spec], *, in_place: bool = False
) -> tuple[StreamCall, Buffers]:
    """Bind a choice to new memory; return the call and its memory, which the call does not keep alive."""
    arrangement = choice.arrangement
    sources = [_allocated(runtime, *each) for each in zip(specs, arrangement.inputs, strict=True)]
    targets = [_allocated(runtime, *each) for each in zip(node.outputs, arrangement.outputs, strict=True)]
    for i, o in harness.once_each(arrangement.in_place).items() if in_place else ():
        assert sources[i].layout.nbytes == targets[o].layout.nbytes, "operands that share memory have equal sizes"
        targets[o] = Operand(targets[o].spec, targets[o].layout, sources[i].data)
    buffers = Buffers(tuple(sources), tuple(targets), runtime.allocate(arrangement.scratch_bytes))
    bound = choice.kernel.bind(node.attributes, arrangement, buffers)
    assert isinstance(bound, StreamCall), f"a GPU kernel must be bound to a StreamCall, not to {bound!r}"
    return bound, buffers


def run_choice(
    runtime: Runtime, node: Node, choice: Choice, inputs: Sequence[Array], *, in_place: bool = False
) -> list[Array]:
    """Bind and run a chosen kernel and return its outputs; fail if it wrote to inputs that no output shares."""
    stream, specs = runtime.stream(), [harness.Shaped.of(array) for array in inputs]
    bound, buffers = bound_to(runtime, node, choice, specs, in_place=in_place)
    sources, targets = buffers.inputs, buffers.outputs
    shared = {source.address for source in sources} & {target.address for target in targets}
    for operand, array in zip(sources, inputs, strict=True):
        put(runtime, stream, operand, array)
    if shared:
        bound.enqueue(stream)
    else:
        _replay(runtime, stream, bound, targets)
    outputs = [got(runtime, stream, operand) for operand in targets]
    for i, (operand, array) in enumerate(zip(sources, inputs, strict=True)):
        unchanged = operand.address in shared or got(runtime, stream, operand).tobytes() == array.tobytes()
        assert unchanged, f"the kernel wrote to input {i}"
    if bound.failures is not None and _status(bound):
        raise RuntimeError(bound.failures.explain(_status(bound)))
    return outputs


def _replay(runtime: Runtime, stream: Stream, bound: StreamCall, targets: Sequence[Operand]) -> None:
    """Capture a call and launch the graph twice, as steps of a run do; both launches must give the same bits.

    On an emulated GPU the threads of a block run in the opposite order the second time.
    """
    graph = runtime.capture(stream, lambda: bound.enqueue(stream))
    graph.launch(stream)
    first, status = [got(runtime, stream, target) for target in targets], _status(bound)
    if isinstance(runtime, EmulatedRuntime):
        runtime.reversed = not runtime.reversed
    if bound.failures is not None:
        bound.failures.word[0] = 0
    graph.launch(stream)
    second = [got(runtime, stream, target) for target in targets]
    if isinstance(runtime, EmulatedRuntime):
        runtime.reversed = not runtime.reversed
    assert status == _status(bound), "two launches of one graph fail differently"
    for number, (one, other) in enumerate(zip(first, second, strict=True)):
        assert status or one.tobytes() == other.tobytes(), f"two launches of one graph differ in output {number}"


def put(runtime: Runtime, stream: Stream, operand: Operand, array: Array) -> None:
    """Copy an array into the GPU memory of an operand, in its layout."""
    lying = array.transpose(_INNERMOST_LAST) if operand.layout.tag == CHANNELS_LAST else array
    pinned = runtime.pinned(operand.layout.nbytes)
    pinned[:] = np.frombuffer(np.ascontiguousarray(lying).tobytes(), np.uint8)
    runtime.copy(operand.address, pinned.ctypes.data, operand.layout.nbytes, stream)
    # The pinned memory must exist until the copy is done.
    runtime.synchronize(stream)


def got(runtime: Runtime, stream: Stream, operand: Operand) -> Array:
    """Return a copy of an operand as a plain array, after all work on the stream."""
    pinned = runtime.pinned(operand.layout.nbytes)
    runtime.copy(pinned.ctypes.data, operand.address, operand.layout.nbytes, stream)
    runtime.synchronize(stream)
    shape, values = operand.spec.shape, pinned.copy().view(np.dtype(operand.spec.dtype))
    if operand.layout.is_plain:
        return values.reshape(shape)
    n, c, h, w = shape
    return np.ascontiguousarray(values.reshape(n, h, w, c).transpose(_INNERMOST_SECOND))


def drawn_for(op: str, case: Case, dtype: str) -> tuple[list[Array], dict[str, Any]]:
    """Return inputs and attributes of a case, with floats of ``dtype``.

    For bfloat16, the inputs of batch normalization that have one number per channel are float32.
    """
    attributes = {name: dtype if value == PRECISION else value for name, value in case.attributes.items()}
    arrays = case.draw(4, dtype)
    if dtype == "bfloat16" and op.startswith("batch_norm"):
        arrays = [array.astype(np.float32) if array.ndim == 1 else array for array in arrays]
    return arrays, attributes


def require_close(found: Iterable[Array], expected: Iterable[Array], tolerance: float = 0.0) -> None:
    """Fail if shapes, dtypes or values differ; NaN equals NaN. tolerance: relative and absolute, 0 for equal bits."""
    for one, other in zip(found, expected, strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        wide = [each.astype(np.float32) if each.dtype.name == "bfloat16" else each for each in (one, other)]
        if tolerance:
            np.testing.assert_allclose(wide[0], wide[1], rtol=tolerance, atol=tolerance)
        else:
            np.testing.assert_array_equal(wide[0], wide[1])
            if wide[0].dtype.kind == "f":
                zeros = wide[1] == 0
                np.testing.assert_array_equal(np.signbit(wide[0][zeros]), np.signbit(wide[1][zeros]), "signs of zeros")


def _allocated(runtime: Runtime, spec: Spec, layout: Layout) -> Operand:
    memory: DeviceMemory = runtime.allocate(layout.nbytes)
    return Operand(spec, layout, memory)


def _status(bound: StreamCall) -> int:
    return 0 if bound.failures is None else int(bound.failures.word[0])
