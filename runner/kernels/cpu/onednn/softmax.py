"""Kernels of oneDNN for exp, sigmoid and tanh, for softmax over the last axis, and for softmax cross-entropy."""

from collections.abc import Callable

import numpy as np

from runner.kernels.contract import Arrangement, Array, Attributes, Buffers, Kernel, Spec, Specs, all_plain, plain
from runner.kernels.cpu.onednn import constants as dnnl
from runner.kernels.cpu.onednn.library import Library, Unimplemented
from runner.kernels.cpu.onednn.memory import formatted, in_c_order
from runner.kernels.cpu.onednn.recipe import (
    PRIORITY,
    Description,
    Layouts,
    Node,
    Port,
    Recipe,
    add_kernel,
    as_offered,
    bound,
    format_of,
    in_turn,
)
from runner.kernels.reference.rows import check_range
from runner.kernels.registry import Registry

ALGORITHMS = {"exp": dnnl.ELTWISE_EXP, "sigmoid": dnnl.ELTWISE_LOGISTIC, "tanh": dnnl.ELTWISE_TANH}
"""Op -> algorithm. The relative error is below 5e-7, but results below e ** -86.6 may be 0; exp(NaN) is infinity."""


def register(registry: Registry, library: Library) -> None:
    """Add the kernels of this family."""
    for op, algorithm in ALGORITHMS.items():
        _add_function(registry, library, op, algorithm)
    add_kernel(registry, library, "softmax", _softmax, _request_plain)
    _add_cross_entropy(registry, library)


def _add_function(registry: Registry, library: Library, op: str, algorithm: int) -> None:
    keeps_zero = op == "tanh"

    def request(node: Node, offered: Layouts) -> tuple[Layouts, Layouts]:
        (x,), (given,) = node.inputs, offered
        if given is None or keeps_zero or given.nbytes == x.nbytes:
            return as_offered(node, offered)
        # The offered layout is padded with zeros, which exp and sigmoid would change.
        return [plain(x)], [None]

    def describe(library: Library, node: Node, inputs: Layouts, outputs: Layouts) -> Recipe:
        (spec,) = node.inputs
        x = formatted(library, spec.shape, spec.dtype, format_of(*inputs))
        desc = Description(library, "eltwise_forward", dnnl.FORWARD_INFERENCE, algorithm, x, x, 0.0, 0.0)
        return Recipe(desc, [Port(dnnl.SRC, x)], [Port(dnnl.DST, x)], in_place=((0, 0),))

    add_kernel(registry, library, op, describe, request)


def _request_plain(node: Node, offered: Layouts) -> tuple[Layouts, Layouts]:
    return list(map(plain, node.inputs)), list(map(plain, node.outputs))


def _description(library: Library, x: Spec) -> Description:
    tensor, last = in_c_order(library, x.shape, x.dtype), len(x.shape) - 1
    return Description(library, "softmax_forward", dnnl.FORWARD_INFERENCE, dnnl.SOFTMAX_ACCURATE, tensor, tensor, last)


def _softmax(library: Library, node: Node, inputs: Layouts, outputs: Layouts) -> Recipe:
    desc = _description(library, node.inputs[0])
    return Recipe(desc, [desc.port(dnnl.SRC)], [desc.port(dnnl.DST)], in_place=((0, 0),))


def _add_cross_entropy(registry: Registry, library: Library) -> None:
    def arrange(given: Attributes, inputs: Specs, outputs: Specs, offered: Layouts) -> Arrangement | None:
        if 0 in inputs[0].shape:
            return None
        try:
            scratch = _description(library, inputs[0]).scratch_bytes
        except Unimplemented:
            return None
        return all_plain(inputs, outputs, scratch)

    def bind(given: Attributes, arrangement: Arrangement, buffers: Buffers) -> Callable[[], None]:
        logits, labels = buffers.inputs
        loss, probabilities = buffers.outputs
        desc = _description(library, logits.spec)
        tensors = {dnnl.SRC: (desc.descriptor(dnnl.SRC), logits), dnnl.DST: (desc.descriptor(dnnl.DST), probabilities)}
        normalise = in_turn(library, [bound(desc, tensors, buffers.host_scratch)])
        return _cross_entropy(normalise, logits.array, labels.array, loss.array, probabilities.array)

    dtypes = frozenset({"float32"})
    registry.add(Kernel("softmax_cross_entropy", "cpu", "onednn", PRIORITY, dtypes, arrange, bind))


def _cross_entropy(
    normalise: Callable[[], None], logits: Array, labels: Array, loss: Array, probabilities: Array
) -> Callable[[], None]:
    """Return the function that computes probabilities, by ``normalise``, and then the loss.

    loss = (largest logit - logit of the label) - log(probability of the largest logit), which does not overflow.
    """
    count, classes = logits.shape
    unsigned = labels.view(f"u{labels.dtype.itemsize}")  # a negative label, read as unsigned, is out of range
    starts = np.arange(0, count * classes, classes)
    positions, picked = np.empty((2, count), np.int64), np.empty((2, count), logits.dtype)
    (top, truth), (largest, own), share = positions, picked, np.empty_like(loss)
    flat_logits, flat_probabilities = logits.reshape(-1), probabilities.reshape(-1)

    def call() -> None:
        if np.maximum.reduce(unsigned) >= classes:
            check_range("softmax_cross_entropy", labels, classes)
        normalise()
        logits.argmax(axis=1, out=top)
        np.copyto(truth, labels)
        np.add(positions, starts, out=positions)
        # Mode "clip" avoids a temporary copy in NumPy; no position is clipped, because all are in range.
        flat_logits.take(positions, out=picked, mode="clip")
        flat_probabilities.take(top, out=share, mode="clip")
        np.subtract(largest, own, out=loss)
        np.subtract(loss, np.log(share, out=share), out=loss)

    return call
