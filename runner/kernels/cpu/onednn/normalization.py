"""Batch normalization and local response normalization across channels, and their gradients.

The kernels are memory-bound, so x is not converted, and all other tensors of the shape of x get the layout of x.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from runner.kernels.contract import Arrangement, Attributes, Bound, Buffers, Kernel, Layout, PythonCall, Spec
from runner.kernels.cpu.onednn import constants as dnnl
from runner.kernels.cpu.onednn.library import Library, Unimplemented
from runner.kernels.cpu.onednn.memory import AXES, BITS, formatted, in_c_order, layout_of, nbytes
from runner.kernels.cpu.onednn.recipe import (
    FLOATS,
    PRIORITY,
    Description,
    Layouts,
    Node,
    Port,
    Recipe,
    add_kernel,
    answering,
    as_offered,
    bound,
    format_of,
)
from runner.kernels.memory import ALIGNMENT
from runner.kernels.registry import Registry

_SCALED = dnnl.USE_SCALE | dnnl.USE_SHIFT
_WIDEST_IN_BFLOAT16 = 5
_NAN_BYTE = 0xFF  # a float32 or bfloat16 number is NaN if all of its bytes have this value


def register(registry: Registry, library: Library) -> None:
    """Add the kernels of this family."""
    add_kernel(registry, library, "batch_norm", _training, as_offered)
    add_kernel(registry, library, "batch_norm_relu", _training, as_offered, finish=_let_nan_through)
    add_kernel(registry, library, "batch_norm_inference", _inference, as_offered)
    add_kernel(registry, library, "batch_norm_gradient", _gradient, as_offered)
    add_kernel(registry, library, "batch_norm_relu_gradient", _gradient, as_offered)
    add_kernel(registry, library, "local_response_normalization", _response, as_offered)
    _add_response_gradient(registry, library)


def _forward(library: Library, node: Node, name: str, goal: int, flags: int) -> Description:
    """Return the description of the forward primitive for x in the named format."""
    x = _image(library, node, name)
    return Description(library, "batch_normalization_forward", goal, x, x, node.attributes["epsilon"], flags)


def _image(library: Library, node: Node, name: str) -> Any:
    return formatted(library, node.inputs[0].shape, node.inputs[0].dtype, name)


def _vectors(library: Library, specs: Sequence[Spec], numbers: Sequence[int]) -> list[Port]:
    """Return the ports of vectors with one value per channel."""
    return [
        Port(number, in_c_order(library, spec.shape, spec.dtype)) for spec, number in zip(specs, numbers, strict=True)
    ]


def _flags(masks: Sequence[Spec]) -> int:
    """Return the flags of training, with ReLU if there is a mask."""
    return _SCALED | (dnnl.FUSE_NORM_RELU if masks else 0)


def _training(library: Library, node: Node, inputs: Layouts, outputs: Layouts) -> Recipe:
    """Return the recipe with inputs x, gamma, beta and outputs y, mean, variance and, with ReLU, the mask."""
    name, masks = format_of(inputs[0]), node.outputs[3:]
    desc = _forward(library, node, name, dnnl.FORWARD_TRAINING, _flags(masks))
    ports = [desc.port(dnnl.SRC), *_vectors(library, node.inputs[1:], (dnnl.SCALE, dnnl.SHIFT))]
    results = [desc.port(dnnl.DST), *_vectors(library, node.outputs[1:3], (dnnl.MEAN, dnnl.VARIANCE))]
    results += [_mask(library, desc, each, name) for each in masks]
    return Recipe(desc, ports, results, in_place=((0, 0),))


def _let_nan_through(buffers: Buffers) -> PythonCall:
    """Return a function that sets all of y to NaN if y should contain a NaN; oneDNN's ReLU turns NaN into 0.

    y should contain NaN if a mean, a variance, gamma or beta is NaN, or if a mean overflows. A NaN in x makes the mean
    of the channel NaN, so only these vectors are checked. The mask is unchanged.
    """
    (_, gamma, beta), (y, mean, variance, _) = buffers.inputs, buffers.outputs
    vectors = [each.array for each in (gamma, beta, mean, variance)]
    scale, shift, average, spread = vectors
    first, second = scale.dot, average.dot

    def run() -> None:
        # Two cheap products per step detect the common case that all numbers are finite.
        found = float(first(shift)) + float(second(spread))
        if found - found != 0 and (np.isinf(average).any() or any(np.isnan(vector).any() for vector in vectors)):
            y.host.fill(_NAN_BYTE)

    return run


def _mask(library: Library, normalisation: Description, spec: Spec, name: str) -> Port:
    """Return the port of the ReLU mask: a byte or a bit for each element of x, in the memory order of x."""
    kept = normalisation.descriptor(dnnl.WORKSPACE)
    as_bytes = formatted(library, spec.shape, "bool", name)
    given, count = nbytes(library, kept), nbytes(library, as_bytes)
    if given == count:
        return Port(dnnl.WORKSPACE, kept, layout=layout_of(library, as_bytes, spec))
    if given == -(-count // 8):
        return Port(dnnl.WORKSPACE, kept, layout=Layout(BITS + (name or AXES[: len(spec.shape)]), given))
    raise Unimplemented(f"oneDNN keeps {given} bytes for {count} elements, neither a byte nor a bit for each")


def _inference(library: Library, node: Node, inputs: Layouts, outputs: Layouts) -> Recipe:
    """Return the recipe with inputs x, gamma, beta, mean, variance and output y."""
    flags = _SCALED | dnnl.USE_GLOBAL_STATS
    desc = _forward(library, node, format_of(inputs[0]), dnnl.FORWARD_INFERENCE, flags)
    vectors = _vectors(library, node.inputs[1:], (dnnl.SCALE, dnnl.SHIFT, dnnl.MEAN, dnnl.VARIANCE))
    return Recipe(desc, [desc.port(dnnl.SRC), *vectors], [desc.port(dnnl.DST)], in_place=((0, 0),))


def _gradient(library: Library, node: Node, inputs: Layouts, outputs: Layouts) -> Recipe:
    """Return the recipe with inputs x, gamma, mean, variance, mask (with ReLU), dy and outputs dx, dgamma, dbeta."""
    name, masks = format_of(inputs[0]), node.inputs[4:-1]
    forward = _forward(library, node, name, dnnl.FORWARD_TRAINING, _flags(masks))
    x = _image(library, node, name)
    what = (dnnl.BACKWARD, x, x, x, node.attributes["epsilon"], _flags(masks), forward.handle)
    desc = Description(library, "batch_normalization_backward", *what)
    ports = [desc.port(dnnl.SRC), *_vectors(library, node.inputs[1:4], (dnnl.SCALE, dnnl.MEAN, dnnl.VARIANCE))]
    for spec, given in zip(masks, inputs[4:-1], strict=True):
        mask = _mask(library, desc, spec, name)
        assert mask.layout is not None, "a mask always has a layout"
        if mask.layout.tag.startswith(BITS) and given != mask.layout:
            raise Unimplemented("a mask whose order differs from that of x cannot be packed into bits")
        ports.append(mask)
    ports.append(desc.port(dnnl.DIFF_DST))
    results = [desc.port(dnnl.DIFF_SRC), *_vectors(library, node.outputs[1:], (dnnl.DIFF_SCALE, dnnl.DIFF_SHIFT))]
    return Recipe(desc, ports, results, in_place=((len(ports) - 1, 0),))


def _response(library: Library, node: Node, inputs: Layouts, outputs: Layouts) -> Recipe:
    """Return the recipe with input x and output y."""
    desc = _response_forward(library, node, _format(node, inputs), dnnl.FORWARD_INFERENCE)
    return Recipe(desc, [desc.port(dnnl.SRC)], [desc.port(dnnl.DST)])


def _format(node: Node, layouts: Layouts) -> str:
    """Return the first format that is not C order, or "" (C order) if oneDNN would fail with it.

    With channels-last images, oneDNN 3.2 computes wrong gradients if the number of channels is not a multiple of 16
    (the vector length), or if the images are bfloat16 and the window has more than 5 channels. If the window has one
    channel, oneDNN ends the process.
    """
    name, x, size = format_of(*layouts), node.inputs[0], node.attributes["size"]
    wide = x.dtype == "bfloat16" and size > _WIDEST_IN_BFLOAT16
    return "" if name == "acdb" and (size == 1 or wide or x.shape[1] % 16) else name


def _window(node: Node) -> tuple[int, float, float, float]:
    """Return size, alpha, beta and k by oneDNN's definition, which divides alpha by the size of the window."""
    given = node.attributes
    alpha = given["alpha"] if given["divide_by_size"] else given["alpha"] * given["size"]
    return given["size"], alpha, given["beta"], given["k"]


