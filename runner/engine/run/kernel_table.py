"""The kernels that an engine process can use. In the engine, only this module loads kernel modules."""

from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import runner.kernels.reference  # noqa: F401 - registers the kernels
from runner.engine.graph import OPS, Device, GpuOptions, Graph, Node, ops
from runner.engine.graph.op import Decomposition, OpDef
from runner.errors import ResourceError
from runner.kernels.contract import FLOATS, Arrangement, Array, Attributes, Bound, Buffers, Kernel, KernelError
from runner.kernels.cpu.loading import NativeLibrary, register
from runner.kernels.functions import arrange_plain, function_kernel, results
from runner.kernels.registry import REGISTRY, Registry


def load_kernels() -> Registry:
    """Return the registry with a CPU kernel for every op that is executed by a kernel.

    An op without a NumPy kernel is computed by its decomposition if it has one. Raises KernelError naming ops without a
    kernel and kernels without an op.
    """
    native_libraries()
    if _complete != [*OPS.values(), len(REGISTRY)]:
        for definition in OPS.values():
            known = {kernel.library for kernel in REGISTRY.of(definition.name, "cpu")}
            if definition.decompose is not None and "numpy" not in known:
                REGISTRY.add(decomposed_kernel(definition, definition.decompose))
        REGISTRY.require(_executed_by("kernel"), "cpu")
        _complete[:] = [*OPS.values(), len(REGISTRY)]
    return REGISTRY


_complete: list[OpDef | int] = []
"""The ops and the number of kernels at the last check of the registry; plugins can add ops and kernels later."""


def decomposed_kernel(definition: OpDef, decompose: Decomposition) -> Kernel:
    """Return the CPU kernel that computes an op by the NumPy functions of its decomposition.

    Like these functions, the kernel computes bfloat16 in float32, and rounds only its outputs and the results of casts.
    Binding the kernel raises KernelError if an op of the decomposition has no NumPy function.
    """

    def bind(attributes: Attributes, arrangement: Arrangement, buffers: Buffers) -> Bound:
        graph = Graph()
        inputs = [ops.placeholder(graph, operand.spec.shape, operand.spec.dtype) for operand in buffers.inputs]
        outputs = decompose(graph, inputs, attributes)
        parts = [(node, _numpy_function(definition, node)) for node in graph if node.op != "placeholder"]

        def compute(*arrays: Array, **_: Any) -> tuple[Array, ...]:
            values = dict(zip(inputs, arrays, strict=True))
            for node, function in parts:
                found = results(function, [values[tensor] for tensor in node.inputs], node.attributes)
                values.update(zip(node.tensors, found, strict=True))
            return tuple(values[tensor] for tensor in outputs)

        return function_kernel(definition.name, compute).bind(attributes, arrangement, buffers)

    return Kernel(definition.name, "cpu", "numpy", 0, FLOATS, arrange_plain, bind)


def _numpy_function(definition: OpDef, part: Node) -> Callable[..., Any]:
    function = REGISTRY.find(part.op, "cpu", "numpy").function
    if function is None:
        raise KernelError(
            f"op {definition.name!r} has no kernel, and op {part.op!r} of its decomposition has no NumPy function: "
            "register a kernel for one of these ops"
        )
    return function


def kernels_for(devices: Iterable[Device]) -> Registry:
    """Return CPU kernels, and GPU kernels if a device is a GPU. Raises ResourceError if GPU or library is missing."""
    for device in devices:
        if device.gpu is not None:
            return load_gpu_kernels(device.use, device.gpu)
    return load_kernels()


@cache
def load_gpu_kernels(use: GpuOptions, home: int) -> Registry:
    """Return the kernels of the CPU and of this process's GPUs. home: number of the default GPU of every thread."""
    # Imported here, because processes without a GPU use none of these modules.
    from runner.kernels.gpu.cuda import GpusError, open_gpus
    from runner.kernels.gpu.loading import register_gpus

    registry = load_kernels().copy()
    try:
        runtime = open_gpus(use.tf32, compare_plans=use.compare_plans, code_folder=use.code_folder, home=home)
    except GpusError as error:
        raise ResourceError(str(error)) from error
    register_gpus(registry, runtime)
    require_gpu_kernels(registry)
    return registry


@cache
def load_described_kernels() -> Registry:
    """Return the kernels of the CPU, and GPU kernels for planning only: no GPU is opened, so they cannot run."""
    from runner.kernels.gpu.described import described_gpu
    from runner.kernels.gpu.loading import register_gpus

    registry = load_kernels().copy()
    register_gpus(registry, described_gpu())
    require_gpu_kernels(registry)
    return registry


def require_gpu_kernels(registry: Registry) -> None:
    """Raise KernelError if an op that is executed by a kernel has no GPU kernel, or a GPU kernel has no op."""
    registry.require(_executed_by("kernel"), "gpu", _executed_by("communicator"))


def _executed_by(how: str) -> list[str]:
    return [name for name, definition in OPS.items() if definition.executed_by == how]


@cache
def native_libraries() -> tuple[NativeLibrary, ...]:
    """Return the libraries of fast kernels, each either in use or with the reason why it is not available."""
    return register(REGISTRY)
