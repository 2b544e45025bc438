"""Run native calls in a Python loop, without the compiled loop of ``machine_code.compiler``."""

from collections.abc import Callable, Sequence

import cffi

from runner.kernels.contract import NativeCall

SIGNATURE = "int (*)(intptr_t, intptr_t, intptr_t, intptr_t)"


def join_in_python(calls: Sequence[NativeCall]) -> Callable[[], int]:
    """Return a function that runs calls in order until one fails; for its result see ``machine_code.compiler.join``.

    The overhead is a fraction of a microsecond per call. Each call releases the GIL.
    """
    ffi = cffi.FFI()
    bound = [(ffi.cast(SIGNATURE, call.function), call.arguments, call.keep) for call in calls]

    def run() -> int:
        for position, (function, arguments, _) in enumerate(bound):
            status: int = function(*arguments)
            if status:
                return (position + 1) << 16 | status & 0xFFFF
        return 0

    return run
