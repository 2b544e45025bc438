"""Batch normalization and local response normalization, and their gradients. Tensors keep their layout.

Batch normalization in training takes two launches. The first computes, for each part of a channel, the mean and the sum
of squared deviations. The second combines the parts (Chan, Golub and LeVeque 1979), in a fixed order per GPU,
and normalizes. The gradient of local response normalization takes two launches, to compute each power only once.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from runner.kernels.contract import Arrange, Arrangement, Attributes, Buffers, Kernel, Offers, Operand, Spec, Specs
from runner.kernels.elementwise import computed_in
from runner.kernels.gpu.channels import THREADS, division, source, vector_dtype
from runner.kernels.gpu.layouts import arrange_alike, innermost_channels
from runner.kernels.gpu.runtime import Argument, Bind, Runtime, StreamCall, blocks_for, in_order, launch, own_kernels
from runner.kernels.gpu.source import text
from runner.kernels.memory import address_of, numpy_dtype

_MOMENTS, _SUMS = 3, 2
"""Values per part of a channel: count, mean, sum of squared distances; or the sums of dy and of dy * (normalized x)."""

_NO_MASK = np.uintp(0)


def kernels(runtime: Runtime) -> list[Kernel]:
    """Return the kernels of batch normalization, without and with ReLU, and of local response normalization."""

    def arrange(kept: int, replaced: int) -> Arrange:
        """Return an arrange function. kept: values per part. replaced: index of the input that output 0 may reuse."""
        return partial(_arrange, runtime.multiprocessors, kept, replaced)

    training, gradient = (arrange(_MOMENTS, 0), _bind_training), (arrange(_SUMS, -1), _bind_gradient)
    table: dict[str, tuple[Arrange, Bind]] = {
        "batch_norm": training,
        "batch_norm_relu": training,
        "batch_norm_gradient": gradient,
        "batch_norm_relu_gradient": gradient,
        "batch_norm_inference": (arrange(0, 0), _bind_inference),
        "channel_window_sum": (arrange_alike, _bind_window_sum),
        "local_response_normalization": (arrange_alike, _bind_response),
        "local_response_normalization_gradient": (_arrange_response_gradient, _bind_response_gradient),
    }
    return own_kernels(runtime, table)


def _arrange(
    multiprocessors: int,
    kept: int,
    replaced: int,
    attributes: Attributes,
    inputs: Specs,
    outputs: Specs,
    offered: Offers,
) -> Arrangement:
    alike = arrange_alike(attributes, inputs, outputs, offered)
    cut = division(multiprocessors, inputs[0], innermost_channels(inputs[0], alike.inputs[0]))
    scratch = kept * cut.partials * vector_dtype(inputs[0].dtype).itemsize
    return replace(alike, scratch_bytes=scratch, in_place=((replaced % len(inputs), 0),))


def _bind_training(runtime: Runtime, attributes: Attributes, buffers: Buffers) -> StreamCall:
    """Bind inputs x, gamma, beta and outputs y, mean, variance and, with ReLU, the mask of positive elements."""
    x, gamma, beta = buffers.inputs
    y, mean, variance, *masks = buffers.outputs
    mask: Argument = masks[0] if masks else _NO_MASK
    partials = np.uintp(address_of(buffers.scratch))
    statistics = _launch(runtime, "batch_norm_moments", buffers, x, partials)
    normalised = (x, gamma, beta, partials, y, mean, variance, mask, _epsilon(attributes, buffers))
    return in_order([statistics, _launch(runtime, "batch_norm", buffers, *normalised)])


def _bind_gradient(runtime: Runtime, attributes: Attributes, buffers: Buffers) -> StreamCall:
    """Bind inputs x, gamma, mean, variance, the mask (only with ReLU), dy, and outputs dx, dgamma, dbeta."""
    x, gamma, mean, variance, *masks, dy = buffers.inputs
    dx, dgamma, dbeta = buffers.outputs
    mask: Argument = masks[0] if masks else _NO_MASK
    partials, epsilon = np.uintp(address_of(buffers.scratch)), _epsilon(attributes, buffers)
    summed = (x, mean, variance, mask, dy, partials, epsilon)
    mapped = (x, gamma, mean, variance, mask, dy, partials, dx, dgamma, dbeta, epsilon)
    sums = _launch(runtime, "batch_norm_gradient_sums", buffers, *summed)
    return in_order([sums, _launch(runtime, "batch_norm_gradient", buffers, *mapped)])


def _bind_inference(runtime: Runtime, attributes: Attributes, buffers: Buffers) -> StreamCall:
    operands = (*buffers.inputs, *buffers.outputs)
    return _launch(runtime, "batch_norm_inference", buffers, *operands, _epsilon(attributes, buffers))


def _launch(runtime: Runtime, name: str, buffers: Buffers, *arguments: Argument) -> StreamCall:
    x = buffers.inputs[0]
    cut = division(runtime.multiprocessors, x.spec, innermost_channels(x.spec, x.layout))
    function = runtime.function(source(x.spec.dtype), name)
    return launch(function, cut.grid, [*arguments, *cut.arguments], threads=THREADS)


def _epsilon(attributes: Attributes, buffers: Buffers) -> Argument:
    """Return epsilon in the dtype of the computation."""
    return vector_dtype(buffers.inputs[0].spec.dtype).type(attributes["epsilon"])


def _arrange_response_gradient(attributes: Attributes, inputs: Specs, outputs: Specs, offered: Offers) -> Arrangement:
    alike = arrange_alike(attributes, inputs, outputs, offered)
    return replace(alike, scratch_bytes=2 * _bytes_of_part(inputs[0]))


def _bytes_of_part(x: Spec) -> int:
    """Return the bytes of a tensor like x in the dtype of the computation."""
    return math.prod(x.shape) * numpy_dtype(computed_in(x.dtype)).itemsize


def _bind_window_sum(runtime: Runtime, attributes: Attributes, buffers: Buffers) -> StreamCall:
    x, y = buffers.inputs[0], buffers.outputs[0]
    return _launch_response(runtime, "channel_window_sum", x, attributes["size"], (x, y))


def _bind_response(runtime: Runtime, attributes: Attributes, buffers: Buffers) -> StreamCall:
    x, y = buffers.inputs[0], buffers.outputs[0]
    numbers = (_weight(attributes), attributes["k"], -attributes["beta"])
    return _launch_response(runtime, "local_response_normalization", x, attributes["size"], (x, y), numbers)


def _bind_response_gradient(runtime: Runtime, attributes: Attributes, buffers: Buffers) -> StreamCall:
    (x, dy), dx = buffers.inputs, buffers.outputs[0]
    scaled = np.uintp(address_of(buffers.scratch))
    ratio = np.uintp(scaled + _bytes_of_part(x.spec))
    size, weight, beta = attributes["size"], _weight(attributes), attributes["beta"]
    parts = (x, dy, scaled, ratio)
    operands = (x, scaled, ratio, dx)
    return in_order(
        [
            _launch_response(runtime, "response_gradient_parts", x, size, parts, (weight, attributes["k"], -beta)),
            _launch_response(runtime, "response_gradient", x, size, operands, (2 * weight * beta,)),
        ]
    )


def _launch_response(
    runtime: Runtime, name: str, x: Operand, size: int, tensors: Sequence[Argument], numbers: Sequence[float] = ()
) -> StreamCall:
    """Return one launch over all elements of x. numbers: further arguments, in the dtype of the computation."""
    computed = numpy_dtype(computed_in(x.spec.dtype)).type
    count, channels = math.prod(x.spec.shape), x.spec.shape[1]
    inner = 1 if innermost_channels(x.spec, x.layout) else math.prod(x.spec.shape[2:])
    # These are the arguments that the source declares as SHAPE.
    shape = [np.int64(each) for each in (count, inner, channels, size // 2)]
    source = text("local_response_normalization", T=x.spec.dtype, C=computed_in(x.spec.dtype))
    arguments: list[Argument] = [*tensors, *shape, *map(computed, numbers)]
    return launch(runtime.function(source, name), blocks_for(runtime, count), arguments)


def _weight(attributes: Attributes) -> float:
    """Return the factor of the sum of squares, alpha or alpha / size."""
    alpha: float = attributes["alpha"]
    return alpha / attributes["size"] if attributes["divide_by_size"] else alpha
