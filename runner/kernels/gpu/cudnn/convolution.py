"""Convolutions and their gradients by cuDNN, with channels last for every image and filter.

Our own kernels compute the nodes for which cuDNN has no plan: nodes with empty tensors and, in float64, nodes with a
residual and nodes with a ReLU but no bias.
"""

from collections.abc import Mapping
from itertools import accumulate

import numpy as np

from runner.kernels.contract import (
    FLOATS,
    Arrangement,
    Attributes,
    Buffers,
    Kernel,
    Layout,
    Offers,
    Operand,
    Spec,
    Specs,
    plain,
)
from runner.kernels.gpu.cudnn.graphs import FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT, Convolution, Role
from runner.kernels.gpu.cudnn.library import BuiltPlan, CudnnLibrary
from runner.kernels.gpu.layouts import channels_last, strides
from runner.kernels.gpu.reduction import Reduction, reduce, reduced_shape, scratch_bytes
from runner.kernels.gpu.runtime import ALIGNMENT, Runtime, Stream, StreamCall, aligned, blocks_for, in_order, launch
from runner.kernels.gpu.source import text
from runner.kernels.memory import address_of, numpy_dtype


def kernels(runtime: Runtime) -> list[Kernel]:
    """Return the kernels of conv2d, conv2d_fused and their gradients, or an empty list without cuDNN."""
    planner: CudnnLibrary | None = runtime.library("cudnn")
    if planner is None:
        return []
    return [
        _one_call(planner, "conv2d", FORWARD, (Role.X, Role.W)),
        _one_call(planner, "conv2d_fused", FORWARD, (Role.X, Role.W)),
        _one_call(planner, "conv2d_input_gradient", INPUT_GRADIENT, (Role.Y, Role.W)),
        _of_weights(runtime, planner, "conv2d_weight_gradient"),
        _of_weights(runtime, planner, "conv2d_weight_bias_gradient"),
    ]


def _described(kind: str, attributes: Attributes, inputs: Specs, outputs: Specs) -> Convolution:
    x, w, y = {
        FORWARD: (inputs[0], inputs[1], outputs[0]),
        INPUT_GRADIENT: (outputs[0], inputs[1], inputs[0]),
        WEIGHT_GRADIENT: (inputs[1], outputs[0], inputs[0]),
    }[kind]
    steps, padding, dilations = (tuple(attributes[name]) for name in ("strides", "padding", "dilations"))
    followed_by = {name: bool(attributes.get(name)) for name in ("bias", "residual", "relu")}
    return Convolution(kind, y.dtype, x.shape, w.shape, y.shape, steps, padding, dilations, **followed_by)


def _planned(planner: CudnnLibrary, convolution: Convolution) -> BuiltPlan | None:
    """Return the plan, or None if cuDNN has no plan or a tensor is empty."""
    empty = any(0 in shape for shape in convolution.shapes.values())
    return None if empty else planner.plan(convolution)


def _needed(planner: CudnnLibrary, convolution: Convolution, room: int) -> BuiltPlan:
    """Return a plan whose workspace fits into ``room`` bytes.

    ``room`` was determined by ``arrange``, possibly in another process. If plans are compared by speed, the
    fastest plan can differ between processes. Raises ValueError if no plan fits.
    """
    plan = planner.plan(convolution, room)
    if plan is None:
        raise ValueError(
            f"cuDNN has no plan for {convolution} with {room} bytes of workspace, as arranged: all GPUs of "
            "a run must be of one model, and its processes must have the same cuDNN"
        )
    return plan


def _layouts(specs: Specs) -> tuple[Layout, ...]:
    """Return channels last for images and filters, C order for other tensors."""
    return tuple(channels_last(spec) if len(spec.shape) == 4 else plain(spec) for spec in specs)


def _one_call(planner: CudnnLibrary, op: str, kind: str, first: tuple[Role, Role]) -> Kernel:
    """Return the kernel of an op that executes one plan. first: roles of the inputs before bias and residual."""

    def arrange(attributes: Attributes, inputs: Specs, outputs: Specs, offered: Offers) -> Arrangement | None:
        plan = _planned(planner, _described(kind, attributes, inputs, outputs))
        if plan is None:
            return None
        return Arrangement(_layouts(inputs), _layouts(outputs), _Scratch(plan.workspace_bytes).nbytes)

    def bind(attributes: Attributes, arrangement: Arrangement, buffers: Buffers) -> StreamCall:
        convolution = _described(kind, attributes, *buffers.specs)
        plan = _needed(planner, convolution, _Scratch.room(buffers))
        following = [role for role in (Role.BIAS, Role.RESIDUAL) if role in convolution.shapes]
        taken = dict(zip((*first, *following), (each.address for each in buffers.inputs), strict=True))
        (workspace,) = _Scratch(plan.workspace_bytes).within(buffers)
        return _execution(plan, {**taken, convolution.result: buffers.outputs[0].address}, workspace)

    return Kernel(op, "gpu", "cudnn", 10, FLOATS, arrange, bind)


