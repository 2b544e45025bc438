"""What is done at the end of a block however it ends, without hiding the error that ended it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

log = logging.getLogger(__name__)


@contextmanager
def at_the_end(what: str, act: Callable[[BaseException | None], object]) -> Iterator[None]:
    """Do something when the block ends; ``act`` is told the error that ended it, None where it ended well.

    That error stays the one that is raised: what ``act`` raises besides is a warning in the log, with ``what`` was
    done. Where the block ended well it is raised.
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
