"""Actions at the end of a block that do not hide the error that ended it."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

log = logging.getLogger(__name__)


@contextmanager
def at_the_end(what: str, act: Callable[[BaseException | None], object]) -> Iterator[None]:
    """Call ``act`` when the block ends, with the error that ended it, or None.

    The error of the block is raised. If ``act`` fails as well, its error is logged as a warning that names ``what``; it
    is raised only if the block ended without an error.
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
