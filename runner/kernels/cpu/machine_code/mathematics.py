"""Functions of the C library's mathematics, for compiled code to call."""

from __future__ import annotations

from functools import cache

import cffi

_DECLARATIONS = """
float expf(float);
double log(double);
"""
_FUNCTIONS = ("expf", "log")


@cache
def addresses() -> dict[str, int]:
    """Where the functions begin, by name: in the library that the interpreter itself is linked with."""
    ffi = cffi.FFI()
    ffi.cdef(_DECLARATIONS)
    library = ffi.dlopen(None)
    return {name: int(ffi.cast("intptr_t", ffi.addressof(library, name))) for name in _FUNCTIONS}
