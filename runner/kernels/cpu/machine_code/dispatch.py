"""The loop over a step's calls of machine code, itself in machine code."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import cffi

from runner.kernels.contract import NativeCall
from runner.kernels.cpu.machine_code.compiler import MachineCode


def join(calls: Sequence[NativeCall]) -> Callable[[], int]:
    """Return one call that runs all calls in order and stops at the first whose status is not 0.

    It returns 0, or (1 + position) << 16 | lower 16 bits of this status. It keeps the objects that the calls keep
    alive, and releases the GIL once.
    """
    loop = _loop()
    table = loop.ffi.new("intptr_t[]", [word for call in calls for word in (call.function, *call.arguments)])
    joined = _Joined(loop.run, table, len(calls))
    joined.keep = (loop, [call.keep for call in calls])
    return joined


class _Joined(partial[int]):
    """A machine-code call without arguments; a ``partial`` has the least overhead."""

    keep: object


@dataclass(frozen=True)
class _Loop:
    ffi: Any
    run: Any
    code: MachineCode


@cache
def _loop() -> _Loop:
    ffi, code = cffi.FFI(), MachineCode(_TEXT)
    return _Loop(ffi, ffi.cast("int64_t (*)(intptr_t *, int64_t)", code.address("run")), code)


_TEXT = """
%call = type {ptr, i64, i64, i64, i64}

define i64 @run(ptr %calls, i64 %count) {
entry:
  %none = icmp eq i64 %count, 0
  br i1 %none, label %finished, label %next

next:
  %position = phi i64 [0, %entry], [%following, %succeeded]
  %function.at = getelementptr %call, ptr %calls, i64 %position, i32 0
  %a.at = getelementptr %call, ptr %calls, i64 %position, i32 1
  %b.at = getelementptr %call, ptr %calls, i64 %position, i32 2
  %c.at = getelementptr %call, ptr %calls, i64 %position, i32 3
  %d.at = getelementptr %call, ptr %calls, i64 %position, i32 4
  %function = load ptr, ptr %function.at
  %a = load i64, ptr %a.at
  %b = load i64, ptr %b.at
  %c = load i64, ptr %c.at
  %d = load i64, ptr %d.at
  %status = call i32 %function(i64 %a, i64 %b, i64 %c, i64 %d)
  %following = add i64 %position, 1
  %failed = icmp ne i32 %status, 0
  br i1 %failed, label %failure, label %succeeded

succeeded:
  %more = icmp slt i64 %following, %count
  br i1 %more, label %next, label %finished

finished:
  ret i64 0

failure:
  %upper = shl i64 %following, 16
  %lower.int = and i32 %status, 65535
  %lower = zext i32 %lower.int to i64
  %failure.code = or i64 %upper, %lower
  ret i64 %failure.code
}
"""
