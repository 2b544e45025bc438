"""Mathematical functions of the C library, for calls from compiled code."""

from functools import cache

import cffi

_DECLARATIONS = """
float expf(float);
double log(double);
"""
_FUNCTIONS = ("expf", "log")


@cache
def addresses() -> dict[str, int]:
    """Return the addresses of the functions by name, from the library that the interpreter is linked with."""
    ffi = cffi.FFI()
    ffi.cdef(_DECLARATIONS)
    library = ffi.dlopen(None)
    return {name: int(ffi.cast("intptr_t", ffi.addressof(library, name))) for name in _FUNCTIONS}