def _of_weights(runtime: Runtime, planner: CudnnLibrary, op: str) -> Kernel:
    """Return the kernel of the filter gradient and, if there is a second output, of the bias gradient.

    cuDNN computes filter gradients only in the dtype of the image. If the image is bfloat16 and the result is float32,
    the filter gradient is rounded to bfloat16 and converted to float32. The bias gradient is summed in float32 and
    rounded to the dtype of its result.
    """

    def arrange(attributes: Attributes, inputs: Specs, outputs: Specs, offered: Offers) -> Arrangement | None:
        plan = _planned(planner, _described(WEIGHT_GRADIENT, attributes, inputs, outputs))
        if plan is None:
            return None
        scratch = _Scratch(plan.workspace_bytes, *_other_parts(inputs, outputs))
        return Arrangement(_layouts(inputs), _layouts(outputs), scratch.nbytes)

    def bind(attributes: Attributes, arrangement: Arrangement, buffers: Buffers) -> StreamCall:
        (dy, x), dw = buffers.inputs, buffers.outputs[0]
        specs = buffers.specs
        others = _other_parts(*specs)
        convolution = _described(WEIGHT_GRADIENT, attributes, *specs)
        plan = _needed(planner, convolution, _Scratch.room(buffers, *others))
        workspace, unconverted, slices = _Scratch(plan.workspace_bytes, *others).within(buffers)
        direct = dw.spec.dtype == x.spec.dtype
        roles = {Role.X: x.address, Role.Y: dy.address, Role.W: dw.address if direct else unconverted}
        calls = [_execution(plan, roles, workspace)]
        if not direct:
            calls.append(_converted(runtime, x.spec.dtype, unconverted, dw))
        for db in buffers.outputs[1:]:
            of, to = (dy.spec.dtype, dy.address), (db.spec.dtype, db.address)
            calls.append(reduce(runtime, "reduce_sum", _over_pixels(dy.spec), of, to, slices))
        return in_order(calls)

    return Kernel(op, "gpu", "cudnn", 10, FLOATS, arrange, bind)


class _Scratch:
    """Consecutive aligned parts of scratch memory. sizes: the bytes of each part."""

    def __init__(self, *sizes: int) -> None:
        self._ends = list(accumulate(map(aligned, sizes)))

    @property
    def nbytes(self) -> int:
        """The number of bytes to request, which suffices even if the scratch memory is not aligned."""
        return self._ends[-1] + ALIGNMENT if self._ends[-1] else 0

    @staticmethod
    def room(buffers: Buffers, *others: int) -> int:
        """Return the bytes of scratch memory that remain for one part if the other parts have sizes ``others``."""
        return max(0, buffers.scratch.nbytes - ALIGNMENT - sum(map(aligned, others)))

    def within(self, buffers: Buffers) -> list[int]:
        """Return the addresses of the parts."""
        start = aligned(address_of(buffers.scratch))
        return [start + end for end in (0, *self._ends[:-1])]


def _other_parts(inputs: Specs, outputs: Specs) -> tuple[int, int]:
    """Return the bytes of scratch memory for unconverted filter gradients and for partial sums of the bias gradient."""
    (dy, x), (dw, *db) = inputs, outputs
    unconverted = dw.nbytes * numpy_dtype(x.dtype).itemsize // numpy_dtype(dw.dtype).itemsize
    slices = scratch_bytes(_over_pixels(dy), dy.dtype) if db else 0
    return 0 if dw.dtype == x.dtype else unconverted, slices


def _over_pixels(dy: Spec) -> Reduction:
    """Return the reduction that sums ``dy`` over examples and pixels."""
    return reduced_shape(dy.shape, strides(dy.shape, channels_last(dy)), (0, 2, 3))


def _execution(plan: BuiltPlan, addresses: Mapping[Role, int], workspace: int) -> StreamCall:
    def enqueue(stream: Stream) -> None:
        plan.enqueue(stream, addresses, workspace)

    return StreamCall(enqueue, plan)


def _converted(runtime: Runtime, dtype: str, unconverted: int, target: Operand) -> StreamCall:
    count = target.layout.nbytes // numpy_dtype(target.spec.dtype).itemsize
    function = runtime.function(text("convert", T=dtype, R=target.spec.dtype), "convert")
    return launch(function, blocks_for(runtime, count), (np.uintp(unconverted), target, np.int64(count)))
