"""Copies of tensors in any layout. Unlike a oneDNN reorder, a small copy does not wait for other threads."""

from functools import cache

from runner.kernels.contract import FLOATS, Arrangement, Attributes, Bound, Buffers, Kernel, Offers, Specs
from runner.kernels.cpu.machine_code import threads
from runner.kernels.cpu.machine_code.compiler import MachineCode
from runner.kernels.cpu.machine_code.elementwise import LIBRARY
from runner.kernels.memory import ALIGNMENT
from runner.kernels.registry import Registry

PRIORITY = 25


def register(registry: Registry) -> None:
    """Add the kernel of op ``convert`` for equal layouts."""
    registry.add(Kernel("convert", "cpu", LIBRARY, PRIORITY, FLOATS, _arrange, _bind))


def _arrange(attributes: Attributes, inputs: Specs, outputs: Specs, offered: Offers) -> Arrangement | None:
    source, *wanted = offered
    return Arrangement((source,), (source,)) if source is not None and wanted in ([], [source]) else None


def _bind(attributes: Attributes, arrangement: Arrangement, buffers: Buffers) -> Bound:
    return threads.over(_compiled(), (*buffers.inputs, *buffers.outputs), arrangement.inputs[0].nbytes, ALIGNMENT)


@cache
def _compiled() -> MachineCode:
    return MachineCode(_COPY)


_COPY = """
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)

define void @slice(ptr %arrays, i64 %begin, i64 %end) {
  %target.place = getelementptr ptr, ptr %arrays, i64 1
  %source = load ptr, ptr %arrays
  %target = load ptr, ptr %target.place
  %source.begin = getelementptr i8, ptr %source, i64 %begin
  %target.begin = getelementptr i8, ptr %target, i64 %begin
  %size = sub i64 %end, %begin
  call void @llvm.memcpy.p0.p0.i64(ptr %target.begin, ptr %source.begin, i64 %size, i1 false)
  ret void
}
"""
