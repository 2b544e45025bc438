"""CUDA sources of loops over elements, generated from the operation on one element.

A flat loop reads and writes adjacent elements, 16 bytes per access, and reads each scalar input once. There is one
source for single calls and one for combined calls (:mod:`runner.kernels.gpu.streams`). A strided loop finds the
elements of broadcast inputs by strides along up to :data:`AXES` axes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

from runner.kernels.elementwise import computed_in
from runner.kernels.gpu.source import C_TYPES, with_common
from runner.kernels.memory import numpy_dtype

AXES = 8
"""The maximum number of axes of a strided loop."""
CHUNK = 4096
"""Elements per block and iteration of ``batch``; a multiple of every ``Elements.pack``."""
_PACK_BYTES = 16


@dataclass(frozen=True)
class Elements:
    """The operation on one element.

    inputs, outputs: stored dtypes. statements: C++ statements on x0, x1, ..., which are the inputs converted to the
    dtype of computations. results: a C++ expression for each output. helpers: C++ functions that statements and
    results call. All inputs are read before any output is written.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    statements: tuple[str, ...]
    results: tuple[str, ...]
    helpers: str = ""

    @property
    def pack(self) -> int:
        """Elements per thread and iteration: 16 bytes in the widest dtype."""
        return _PACK_BYTES // max(numpy_dtype(dtype).itemsize for dtype in (*self.inputs, *self.outputs))


@cache
def flat(elements: Elements, wide: tuple[bool, ...]) -> str:
    """Return the source of the kernel ``flat``. wide: for each input, False if it is a scalar."""
    return _with_loop(elements, wide) + (
        f'extern "C" __global__ void flat({_pointers(elements)}, int64 count) {{\n'
        f"    loop({', '.join(_names(elements))}, first_element(), stride_of_grid(), count);\n}}\n"
    )


@cache
def batch(elements: Elements, wide: tuple[bool, ...]) -> str:
    """Return the source of the kernel ``batch``, which runs many calls of ``flat`` from a table with a row per call."""
    width = 2 + len(elements.inputs) + len(elements.outputs)
    return _with_loop(elements, wide) + (
        f"// A row of the table is one call: its first chunk, its number of elements, and its pointers.\n"
        f'extern "C" __global__ void batch(const int64 *table, int rows, int64 chunks) {{\n'
        f"    for (int64 chunk = blockIdx.x; chunk < chunks; chunk += gridDim.x) {{\n{_row_of_chunk(width)}"
        f"        const int64 count = left < {CHUNK} ? left : {CHUNK};\n"
        f"        loop({', '.join(_from_row(elements, wide))}, threadIdx.x, blockDim.x, count);\n"
        f"    }}\n}}\n"
    )


@cache
def strided(elements: Elements, index: str) -> str:
    """Return the source of the kernel ``strided``. index: C++ type of offsets.

    The arguments of the kernel are the pointers, int64 count, int axes and, for each of AXES axes, the innermost
    first, its extent and its stride in each input. Outputs have no gaps.
    """
    count = len(elements.inputs)
    along = [(f"n{axis}", *(f"s{axis}_{k}" for k in range(count))) for axis in range(AXES)]
    declared = ", ".join(f"int64 {name}" for axis in along for name in axis)
    steps = "".join(_step_along(axis, count, index) for axis in range(AXES))
    offsets = ", ".join(f"o{k} = 0" for k in range(count))
    return with_common(
        f"{elements.helpers}\n"
        f'extern "C" __global__ void strided({_pointers(elements)}, int64 count, int axes, {declared}) {{\n'
        f"    for (int64 i = first_element(); i < count; i += stride_of_grid()) {{\n"
        f"        {index} rest = ({index})i, {offsets};\n{steps}"
        f"{_lines(_loaded(elements, (True,) * count, True, lambda k: f'p{k}[o{k}]'), 8)}"
        f"{_lines(elements.statements, 8)}{_stored(elements)}    }}\n}}\n"
    )


def _with_loop(elements: Elements, wide: Sequence[bool]) -> str:
    """Return the source of the loop over adjacent elements: first whole packs, then the remaining elements."""
    return with_common(
        f"{elements.helpers}\n{_packs(elements)}\n"
        f"__device__ __forceinline__ void loop({_pointers(elements)}, int64 first, int64 step, int64 count) {{\n"
        f"{_lines(_loaded(elements, wide, False, lambda k: f'p{k}[0]'))}"
        f"    const int64 packs = count / {elements.pack};\n"
        f"    for (int64 k = first; k < packs; k += step) {{\n{_pack_body(elements, wide)}    }}\n"
        f"#pragma unroll 1\n    for (int64 i = {elements.pack} * packs + first; i < count; i += step) {{\n"
        f"{_lines(_loaded(elements, wide, True, lambda k: f'p{k}[i]'), 8)}"
        f"{_lines(elements.statements, 8)}{_stored(elements)}    }}\n}}\n\n"
    )


