"""Local response normalization across channels, and its gradient."""

from dataclasses import replace
from typing import Any

import numpy as np

from runner.kernels.contract import Arrangement, Attributes, Bound, Buffers, Kernel
from runner.kernels.cpu.onednn import constants as dnnl
from runner.kernels.cpu.onednn.library import Library
from runner.kernels.cpu.onednn.memory import formatted, layout_of
from runner.kernels.cpu.onednn.primitive import Description, attributes, bound
from runner.kernels.cpu.onednn.recipe import (
    FLOATS,
    PRIORITY,
    Layouts,
    Node,
    Port,
    Recipe,
    add_kernel,
    answering,
    as_offered,
    format_of,
)
from runner.kernels.memory import ALIGNMENT
from runner.kernels.registry import Registry

_WIDEST_IN_BFLOAT16 = 5


def register(registry: Registry, library: Library) -> None:
    """Add the kernels of this family."""
    add_kernel(registry, library, "local_response_normalization", _forward, as_offered)
    _add_gradient(registry, library)


def _forward(library: Library, node: Node, inputs: Layouts, outputs: Layouts) -> Recipe:
    """Input x; output y."""
    made = _description(library, node, _format(node, inputs), dnnl.FORWARD_INFERENCE)
    x, y = Port(dnnl.SRC, made.descriptor(dnnl.QUERY_SRC)), Port(dnnl.DST, made.descriptor(dnnl.QUERY_DST))
    return Recipe(made, [x], [y])


def _format(node: Node, layouts: Layouts) -> str:
    """The format of the first tensor that has one, or C order where oneDNN computes wrong gradients.

    These are channels-last images in oneDNN 3.2 whose channels are no multiple of 16, the length of its vectors, and
    bfloat16 ones with windows of more than 5 channels.
    """
    name, x = format_of(*layouts), node.inputs[0]
    wide = x.dtype == "bfloat16" and node.attributes["size"] > _WIDEST_IN_BFLOAT16
    return "" if name == "acdb" and (wide or x.shape[1] % 16) else name


def _window(node: Node) -> tuple[int, float, float, float]:
    """Return size, alpha, beta and k as oneDNN defines them: it divides alpha by the size of the window."""
    given = node.attributes
    alpha = given["alpha"] if given["divide_by_size"] else given["alpha"] * given["size"]
    return given["size"], alpha, given["beta"], given["k"]


def _description(library: Library, node: Node, name: str, goal: int) -> Description:
    x = _image(library, node, name)
    what = (goal, dnnl.LRN_ACROSS_CHANNELS, x, x, *_window(node))
    return Description(library, "lrn_forward", library.engine, *what, attributes(library))


def _image(library: Library, node: Node, name: str) -> Any:
    return formatted(library, node.inputs[0].shape, node.inputs[0].dtype, name)


def _add_gradient(registry: Registry, library: Library) -> None:
    """Register the gradient: inputs x and dy; output dx.

    oneDNN's backward pass needs the workspace of its forward pass, which runs first and writes its result to dx.
    """

    def arrange(node: Node, offered: Layouts) -> Arrangement:
        name = _format(node, offered)
        forward, backward = _both_passes(library, node, name)
        image = layout_of(library, _image(library, node, name), node.inputs[0])
        return Arrangement((image, image), (image,), sum(_scratch(forward, backward)))

    def bind(given: Attributes, arrangement: Arrangement, buffers: Buffers) -> Bound:
        (x, dy), (dx,) = buffers.inputs, buffers.outputs
        forward, backward = _both_passes(library, Node(given, [x.spec, dy.spec], [dx.spec]), format_of(x.layout))
        image = forward.descriptor(dnnl.QUERY_SRC)
        kept, scratch = np.split(buffers.host_scratch, [_scratch(forward, backward)[0]])
        memory = (backward.descriptor(dnnl.QUERY_WORKSPACE), replace(x, data=kept))
        first = {dnnl.SRC: (image, x), dnnl.DST: (image, dx), dnnl.WORKSPACE: memory}
        second = {dnnl.SRC: (image, x), dnnl.DIFF_DST: (image, dy), dnnl.DIFF_SRC: (image, dx), dnnl.WORKSPACE: memory}
        if not kept.size:
            second.pop(dnnl.WORKSPACE)
            return bound(backward, second, scratch)
        return bound(forward, first, scratch), bound(backward, second, scratch)

    op = "local_response_normalization_gradient"
    registry.add(Kernel(op, "cpu", "onednn", PRIORITY, FLOATS, answering(library, arrange), bind))


def _both_passes(library: Library, node: Node, name: str) -> tuple[Description, Description]:
    forward = _description(library, node, name, dnnl.FORWARD_TRAINING)
    x = _image(library, node, name)
    what = (dnnl.LRN_ACROSS_CHANNELS, x, x, x, *_window(node), forward.handle)
    return forward, Description(library, "lrn_backward", library.engine, *what, attributes(library))


def _scratch(forward: Description, backward: Description) -> tuple[int, int]:
    """Return the bytes of the forward workspace, in whole cache lines, and of the scratch memory of both passes."""
    kept = -(-backward.nbytes(dnnl.QUERY_WORKSPACE) // ALIGNMENT) * ALIGNMENT
    return kept, max(forward.scratch_bytes, backward.scratch_bytes)
