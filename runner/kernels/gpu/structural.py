"""Kernels for constants, random draws, copies in any layout, and changes of dtype.

Draws use the random words of :mod:`runner.kernels.philox`. Uniform draws and masks equal those of the host bit for bit;
normal draws may differ by the rounding errors of CUDA's mathematical functions.
"""

import math

import numpy as np

from runner.kernels.contract import (
    FLOATS,
    Arrange,
    Arrangement,
    Attributes,
    Buffers,
    Kernel,
    Offers,
    Operand,
    Spec,
    Specs,
    plain,
)
from runner.kernels.elementwise import computed_in
from runner.kernels.functions import arrange_plain
from runner.kernels.gpu.element_kernels import element_kernel
from runner.kernels.gpu.element_loops import Elements
from runner.kernels.gpu.layouts import CHANNELS_LAST, channels_last, offered_layout
from runner.kernels.gpu.runtime import (
    Argument,
    Bind,
    Function,
    Runtime,
    Stream,
    StreamCall,
    blocks_for,
    launch,
    own_kernels,
)
from runner.kernels.gpu.source import C_TYPES, text
from runner.kernels.memory import numpy_dtype
from runner.kernels.philox import key

_WORDS = {1: "uint8", 2: "uint16", 4: "uint32", 8: "uint64"}
_SQUARE = 32

_WORDS_AT_ONCE = 4
_WORD_RANGE = 1 << 32


def kernels(runtime: Runtime) -> list[Kernel]:
    """Return the kernels that move, set, draw or convert elements."""
    table: dict[str, tuple[Arrange, Bind]] = {
        "identity": (_arrange_copy, _bind_copy),
        "stop_gradient": (_arrange_copy, _bind_copy),
        "convert": (_arrange_convert, _bind_convert),
        "fill": (arrange_plain, _bind_fill),
        "constant": (arrange_plain, _bind_constant),
        "random_uniform": (arrange_plain, _bind_uniform),
        "random_normal": (arrange_plain, _bind_normal),
        "uniform_rows": (arrange_plain, _bind_rows),
        "dropout_mask": (arrange_plain, _bind_mask),
    }
    elements = {"cast": _cast, "truncate_to_bfloat16": _truncate}
    return own_kernels(runtime, table) + [element_kernel(runtime, *each) for each in elements.items()]


def _arrange_copy(attributes: Attributes, inputs: Specs, outputs: Specs, offered: Offers) -> Arrangement:
    layout = offered_layout(inputs[0], offered)
    return Arrangement((layout,), (layout,), in_place=((0, 0),))


def _bind_copy(runtime: Runtime, attributes: Attributes, buffers: Buffers) -> StreamCall:
    return _copy(runtime, buffers.outputs[0], buffers.inputs[0].address)


def _copy(runtime: Runtime, target: Operand, source: int, keep: object = None) -> StreamCall:
    """Return the call that copies bytes. The call does nothing for 0 bytes or if source and target are equal."""
    nbytes, address = target.layout.nbytes, target.address

    def enqueue(stream: Stream) -> None:
        if nbytes and source != address:
            runtime.copy(address, source, nbytes, stream)

    return StreamCall(enqueue, keep)


def _arrange_convert(attributes: Attributes, inputs: Specs, outputs: Specs, offered: Offers) -> Arrangement | None:
    """Arrange a conversion from the first offered layout to the second, or to the first if there is no second."""
    layouts = [layout or plain(inputs[0]) for layout in offered]
    known = [plain(inputs[0]), *([channels_last(inputs[0])] if len(inputs[0].shape) == 4 else [])]
    if any(layout not in known for layout in layouts):
        return None
    return Arrangement((layouts[0],), (layouts[-1],))


