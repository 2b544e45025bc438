"""A dense layer: a product with bias and ReLU, and both gradients of its parameters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from runner.kernels.contract import FLOATS, Arrangement, Attributes, Buffers, Kernel, Layout, Spec
from runner.kernels.gpu.calls import StreamCall, in_order
from runner.kernels.gpu.linear import (
    Dense,
    Multiplier,
    arrange_dense,
    bind_dense,
    multipliers,
    product_of,
)
from runner.kernels.gpu.reduction import Reduction, reduce, reduced_shape, scratch_bytes
from runner.kernels.gpu.runtime import Runtime
from runner.kernels.memory import address_of


def kernels(runtime: Runtime) -> list[Kernel]:
    """matmul_fused and matmul_bias_gradient of each library that is there."""
    return [
        kernel
        for multiplier in multipliers(runtime)
        for kernel in (_fused(multiplier), _bias_gradient(runtime, multiplier))
    ]


def _fused(multiplier: Multiplier) -> Kernel:
    def arrange(
        attributes: Attributes, inputs: Sequence[Spec], outputs: Sequence[Spec], offered: Sequence[Layout | None]
    ) -> Arrangement | None:
        return arrange_dense(multiplier, _dense(inputs, attributes), inputs, outputs)

    def bind(attributes: Attributes, arrangement: Arrangement, buffers: Buffers) -> StreamCall:
        dense = _dense([operand.spec for operand in buffers.inputs], attributes)
        return bind_dense(multiplier, dense, buffers)

    return Kernel("matmul_fused", "gpu", multiplier.library, multiplier.priority, FLOATS, arrange, bind)


def _dense(inputs: Sequence[Spec], attributes: Attributes) -> Dense:
    product = product_of(inputs[0], inputs[1], attributes, attributes["dtype"])
    return Dense(product, attributes["bias"], attributes["relu"])


def _bias_gradient(runtime: Runtime, multiplier: Multiplier) -> Kernel:
    def arrange(
        attributes: Attributes, inputs: Sequence[Spec], outputs: Sequence[Spec], offered: Sequence[Layout | None]
    ) -> Arrangement | None:
        dense, sums = _parts(inputs, attributes)
        found = arrange_dense(multiplier, dense, inputs, outputs)
        if found is None:
            return None
        # One after the other: they share the memory.
        return replace(found, scratch_bytes=max(found.scratch_bytes, scratch_bytes(sums, inputs[1].dtype)))

    def bind(attributes: Attributes, arrangement: Arrangement, buffers: Buffers) -> StreamCall:
        (x, dy), (dw, db) = buffers.inputs, buffers.outputs
        dense, sums = _parts([x.spec, dy.spec], attributes)
        scratch = address_of(buffers.scratch)
        source, target = (dy.spec.dtype, dy.address), (db.spec.dtype, db.address)
        return in_order(
            [
                multiplier.call(dense, x.address, dy.address, 0, dw.address, scratch),
                reduce(runtime, "reduce_sum", sums, source, target, scratch),
            ]
        )

    return Kernel("matmul_bias_gradient", "gpu", multiplier.library, multiplier.priority, FLOATS, arrange, bind)


def _parts(inputs: Sequence[Spec], attributes: Attributes) -> tuple[Dense, Reduction]:
    """x' dy, and the sum of dy over its rows."""
    x, dy = inputs
    turned = {"transpose_a": True, "transpose_b": False}
    dense = Dense(product_of(x, dy, turned, attributes["dtype"]))
    return dense, reduced_shape(dy.shape, (dy.shape[1], 1), (0,))
