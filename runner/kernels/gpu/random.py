"""Draws from counter-based streams: the same integers as in :mod:`runner.kernels.philox`.

Uniform draws and masks equal those of the host bit for bit; normal draws differ by the errors of CUDA's functions.
"""

import math
from collections.abc import Callable
from functools import partial

import numpy as np

from runner.kernels.contract import Attributes, Buffers, Kernel, Spec
from runner.kernels.functions import arrange_plain
from runner.kernels.gpu.calls import Bind, StreamCall, blocks_for, launch, own_kernels
from runner.kernels.gpu.runtime import Argument, Function, Runtime
from runner.kernels.gpu.source import computed_in, text
from runner.kernels.memory import numpy_dtype
from runner.kernels.philox import key

_WORDS_AT_ONCE = 4
_WORD_RANGE = 1 << 32

Parameters = Callable[[Attributes], tuple[float, float]]


def kernels(runtime: Runtime) -> list[Kernel]:
    """Return the kernels of uniform and normal draws and of dropout masks."""
    binds: dict[str, Bind] = {
        "random_uniform": partial(_bind_draws, "uniform", lambda given: (given["low"], given["high"] - given["low"])),
        "random_normal": partial(_bind_draws, "normal", lambda given: (given["mean"], given["stddev"])),
        "dropout_mask": _bind_mask,
    }
    return own_kernels(runtime, {op: (arrange_plain, bind) for op, bind in binds.items()})


def _bind_draws(
    name: str, parameters: Parameters, runtime: Runtime, attributes: Attributes, buffers: Buffers
) -> StreamCall:
    (y,) = buffers.outputs
    count = math.prod(y.spec.shape)
    arguments = [np.uintp(y.address), np.int64(count), *_key(attributes), *map(np.float64, parameters(attributes))]
    return launch(_function(runtime, y.spec, name), blocks_for(runtime, count), arguments)


def _bind_mask(runtime: Runtime, attributes: Attributes, buffers: Buffers) -> StreamCall:
    (mask,) = buffers.outputs
    rows, columns = mask.spec.shape[0], math.prod(mask.spec.shape[1:])
    pointers = [np.uintp(operand.address) for operand in (*buffers.inputs, mask)]
    sizes = [np.int64(rows), np.int64(columns)]
    # A word divided by its range is below the rate if and only if the word is below the next integer.
    threshold = np.int64(math.ceil(attributes["rate"] * _WORD_RANGE))
    kept = np.float64(np.asarray(1.0 / (1.0 - attributes["rate"])).astype(numpy_dtype(mask.spec.dtype)))
    arguments = [*pointers, *sizes, *_key(attributes), np.int64(attributes["first"]), threshold, kept]
    groups = rows * (columns // _WORDS_AT_ONCE + 2)
    return launch(_function(runtime, mask.spec, "dropout_mask"), blocks_for(runtime, groups), arguments)


def _key(attributes: Attributes) -> list[Argument]:
    return [np.int64(word) for word in key(attributes["seed"], attributes["key"])]


def _function(runtime: Runtime, spec: Spec, name: str) -> Function:
    return runtime.function(text("random", T=spec.dtype, C=computed_in(spec.dtype)), name)
