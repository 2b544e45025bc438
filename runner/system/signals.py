"""Ctrl-C and SIGTERM as a request that the training loop checks between two steps."""

import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self

from runner.errors import Interrupted

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopRequest:
    """While active, stores the first signal; the second signal raises Interrupted at once.

    Only the main thread of a process can handle signals. In another thread this has no effect.
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
            raise Interrupted(signum, "stopped at once by a second signal; the last checkpoint is intact")
        self.signum = signum
