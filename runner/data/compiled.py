"""Whether loops over the pixels of images can be compiled."""

import logging
from functools import cache

log = logging.getLogger(__name__)


@cache
def can_compile() -> bool:
    """Return whether this machine can compile loops; if not, log a warning that NumPy is used instead."""
    # Imported here, because most runs prepare no images and need no compiler.
    from runner.kernels.cpu.loading import probe_compiler

    if missing := probe_compiler()[1]:
        log.warning("images are prepared by NumPy, which is slower than compiled code: %s", missing)
    return not missing
