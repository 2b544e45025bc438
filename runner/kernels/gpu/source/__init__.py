"""CUDA C++ sources of our kernels as text. When a plan is bound, a source is compiled for each set of dtypes.

A file ``NAME.cu`` uses types that are undefined in the file: ``text("softmax", T="float32")`` prepends ``typedef float
T;`` and ``common.cuh``, which defines bfloat16 and common functions.
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
"""Dtype of the engine -> C++ type in the sources."""


def text(name: str, /, **types: str) -> str:
    """Return the source ``NAME.cu`` for these types, each a dtype of the engine; raises KeyError for unknown dtypes."""
    definitions = "".join(f"typedef {C_TYPES[dtype]} {alias};\n" for alias, dtype in sorted(types.items()))
    return with_common(f"{definitions}\n{_read(f'{name}.cu')}")


def with_common(code: str) -> str:
    """Return ``common.cuh`` followed by the code."""
    return f"{_read('common.cuh')}\n{code}"


@cache
def _read(name: str) -> str:
    return (files(__name__) / name).read_text()
