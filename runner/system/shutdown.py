"""Orderly ends of runs: Ctrl-C and SIGTERM as requests to stop, and actions at the end of a block."""

import logging
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Self

from runner.errors import Interrupted

log = logging.getLogger(__name__)


class StopRequest:
    """A handler of SIGINT and SIGTERM: the first signal sets ``signum``, to stop training; a second raises Interrupted.

    Only the main thread of a process can handle signals. In another thread this class has no effect.
    """

    def __init__(self) -> None:
        self.signum: int | None = None
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._previous = {number: signal.signal(number, self._note) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _note(self, signum: int, frame: FrameType | None) -> None:
        if self.signum is not None:
            raise Interrupted(signum, "stopped immediately by a second signal; the last checkpoint is intact")
        self.signum = signum


@contextmanager
def at_the_end(what: str, act: Callable[[BaseException | None], object]) -> Iterator[None]:
    """Call ``act`` when the block ends, with the error that ended it, or None.

    The error of the block is raised; an Exception that ``act`` then raises is only logged, as a warning that names
    ``what``. If the block ends without an error, an error of ``act`` is raised.
    """
    try:
        yield
    except BaseException as first:
        try:
            act(first)
        except Exception as second:
            log.warning("%s failed too, after %s: %s", what, type(first).__name__, second, exc_info=second)
        raise
    act(None)
