"""Calls of compiled loops over a range of elements, on the calling thread or on all threads of GNU OpenMP.

oneDNN uses the same pool of threads, so these loops and oneDNN do not compete for cores.
"""

import ctypes
import os
from collections.abc import Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

from runner.kernels.contract import NativeCall, Operand
from runner.kernels.cpu.machine_code.compiler import MachineCode, function_addresses

LIBRARY = "libgomp.so.1"


@cache
def load_openmp() -> dict[str, int] | None:
    """Return the addresses of OpenMP functions, or None if OpenMP is missing; loops then run on one thread."""
    try:
        # The library is never unloaded, because compiled code calls its functions and its threads wait inside it.
        library = ctypes.CDLL(LIBRARY, os.RTLD_GLOBAL | os.RTLD_NOW | os.RTLD_NODELETE)
    except OSError:
        return None
    return function_addresses(library, "GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads")


def thread_count() -> int:
    """Return the number of OpenMP threads of a parallel :func:`call` made by the current Python thread."""
    return int(ctypes.CDLL(LIBRARY).omp_get_max_threads()) if load_openmp() else 1


PARALLEL_BYTES = 512 * 1024
"""The smallest number of bytes, read and written by a call, for which several threads are faster than one."""


def over(
    code: MachineCode, operands: Sequence[Operand], count: int, grain: int, sizes: NDArray[np.int64] | None = None
) -> NativeCall:
    """Return the :func:`call` of ``code`` on tensors, on all threads if they have ``PARALLEL_BYTES`` or more.

    sizes: integers passed as the last array.
    """
    places = [operand.address for operand in operands] + ([] if sizes is None else [int(sizes.ctypes.data)])
    touched = sum(operand.layout.nbytes for operand in operands)
    return call(code, places, count, grain, (sizes, tuple(operands)), parallel=touched >= PARALLEL_BYTES)


def call(
    code: MachineCode, places: Sequence[int], count: int, grain: int, keep: object, *, parallel: bool
) -> NativeCall:
    """Return the call of ``void slice(void **arrays, int64_t begin, int64_t end)`` of ``code`` for 0..count-1.

    places: addresses of the arrays. keep: objects that must stay alive. parallel: whether to call the function once per
    OpenMP thread, each with a different range; without OpenMP, the calling thread computes all elements. grain: every
    range but the last has a multiple of ``grain`` elements, for example so that no two threads write to the same cache
    line.
    """
    entry_points = _entry_points()
    entry = "parallel" if parallel and load_openmp() else "serial"
    addresses = np.array(places, np.intp)
    arguments = (code.address("slice"), int(addresses.ctypes.data), count, grain)
    return NativeCall(entry_points.address(entry), arguments, (entry_points, code, addresses, keep))


@cache
def _entry_points() -> MachineCode:
    found = load_openmp()
    return MachineCode(_SERIAL + _PARALLEL, found) if found else MachineCode(_SERIAL)


_SERIAL = """
define i32 @serial(ptr %slice, ptr %arrays, i64 %count, i64 %grain) {
  call void %slice(ptr %arrays, i64 0, i64 %count)
  ret i32 0
}
"""

_PARALLEL = """
%task = type {ptr, ptr, i64, i64} ; slice, arrays, count, grain

declare void @GOMP_parallel(ptr, ptr, i32, i32)
declare i32 @omp_get_thread_num()
declare i32 @omp_get_num_threads()

define i32 @parallel(ptr %slice, ptr %arrays, i64 %count, i64 %grain) {
  %task = alloca %task
  %task.arrays = getelementptr %task, ptr %task, i32 0, i32 1
  %task.count = getelementptr %task, ptr %task, i32 0, i32 2
  %task.grain = getelementptr %task, ptr %task, i32 0, i32 3
  store ptr %slice, ptr %task
  store ptr %arrays, ptr %task.arrays
  store i64 %count, ptr %task.count
  store i64 %grain, ptr %task.grain
  ; 0 asks for as many threads as are set for the calling thread
  call void @GOMP_parallel(ptr @worker, ptr %task, i32 0, i32 0)
  ret i32 0
}

define internal void @worker(ptr %task) {
  %task.arrays = getelementptr %task, ptr %task, i32 0, i32 1
  %task.count = getelementptr %task, ptr %task, i32 0, i32 2
  %task.grain = getelementptr %task, ptr %task, i32 0, i32 3
  %slice = load ptr, ptr %task
  %arrays = load ptr, ptr %task.arrays
  %count = load i64, ptr %task.count
  %grain = load i64, ptr %task.grain
  %thread.int = call i32 @omp_get_thread_num()
  %threads.int = call i32 @omp_get_num_threads()
  %thread = zext i32 %thread.int to i64
  %threads = zext i32 %threads.int to i64

  ; grains = ceil(count / grain); share = ceil(grains / threads) * grain
  %grains = call i64 @divided(i64 %count, i64 %grain)
  %grains.each = call i64 @divided(i64 %grains, i64 %threads)
  %share = mul i64 %grains.each, %grain

  ; the last shares may be shorter, or empty
  %begin.even = mul i64 %thread, %share
  %end.even = add i64 %begin.even, %share
  %begin = call i64 @llvm.umin.i64(i64 %begin.even, i64 %count)
  %end = call i64 @llvm.umin.i64(i64 %end.even, i64 %count)
  call void %slice(ptr %arrays, i64 %begin, i64 %end)
  ret void
}

declare i64 @llvm.umin.i64(i64, i64)

define internal i64 @divided(i64 %total, i64 %part) {
  %more = add i64 %total, %part
  %most = sub i64 %more, 1
  %parts = udiv i64 %most, %part
  ret i64 %parts
}
"""
