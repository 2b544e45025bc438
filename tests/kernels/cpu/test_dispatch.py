"""Joined calls: order, the first failure, what they keep alive, and the GIL."""

import threading
import weakref
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from runner.kernels.contract import Array, Join, NativeCall
from runner.kernels.cpu.dispatch import join_in_python
from runner.kernels.cpu.machine_code.compiler import MachineCode, join

_TEXT = """
; log[0] counts what was noted; the notes follow
define i32 @note(ptr %log, i64 %value, i64 %extra, i64 %status) {
  %count = load i64, ptr %log
  %more = add i64 %count, 1
  store i64 %more, ptr %log
  %place = getelementptr i64, ptr %log, i64 %more
  %both = mul i64 %value, %extra
  store i64 %both, ptr %place
  %result = trunc i64 %status to i32
  ret i32 %result
}

; waits until the flag is set, but not for ever: then 1
define i32 @wait(ptr %flag, i64 %patience, i64 %c, i64 %d) {
entry:
  br label %look
look:
  %left = phi i64 [%patience, %entry], [%less, %again]
  %seen = load volatile i64, ptr %flag
  %set = icmp ne i64 %seen, 0
  br i1 %set, label %done, label %again
again:
  %less = sub i64 %left, 1
  %over = icmp eq i64 %less, 0
  br i1 %over, label %gave_up, label %look
done:
  ret i32 0
gave_up:
  ret i32 1
}
"""


class Log:
    """Calls that record themselves, and the record."""

    def __init__(self, code: MachineCode) -> None:
        self._code = code
        self._memory = np.zeros(4096, np.int64)

    def call(self, value: int, status: int = 0, keep: object = None) -> NativeCall:
        arguments = (int(self._memory.ctypes.data), value, 10, status)
        return NativeCall(self._code.address("note"), arguments, (self._code, self._memory, keep))

    @property
    def notes(self) -> list[int]:
        return [int(value) // 10 for value in self._memory[1 : self._memory[0] + 1]]


@pytest.fixture(scope="module")
def code() -> MachineCode:
    return MachineCode(_TEXT)


@pytest.fixture
def log(code: MachineCode) -> Log:
    return Log(code)


both = pytest.mark.parametrize("join", [join, join_in_python], ids=["machine code", "python"])


@both
def test_calls_are_made_in_order_every_time(join: Join, log: Log) -> None:
    joined = join([log.call(value) for value in range(1000)])
    assert (joined(), joined()) == (0, 0)
    assert log.notes == list(range(1000)) * 2


@both
@pytest.mark.parametrize("failing", [0, 1, 4])
def test_the_first_failure_ends_the_call_and_is_returned(join: Join, log: Log, failing: int) -> None:
    statuses = [3 if position >= failing else 0 for position in range(5)]
    joined = join([log.call(position, status) for position, status in enumerate(statuses)])
    assert divmod(joined(), 1 << 16) == (failing + 1, 3)
    assert log.notes == list(range(failing + 1))


@both
@pytest.mark.parametrize(("status", "lower"), [(-1, 0xFFFF), (0x10000, 0), (0x20005, 5), (-(2**31), 0)])
def test_any_status_that_is_not_zero_is_a_failure(join: Join, log: Log, status: int, lower: int) -> None:
    assert join([log.call(0), log.call(1, status)])() == 2 << 16 | lower


@both
def test_nothing_to_call_is_a_success(join: Join) -> None:
    assert join([])() == 0


class _Kept:
    """An object for weak references."""


@both
def test_a_joined_call_keeps_the_objects_of_its_calls_alive(join: Join, log: Log) -> None:
    kept = _Kept()
    seen = weakref.ref(kept)
    joined: Callable[[], int] | None = join([log.call(1, keep=kept)])
    del kept
    assert seen() is not None
    joined = None
    assert joined is seen() is None


@both
def test_other_threads_run_during_a_call(join: Join, code: MachineCode) -> None:
    flag: Array = np.zeros(1, np.int64)
    patience = 3_000_000_000
    waits: Sequence[NativeCall] = [
        NativeCall(code.address("wait"), (int(flag.ctypes.data), patience, 0, 0), (code, flag))
    ]
    joined, results = join(waits), []
    waiting = threading.Thread(target=lambda: results.append(joined()))
    waiting.start()
    flag[0] = 1
    waiting.join()
    assert results == [0], "it held the GIL while it waited"
