"""A dense layer: a product with bias and ReLU, and both gradients of its parameters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from runner.kernels.gpu.calls import StreamCall, in_order
from runner.kernels.gpu.linear import (
    Multiplier,
    Product,
    aligned,
    arrange_product,
    bound_product,
    multipliers,
    product_of,
)
from runner.kernels.gpu.reduction import Reduction, reduce, reduced_shape, scratch_bytes
from runner.kernels.gpu.runtime import Runtime
from runner.kernels.registry import FLOATS, Arrangement, Attributes, Buffers, Kernel, Layout, Spec, address_of


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
        return arrange_product(multiplier, _fused_product(inputs, attributes), inputs, outputs)

    def bind(attributes: Attributes, arrangement: Arrangement, buffers: Buffers) -> StreamCall:
        product = _fused_product([operand.spec for operand in buffers.inputs], attributes)
        return bound_product(multiplier, product, buffers)

    return Kernel("matmul_fused", "gpu", multiplier.library, multiplier.priority, FLOATS, arrange, bind)


def _fused_product(inputs: Sequence[Spec], attributes: Attributes) -> Product:
    added = {"result": attributes["dtype"], "bias": attributes["bias"], "relu": attributes["relu"]}
    return product_of(*inputs[:2], attributes, **added)


def _bias_gradient(runtime: Runtime, multiplier: Multiplier) -> Kernel:
    def arrange(
        attributes: Attributes, inputs: Sequence[Spec], outputs: Sequence[Spec], offered: Sequence[Layout | None]
    ) -> Arrangement | None:
        product, sums = _parts(inputs, attributes)
        found = arrange_product(multiplier, product, inputs, outputs)
        if found is None:
            return None
        behind = scratch_bytes(sums, inputs[1].dtype)
        return replace(found, scratch_bytes=aligned(found.scratch_bytes) + behind)

    def bind(attributes: Attributes, arrangement: Arrangement, buffers: Buffers) -> StreamCall:
        (x, dy), (dw, db) = buffers.inputs, buffers.outputs
        product, sums = _parts([x.spec, dy.spec], attributes)
        scratch = address_of(buffers.scratch)
        behind = scratch + aligned(multiplier.scratch_bytes(product))
        source, target = (dy.spec.dtype, dy.address), (db.spec.dtype, db.address)
        return in_order(
            [
                multiplier.call(product, x.address, dy.address, 0, dw.address, scratch),
                reduce(runtime, "reduce_sum", sums, source, target, behind),
            ]
        )

    return Kernel("matmul_bias_gradient", "gpu", multiplier.library, multiplier.priority, FLOATS, arrange, bind)


def _parts(inputs: Sequence[Spec], attributes: Attributes) -> tuple[Product, Reduction]:
    """x' dy, and the sum of dy over its rows."""
    x, dy = inputs
    turned = {"transpose_a": True, "transpose_b": False}
    return product_of(x, dy, turned, result=attributes["dtype"]), reduced_shape(dy.shape, (dy.shape[1], 1), (0,))
