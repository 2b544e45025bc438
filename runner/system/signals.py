"""Ctrl-C and SIGTERM as a request the training loop answers between two steps."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self

from runner.errors import Interrupted

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopRequest:
    """While active, the first signal is noted and the second one raises Interrupted at once.

    Signals can be handled by a process's main thread only; in another thread the request is never made and the
    caller's own handling stays in place.
    """

    def __init__(self) -> None:
        self.signum: int | None = None
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._previous = {number: signal.signal(number, self._note) for number in SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _note(self, signum: int, frame: FrameType | None) -> None:
        if self.signum is not None:
            raise Interrupted(signum, "stopped at once by a second signal; the last checkpoint stands")
        self.signum = signum