def _bind_convert(runtime: Runtime, attributes: Attributes, buffers: Buffers) -> StreamCall:
    (x,), (y,) = buffers.inputs, buffers.outputs
    if x.layout == y.layout:
        return _copy(runtime, y, x.address)
    n, c, h, w = x.spec.shape
    rows, columns = (h * w, c) if x.layout.tag == CHANNELS_LAST else (c, h * w)
    squares = n * -(-rows // _SQUARE) * -(-columns // _SQUARE)
    blocks = blocks_for(runtime, squares, threads=1)
    sizes = [np.int64(n), np.int64(rows), np.int64(columns)]
    return launch(_of_words(runtime, x.spec, "turn"), blocks, [x, y, *sizes], threads=256)


def _bind_fill(runtime: Runtime, attributes: Attributes, buffers: Buffers) -> StreamCall:
    (y,) = buffers.outputs
    count = math.prod(y.spec.shape)
    with np.errstate(over="ignore"):
        value = np.full((), attributes["value"], numpy_dtype(y.spec.dtype))
    bits = np.uint64(int.from_bytes(value.tobytes(), "little"))
    arguments: list[Argument] = [y, np.int64(count), bits]
    return launch(_of_words(runtime, y.spec, "fill"), blocks_for(runtime, count), arguments)


def _of_words(runtime: Runtime, spec: Spec, name: str) -> Function:
    """Return the CUDA function that serves all dtypes of the element size of ``spec``."""
    return runtime.function(text("memory", T=_WORDS[numpy_dtype(spec.dtype).itemsize]), name)


def _bind_constant(runtime: Runtime, attributes: Attributes, buffers: Buffers) -> StreamCall:
    (y,) = buffers.outputs
    value: bytes = attributes["value"]
    pinned = runtime.pinned(len(value))
    pinned[:] = np.frombuffer(value, np.uint8)
    return _copy(runtime, y, pinned.ctypes.data, pinned)


def _cast(attributes: Attributes, inputs: Specs, outputs: Specs) -> Elements:
    """Return a cast: truncation to integers, rounding through float32 to bfloat16, and x != 0 for bool."""
    source, target = inputs[0].dtype, outputs[0].dtype
    result = f"({C_TYPES[computed_in(target)]})x0"
    if source in FLOATS and target in ("int32", "int64"):
        bits = 8 * numpy_dtype(target).itemsize
        # As on the host, NaN and numbers out of range become the lowest integer; a cast in CUDA would saturate.
        lowest = f"({C_TYPES[target]})(1ull << {bits - 1})"
        limit = f"({C_TYPES[computed_in(source)]})(1ull << {bits - 1})"
        result = f"(x0 >= -{limit} && x0 < {limit} ? ({C_TYPES[target]})x0 : {lowest})"
    elif source in FLOATS and target == "uint8":
        # As on the host, the result is the lowest byte of an int, and numbers out of the range of int become 0.
        result = "(unsigned char)(x0 >= -2147483648.0 && x0 < 2147483648.0 ? (int)x0 : 0)"
    return Elements((source,), (target,), (), (result,))


_TRUNCATED = """
// Return the upper half of x. NaN gets an additional bit, since the half without this bit may be an infinity.
__device__ __forceinline__ bfloat16 truncated(float x) {
    bfloat16 y;
    y.bits = (unsigned short)((__float_as_uint(x) >> 16) | (x != x ? 0x40u : 0u));
    return y;
}
"""


def _truncate(attributes: Attributes, inputs: Specs, outputs: Specs) -> Elements:
    return Elements(("float32",), ("bfloat16",), (), ("truncated(x0)",), _TRUNCATED)


def _bind_normal(runtime: Runtime, attributes: Attributes, buffers: Buffers) -> StreamCall:
    (y,) = buffers.outputs
    count = math.prod(y.spec.shape)
    parameters = np.float64(attributes["mean"]), np.float64(attributes["stddev"])
    arguments: list[Argument] = [y, np.int64(count), *_key(attributes), *parameters]
    return launch(_function(runtime, y.spec, "normal"), blocks_for(runtime, count), arguments)


def _bind_uniform(runtime: Runtime, attributes: Attributes, buffers: Buffers) -> StreamCall:
    (y,) = buffers.outputs
    count = math.prod(y.spec.shape)
    whole = max(1, count)
    part = attributes["part"] or (whole, whole, 0)
    bounds = np.float64(attributes["low"]), np.float64(attributes["high"] - attributes["low"])
    arguments: list[Argument] = [y, np.int64(count), *_key(attributes), *bounds, *map(np.int64, part)]
    return launch(_function(runtime, y.spec, "uniform"), blocks_for(runtime, count), arguments)


def _bind_rows(runtime: Runtime, attributes: Attributes, buffers: Buffers) -> StreamCall:
    (y,) = buffers.outputs
    rows, columns = y.spec.shape[0], math.prod(y.spec.shape[1:])
    arguments: list[Argument] = [*buffers.inputs, y, np.int64(rows), np.int64(columns), *_key(attributes)]
    groups = rows * (columns // _WORDS_AT_ONCE + 1)
    return launch(_function(runtime, y.spec, "uniform_rows"), blocks_for(runtime, groups), arguments)


def _bind_mask(runtime: Runtime, attributes: Attributes, buffers: Buffers) -> StreamCall:
    (mask,) = buffers.outputs
    rows, columns = mask.spec.shape[0], math.prod(mask.spec.shape[1:])
    # word / _WORD_RANGE < rate if and only if word < ceil(rate * _WORD_RANGE).
    threshold = np.int64(math.ceil(attributes["rate"] * _WORD_RANGE))
    kept = np.float64(np.asarray(1.0 / (1.0 - attributes["rate"])).astype(numpy_dtype(mask.spec.dtype)))
    drawn = [np.int64(rows), np.int64(columns), *_key(attributes), np.int64(attributes["first"]), threshold, kept]
    arguments: list[Argument] = [*buffers.inputs, mask, *drawn]
    groups = rows * (columns // _WORDS_AT_ONCE + 2)
    return launch(_function(runtime, mask.spec, "dropout_mask"), blocks_for(runtime, groups), arguments)


def _key(attributes: Attributes) -> list[Argument]:
    return [np.int64(word) for word in key(attributes["seed"], attributes["key"])]


def _function(runtime: Runtime, spec: Spec, name: str) -> Function:
    return runtime.function(text("random", T=spec.dtype, C=computed_in(spec.dtype)), name)