def _response_forward(library: Library, node: Node, name: str, goal: int) -> Description:
    x = _image(library, node, name)
    return Description(library, "lrn_forward", goal, dnnl.LRN_ACROSS_CHANNELS, x, x, *_window(node))


def _add_response_gradient(registry: Registry, library: Library) -> None:
    """Register the kernel of the gradient, with inputs x and dy and output dx.

    If the backward pass reads a workspace, the forward pass runs first, fills the workspace and writes y to dx.
    """

    def arrange(node: Node, offered: Layouts) -> Arrangement:
        name = _format(node, offered)
        forward, backward = _both_passes(library, node, name)
        image = layout_of(library, _image(library, node, name), node.inputs[0])
        return Arrangement((image, image), (image,), sum(_scratch(forward, backward)))

    def bind(given: Attributes, arrangement: Arrangement, buffers: Buffers) -> Bound:
        (x, dy), (dx,) = buffers.inputs, buffers.outputs
        forward, backward = _both_passes(library, Node(given, [x.spec, dy.spec], [dx.spec]), format_of(x.layout))
        image = forward.descriptor(dnnl.SRC)
        kept, scratch = np.split(buffers.host_scratch, [_scratch(forward, backward)[0]])
        memory = (backward.descriptor(dnnl.WORKSPACE), replace(x, data=kept))
        first = {dnnl.SRC: (image, x), dnnl.DST: (image, dx), dnnl.WORKSPACE: memory}
        second = {dnnl.SRC: (image, x), dnnl.DIFF_DST: (image, dy), dnnl.DIFF_SRC: (image, dx), dnnl.WORKSPACE: memory}
        if not kept.size:
            second.pop(dnnl.WORKSPACE)
            return bound(backward, second, scratch)
        return bound(forward, first, scratch), bound(backward, second, scratch)

    op = "local_response_normalization_gradient"
    registry.add(Kernel(op, "cpu", "onednn", PRIORITY, FLOATS, answering(library, arrange), bind))


def _both_passes(library: Library, node: Node, name: str) -> tuple[Description, Description]:
    forward = _response_forward(library, node, name, dnnl.FORWARD_TRAINING)
    x = _image(library, node, name)
    what = (dnnl.LRN_ACROSS_CHANNELS, x, x, x, *_window(node), forward.handle)
    return forward, Description(library, "lrn_backward", *what)


def _scratch(forward: Description, backward: Description) -> tuple[int, int]:
    """Return the bytes of the forward workspace, aligned, and of the scratch memory that both passes share."""
    kept = -(-backward.nbytes(dnnl.WORKSPACE) // ALIGNMENT) * ALIGNMENT
    return kept, max(forward.scratch_bytes, backward.scratch_bytes)
