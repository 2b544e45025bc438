"""CUDA C++ sources of our kernels as text. When a plan is bound, each source is compiled once per set of dtypes.

A file ``NAME.cu`` uses types that the file does not define: ``text("softmax", T="float32")`` returns ``softmax.cu``
after ``typedef float T;`` and after ``common.cuh``, which defines bfloat16 and common functions.
"""

from functools import cache
from importlib.resources import files

C_TYPES = {
    "float32": "float",
    "float64": "double",
    "bfloat16": "bfloat16",
    "int32": "int",
    "int64": "long long",
    "uint8": "unsigned char",
    "uint16": "unsigned short",
    "uint32": "unsigned int",
    "uint64": "unsigned long long",
    "bool": "bool",
}
"""Dtype in the engine -> C++ type in the sources."""


def text(name: str, /, **types: str) -> str:
    """Return the source ``<name>.cu`` for these types (C++ name -> dtype); raises KeyError for unknown dtypes."""
    definitions = "".join(f"typedef {C_TYPES[dtype]} {alias};\n" for alias, dtype in sorted(types.items()))
    return with_common(f"{definitions}\n{_read(f'{name}.cu')}")


def with_common(code: str) -> str:
    """Return ``common.cuh`` followed by the code."""
    return f"{_read('common.cuh')}\n{code}"


@cache
def _read(name: str) -> str:
    return (files(__name__) / name).read_text()
