"""Ring and await a doorbell in memory that two processes share, with atomic operations and a futex.

A futex puts a thread to sleep while four bytes keep a value (Franke, Russell and Kirkwood 2002, "Fuss, Futexes and
Furwocks"). The four bytes are the lower half of the bell. A waiting process needs no write access to the bell.
"""

import ctypes
import platform
from functools import cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runner.kernels.contract import NOT_YET, SLEEP_S, Doorbells, NativeCall
from runner.kernels.cpu.machine_code.compiler import MachineCode, function_addresses

_FUTEX = {"x86_64": 202, "aarch64": 98}
"""Machine -> number of the system call ``futex``."""

_PAUSE = {"x86_64": "@llvm.x86.sse2.pause()", "aarch64": "@llvm.aarch64.hint(i32 1)"}
"""Machine -> instruction with which a spinning thread yields to the other hardware thread of its core."""

_SLEEP = np.array([0, round(SLEEP_S * 1e9)], np.int64)
"""A ``struct timespec``."""


def is_supported() -> bool:
    """Return whether the system call is known for this system and CPU."""
    return platform.system() == "Linux" and platform.machine() in _FUTEX


def _call(function: str, bell: NDArray[Any], number: NDArray[Any], spins: int) -> NativeCall:
    code = _functions()
    arguments = (int(bell.ctypes.data), int(number.ctypes.data), spins, int(_SLEEP.ctypes.data))
    return NativeCall(code.address(function), arguments, (code, bell, number))


DOORBELLS = Doorbells(ring=partial(_call, "ring", spins=0), wait=partial(_call, "wait"))


@cache
def _functions() -> MachineCode:
    machine = platform.machine()
    pause = _PAUSE[machine]
    declared = f"declare void {pause.replace(' 1', '')}\n"
    text = declared + _TEXT.replace("FUTEX", str(_FUTEX[machine])).replace("PAUSE", f"call void {pause}")
    return MachineCode(text, function_addresses(ctypes.CDLL(None), "syscall"))


_TEXT = f"""
declare i64 @syscall(i64, ...)

define i32 @ring(ptr %bell, ptr %number.at, i64 %spins, ptr %sleep) {{
  %number = load i64, ptr %number.at
  store atomic i64 %number, ptr %bell release, align 8
  ; operation 1 is FUTEX_WAKE
  call i64 (i64, ...) @syscall(i64 FUTEX, ptr %bell, i64 1, i64 2147483647, i64 0, i64 0, i64 0)
  ret i32 0
}}

define i32 @wait(ptr %bell, ptr %number.at, i64 %spins, ptr %sleep) {{
entry:
  %number = load i64, ptr %number.at
  br label %look

look:
  %left = phi i64 [%spins, %entry], [%less, %again]
  %found = load atomic i64, ptr %bell acquire, align 8
  %rung = icmp eq i64 %found, %number
  br i1 %rung, label %arrived, label %early

early:
  %tired = icmp sle i64 %left, 0
  br i1 %tired, label %rest, label %again

again:
  %less = sub i64 %left, 1
  PAUSE
  br label %look

rest:
  ; operation 0 is FUTEX_WAIT, which returns at once if the lower half is no longer the one found above
  %lower = and i64 %found, 4294967295
  call i64 (i64, ...) @syscall(i64 FUTEX, ptr %bell, i64 0, i64 %lower, ptr %sleep, i64 0, i64 0)
  %last = load atomic i64, ptr %bell acquire, align 8
  %late = icmp eq i64 %last, %number
  br i1 %late, label %arrived, label %absent

arrived:
  ret i32 0

absent:
  ret i32 {NOT_YET}
}}
"""
