"""Convolution with bias, residual and ReLU in one launch, and both gradients of a layer in one call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from runner.kernels.contract import FLOATS, Arrangement, Attributes, Buffers, Kernel, Layout, Spec
from runner.kernels.gpu import convolution
from runner.kernels.gpu.alike import arrange_alike, innermost_channels
from runner.kernels.gpu.calls import StreamCall, in_order
from runner.kernels.gpu.channels import channel_sums, sums_bytes
from runner.kernels.gpu.runtime import Runtime
from runner.kernels.memory import address_of


def kernels(runtime: Runtime) -> list[Kernel]:
    """Convolution with what follows it, and its weight gradient with that of the bias."""
    gradients = (partial(_arrange_gradients, runtime.multiprocessors), partial(_bind_gradients, runtime))
    return [
        Kernel("conv2d_fused", "gpu", "cuda", 0, FLOATS, _arrange_fused, partial(_bind_fused, runtime)),
        Kernel("conv2d_weight_bias_gradient", "gpu", "cuda", 0, FLOATS, *gradients),
    ]


def _arrange_fused(
    attributes: Attributes, inputs: Sequence[Spec], outputs: Sequence[Spec], offered: Sequence[Layout | None]
) -> Arrangement:
    alike = arrange_alike(attributes, inputs, outputs, offered)
    residual = len(inputs) - 1
    return replace(alike, in_place=((residual, 0),) if attributes["residual"] else ())


def _bind_fused(runtime: Runtime, attributes: Attributes, arrangement: Arrangement, buffers: Buffers) -> StreamCall:
    bias = buffers.inputs[2].address if attributes["bias"] else 0
    residual = buffers.inputs[-1].address if attributes["residual"] else 0
    return convolution.forward(runtime, attributes, buffers, bias, residual, attributes["relu"])


def _arrange_gradients(
    multiprocessors: int,
    attributes: Attributes,
    inputs: Sequence[Spec],
    outputs: Sequence[Spec],
    offered: Sequence[Layout | None],
) -> Arrangement:
    alike = arrange_alike(attributes, inputs, outputs, offered)
    dy, layout = inputs[0], alike.outputs[0]
    weights = convolution.weight_gradient_bytes(multiprocessors, attributes, inputs, outputs, layout)
    bias = sums_bytes(multiprocessors, dy, innermost_channels(dy, alike.inputs[0]))
    # One after the other, in the same memory.
    return replace(alike, scratch_bytes=max(weights, bias))


def _bind_gradients(runtime: Runtime, attributes: Attributes, arrangement: Arrangement, buffers: Buffers) -> StreamCall:
    dy, db = buffers.inputs[0], buffers.outputs[1]
    is_last, scratch = innermost_channels(dy.spec, dy.layout), address_of(buffers.scratch)
    bias = channel_sums(runtime, dy.spec, is_last, dy.address, scratch, db.address, db.spec.dtype)
    return in_order([convolution.weight_gradient(runtime, attributes, buffers), bias])
