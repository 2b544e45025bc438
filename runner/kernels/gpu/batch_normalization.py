"""Batch normalization with statistics of the batch or given ones, and its gradient, each also with ReLU.

x keeps its layout. The first of two launches computes means and squared distances of parts of each channel; the second
combines these (Chan, Golub and LeVeque 1979), always in the same order on one GPU, and normalizes.
"""

from dataclasses import replace
from functools import partial

import numpy as np

from runner.kernels.contract import Arrange, Arrangement, Attributes, Buffers, Kernel, Offers, Operand, Specs
from runner.kernels.gpu.calls import Bind, StreamCall, in_order, launch, own_kernels
from runner.kernels.gpu.channels import THREADS, Division, division, source, vector_dtype
from runner.kernels.gpu.layouts import arrange_alike, innermost_channels
from runner.kernels.gpu.runtime import Argument, Runtime
from runner.kernels.memory import address_of

_MOMENTS, _SUMS = 3, 2
"""Numbers stored per part of a channel: count, mean and squares; the sums of dy and of dy * z."""

_NO_MASK = np.uintp(0)


def kernels(runtime: Runtime) -> list[Kernel]:
    """Return the kernels of batch normalization, without and with ReLU."""

    def functions(kept: int, replaced: int, bind: Bind) -> tuple[Arrange, Bind]:
        """kept: numbers per part of a channel. replaced: the input whose memory the first output may take."""
        return partial(_arrange, runtime.multiprocessors, kept, replaced), bind

    training, gradient = functions(_MOMENTS, 0, _bind_training), functions(_SUMS, -1, _bind_gradient)
    table = {
        "batch_norm": training,
        "batch_norm_relu": training,
        "batch_norm_gradient": gradient,
        "batch_norm_relu_gradient": gradient,
        "batch_norm_inference": functions(0, 0, _bind_inference),
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
    """Inputs x, gamma, beta; outputs y, mean, variance, and with ReLU the mask of positive elements."""
    x, gamma, beta = map(_address, buffers.inputs)
    y, mean, variance, *masks = map(_address, buffers.outputs)
    (mask,) = masks or [_NO_MASK]
    partials = np.uintp(address_of(buffers.scratch))
    statistics = _launch(runtime, "batch_norm_moments", buffers, x, partials)
    normalised = (x, gamma, beta, partials, y, mean, variance, mask, _epsilon(attributes, buffers))
    return in_order([statistics, _launch(runtime, "batch_norm", buffers, *normalised)])


def _bind_gradient(runtime: Runtime, attributes: Attributes, buffers: Buffers) -> StreamCall:
    """Inputs x, gamma, mean, variance, with ReLU its mask, and dy; outputs dx, dgamma, dbeta."""
    x, gamma, mean, variance, *masks, dy = map(_address, buffers.inputs)
    dx, dgamma, dbeta = map(_address, buffers.outputs)
    (mask,) = masks or [_NO_MASK]
    partials, epsilon = np.uintp(address_of(buffers.scratch)), _epsilon(attributes, buffers)
    summed = (x, mean, variance, mask, dy, partials, epsilon)
    mapped = (x, gamma, mean, variance, mask, dy, partials, dx, dgamma, dbeta, epsilon)
    sums = _launch(runtime, "batch_norm_gradient_sums", buffers, *summed)
    return in_order([sums, _launch(runtime, "batch_norm_gradient", buffers, *mapped)])


def _bind_inference(runtime: Runtime, attributes: Attributes, buffers: Buffers) -> StreamCall:
    operands = (*buffers.inputs, *buffers.outputs)
    return _launch(runtime, "batch_norm_inference", buffers, *map(_address, operands), _epsilon(attributes, buffers))


def _launch(runtime: Runtime, name: str, buffers: Buffers, *arguments: Argument) -> StreamCall:
    """One kernel over all of x."""
    x = buffers.inputs[0]
    cut: Division = division(runtime.multiprocessors, x.spec, innermost_channels(x.spec, x.layout))
    function = runtime.function(source(x.spec.dtype), name)
    return launch(function, cut.grid, [*arguments, *cut.arguments], threads=THREADS)


def _address(operand: Operand) -> Argument:
    return np.uintp(operand.address)


def _epsilon(attributes: Attributes, buffers: Buffers) -> Argument:
    """Return epsilon in the dtype of the computation."""
    return vector_dtype(buffers.inputs[0].spec.dtype).type(attributes["epsilon"])
