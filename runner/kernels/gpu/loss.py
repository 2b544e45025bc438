"""Cross-entropies from logits."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from runner.kernels.contract import FLOATS, Arrangement, Attributes, Buffers, Kernel, Layout, Spec, plain
from runner.kernels.functions import arrange_plain
from runner.kernels.gpu.calls import Failures, StreamCall, blocks_for, launch
from runner.kernels.gpu.layouts import CHANNELS_LAST, channels_last, offered_layout
from runner.kernels.gpu.refusals import refusing
from runner.kernels.gpu.runtime import Runtime
from runner.kernels.gpu.softmax import of_rows, rows_and_depth


def kernels(runtime: Runtime) -> list[Kernel]:
    """softmax_cross_entropy, its gradient, and sigmoid_cross_entropy."""

    def bind(attributes: Attributes, arrangement: Arrangement, buffers: Buffers) -> StreamCall:
        return _bind_softmax(runtime, buffers)

    def bind_gradient(attributes: Attributes, arrangement: Arrangement, buffers: Buffers) -> StreamCall:
        return _bind_softmax_gradient(runtime, buffers)

    def bind_sigmoid(attributes: Attributes, arrangement: Arrangement, buffers: Buffers) -> StreamCall:
        return _bind_sigmoid(runtime, buffers)

    return [
        Kernel("softmax_cross_entropy", "gpu", "cuda", 0, FLOATS, arrange_plain, bind),
        Kernel("softmax_cross_entropy_gradient", "gpu", "cuda", 0, FLOATS, _arrange_gradient, bind_gradient),
        Kernel("sigmoid_cross_entropy", "gpu", "cuda", 0, FLOATS, _arrange_sigmoid, bind_sigmoid),
    ]


def _bind_softmax(runtime: Runtime, buffers: Buffers) -> StreamCall:
    logits, labels = buffers.inputs
    rows, classes = logits.spec.shape
    function = of_rows(runtime, "cross_entropy", logits.spec.dtype, labels.spec.dtype)
    addresses = [np.uintp(operand.address) for operand in (*buffers.inputs, *buffers.outputs)]
    blocks, extents = rows_and_depth(rows, classes)

    def call(failures: Failures) -> StreamCall:
        return launch(function, blocks, [*addresses, *extents, failures.argument], failures=failures)

    return refusing(runtime, "softmax_cross_entropy", labels, classes, call)


def _arrange_gradient(
    attributes: Attributes, inputs: Sequence[Spec], outputs: Sequence[Spec], offered: Sequence[Layout | None]
) -> Arrangement:
    return Arrangement(tuple(map(plain, inputs)), tuple(map(plain, outputs)), in_place=((0, 0),))


def _bind_softmax_gradient(runtime: Runtime, buffers: Buffers) -> StreamCall:
    probabilities, labels, _ = buffers.inputs
    rows, classes = probabilities.spec.shape
    function = of_rows(runtime, "cross_entropy_gradient", probabilities.spec.dtype, labels.spec.dtype)
    addresses = [np.uintp(operand.address) for operand in (*buffers.inputs, *buffers.outputs)]
    blocks, extents = blocks_for(runtime, rows * classes), [np.int64(rows * classes), np.int64(classes)]

    def call(failures: Failures) -> StreamCall:
        return launch(function, blocks, [*addresses, *extents, failures.argument], failures=failures)

    return refusing(runtime, "softmax_cross_entropy_gradient", labels, classes, call)


def _arrange_sigmoid(
    attributes: Attributes, inputs: Sequence[Spec], outputs: Sequence[Spec], offered: Sequence[Layout | None]
) -> Arrangement:
    last = offered_layout(outputs[0], offered).tag == CHANNELS_LAST
    lie = channels_last if last else plain
    return Arrangement(tuple(map(lie, inputs)), tuple(map(lie, outputs)), in_place=((0, 0), (1, 0)))


def _bind_sigmoid(runtime: Runtime, buffers: Buffers) -> StreamCall:
    (loss,) = buffers.outputs
    count = math.prod(loss.spec.shape)
    function = of_rows(runtime, "sigmoid_cross_entropy", loss.spec.dtype, "int64")
    addresses = [np.uintp(operand.address) for operand in (*buffers.inputs, loss)]
    return launch(function, blocks_for(runtime, count), [*addresses, np.int64(count)])