def _c(dtype: str) -> str:
    return C_TYPES[dtype]


def _lines(statements: Sequence[str], indent: int = 4) -> str:
    return "".join(f"{' ' * indent}{each}\n" for each in statements)


def _pointers(elements: Elements) -> str:
    inputs = [f"const {_c(dtype)} *p{k}" for k, dtype in enumerate(elements.inputs)]
    return ", ".join([*inputs, *(f"{_c(dtype)} *q{k}" for k, dtype in enumerate(elements.outputs))])


def _names(elements: Elements) -> list[str]:
    return [*(f"p{k}" for k in range(len(elements.inputs))), *(f"q{k}" for k in range(len(elements.outputs)))]


def _packs(elements: Elements) -> str:
    """Return, for each dtype, a C++ type of adjacent elements that are read or written in one access."""
    sizes = {dtype: elements.pack * numpy_dtype(dtype).itemsize for dtype in (*elements.inputs, *elements.outputs)}
    return "".join(
        f"struct alignas({size}) pack_{dtype} {{ {_c(dtype)} e[{elements.pack}]; }};\n"
        for dtype, size in sorted(sizes.items())
    )


def _loaded(elements: Elements, wide: Sequence[bool], which: bool, place: Callable[[int], str]) -> list[str]:
    """Return C++ code that loads the inputs whose flag in ``wide`` is ``which``. place: input -> code that reads it."""
    return [
        f"const {_c(computed_in(dtype))} x{k} = ({_c(computed_in(dtype))}){place(k)};"
        for k, (dtype, each) in enumerate(zip(elements.inputs, wide, strict=True))
        if each == which
    ]


def _stored(elements: Elements) -> str:
    typed = zip(elements.outputs, elements.results, strict=True)
    # A result may use an input that shares memory with an output, because all inputs have been read into variables.
    return _lines([f"q{k}[i] = ({_c(dtype)})({result});" for k, (dtype, result) in enumerate(typed)], 8)


def _pack_body(elements: Elements, wide: Sequence[bool]) -> str:
    """Return code that loads whole packs, computes each element, and stores whole packs."""
    inputs = [(k, dtype) for k, dtype in enumerate(elements.inputs) if wide[k]]
    outputs = list(enumerate(elements.outputs))
    results = [f"b{k}.e[e] = ({_c(dtype)})({elements.results[k]});" for k, dtype in outputs]
    return (
        _lines([f"const pack_{dtype} a{k} = ((const pack_{dtype} *)p{k})[k];" for k, dtype in inputs], 8)
        + _lines([f"pack_{dtype} b{k};" for k, dtype in outputs], 8)
        + f"#pragma unroll\n        for (int e = 0; e < {elements.pack}; ++e) {{\n"
        + _lines(_loaded(elements, wide, True, lambda k: f"a{k}.e[e]"), 12)
        + _lines([*elements.statements, *results], 12)
        + "        }\n"
        + _lines([f"((pack_{dtype} *)q{k})[k] = b{k};" for k, dtype in outputs], 8)
    )


def _row_of_chunk(width: int) -> str:
    """Return code that finds the table row of a chunk by bisection."""
    return _lines(
        [
            "int low = 0, high = rows - 1;",
            "while (low < high) {",
            "    const int middle = (low + high + 1) / 2;",
            f"    if (table[(int64)middle * {width}] <= chunk) low = middle; else high = middle - 1;",
            "}",
            f"const int64 *row = table + (int64)low * {width};",
            f"const int64 start = (chunk - row[0]) * {CHUNK}, left = row[1] - start;",
        ],
        8,
    )


def _from_row(elements: Elements, wide: Sequence[bool]) -> list[str]:
    """Return the pointers of a table row, moved to the start of the chunk."""
    inputs = [f"(const {_c(dtype)} *)row[{2 + k}]" for k, dtype in enumerate(elements.inputs)]
    moved = [f"{pointer} + start" if each else pointer for pointer, each in zip(inputs, wide, strict=True)]
    begin = 2 + len(inputs)
    return [*moved, *(f"({_c(dtype)} *)row[{begin + k}] + start" for k, dtype in enumerate(elements.outputs))]


def _step_along(axis: int, inputs: int, index: str) -> str:
    moves = [f"o{k} += at * ({index})s{axis}_{k};" for k in range(inputs)]
    return _lines(
        [
            f"if (axes > {axis}) {{",
            f"    const {index} next = rest / ({index})n{axis}, at = rest - next * ({index})n{axis};",
            *(f"    {each}" for each in moves),
            "    rest = next;",
            "}",
        ],
        8,
    )
