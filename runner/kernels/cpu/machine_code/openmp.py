"""The threads of GNU OpenMP. oneDNN uses the same pool, so that the two do not compete for cores."""

from dataclasses import dataclass
from functools import cache

import cffi

LIBRARY = "libgomp.so.1"

_DECLARATIONS = """
void GOMP_parallel(void (*function)(void *), void *data, unsigned threads, unsigned flags);
int omp_get_thread_num(void);
int omp_get_num_threads(void);
"""
_FUNCTIONS = ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads")


@dataclass(frozen=True)
class OpenMp:
    """The loaded library. addresses: of its functions, by name."""

    addresses: dict[str, int]


@cache
def load() -> OpenMp | None:
    """Load the library once per process; returns None if the machine has none, and then loops run on one thread."""
    ffi = cffi.FFI()
    ffi.cdef(_DECLARATIONS)
    try:
        # Never unloaded, because compiled code calls it and its threads wait in it.
        library = ffi.dlopen(LIBRARY, ffi.RTLD_GLOBAL | ffi.RTLD_NOW | ffi.RTLD_NODELETE)
    except OSError:
        return None
    return OpenMp({name: int(ffi.cast("intptr_t", ffi.addressof(library, name))) for name in _FUNCTIONS})
