"""Join machine-code calls in Python, for machines where the loop over them cannot be compiled."""

from collections.abc import Callable, Sequence

import cffi

from runner.kernels.contract import NativeCall

SIGNATURE = "int (*)(intptr_t, intptr_t, intptr_t, intptr_t)"


def failure(position: int, status: int) -> int:
    """Return the status of a joined call in which the call at ``position`` returned ``status``."""
    return (position + 1) << 16 | status & 0xFFFF


def join_in_python(calls: Sequence[NativeCall]) -> Callable[[], int]:
    """Return one call that runs all calls in order and returns 0, or ``failure`` of the first status that is not 0.

    The overhead is a fraction of a microsecond per call. Each call releases the GIL.
    """
    ffi = cffi.FFI()
    bound = [(ffi.cast(SIGNATURE, call.function), call.arguments, call.keep) for call in calls]

    def run() -> int:
        for position, (function, arguments, _) in enumerate(bound):
            status = function(*arguments)
            if status:
                return failure(position, status)
        return 0

    return run
