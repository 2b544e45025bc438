"""Max and average pooling, their gradients, and the mean over whole images.

oneDNN's maximum ignores NaN, and the maximum of a window of minus infinity is the lowest finite number. The kernel of
``machine_code.pooling`` gives the results of the reference and, if available, has priority.
"""

import math
from typing import Any

from runner.kernels.contract import Spec, plain
from runner.kernels.cpu.onednn import constants as dnnl
from runner.kernels.cpu.onednn.library import Library
from runner.kernels.cpu.onednn.memory import BYTES, data_type, formatted, free, in_c_order, nbytes
from runner.kernels.cpu.onednn.recipe import Description, Layouts, Node, Port, Recipe, add_kernel, as_offered, format_of
from runner.kernels.registry import Registry

_MOST_IN_BYTES = 255
"""Largest window, in pixels, for which oneDNN stores each position as a byte."""


def register(registry: Registry, library: Library) -> None:
    """Add the kernels of this family."""
    add_kernel(registry, library, "max_pool", _pool, _request_maxima)
    add_kernel(registry, library, "max_pool_gradient", _pool_gradient, _request_maxima)
    add_kernel(registry, library, "avg_pool", _pool, as_offered)
    add_kernel(registry, library, "avg_pool_gradient", _pool_gradient, as_offered)
    add_kernel(registry, library, "reduce_mean", _mean_of_image, _request_whole_images)


def _window(library: Library, node: Node) -> tuple[Any, ...]:
    """Return strides, window, dilation, padding before, and padding after, as C arrays."""
    top, bottom, left, right = node.attributes["padding"]
    strides, window = node.attributes["strides"], node.attributes["window"]
    return tuple(library.ints(each) for each in (strides, window, (0, 0), (top, left), (bottom, right)))


_ALGORITHMS = {
    None: dnnl.POOLING_MAX,
    True: dnnl.POOLING_AVG_INCLUDE_PADDING,
    False: dnnl.POOLING_AVG_EXCLUDE_PADDING,
}
"""Value of the attribute ``count_padding``, or None for the maximum -> algorithm."""


def _forward(library: Library, node: Node, name: str, x: Spec, y: Spec) -> Description:
    """Return the description of the forward primitive for images x in the named format."""
    algorithm = _ALGORITHMS[node.attributes.get("count_padding")]
    image, pooled = formatted(library, x.shape, x.dtype, name), free(library, y.shape, x.dtype)
    # Training and inference give the same result; training also stores the positions of maxima.
    goal = dnnl.FORWARD_TRAINING if algorithm == dnnl.POOLING_MAX else dnnl.FORWARD_INFERENCE
    return Description(library, "pooling_forward", goal, algorithm, image, pooled, *_window(library, node))


def _positions(library: Library, pooling: Description) -> Port:
    """Return the port of positions, which have the layout of y and are stored as bytes if they fit."""
    kept = pooling.descriptor(dnnl.WORKSPACE)
    return Port(dnnl.WORKSPACE, kept, BYTES if data_type(library, kept) == dnnl.TYPES["uint8"] else "")


def _request_maxima(node: Node, offered: Layouts) -> tuple[Layouts, Layouts]:
    """Request C order for bfloat16 if positions do not fit in a byte; in other formats, they would be wrong."""
    if node.outputs[0].dtype == "bfloat16" and math.prod(node.attributes["window"]) > _MOST_IN_BYTES:
        return [plain(spec) for spec in node.inputs], [None] * len(node.outputs)
    return as_offered(node, offered)


def _pool(library: Library, node: Node, inputs: Layouts, outputs: Layouts) -> Recipe:
    """Return the recipe with input x and outputs y and, for the maximum, argmax."""
    desc = _forward(library, node, format_of(inputs[0], *outputs), node.inputs[0], node.outputs[0])
    return Recipe(desc, [desc.port(dnnl.SRC)], [desc.port(dnnl.DST), *(_positions(library, desc) for _ in outputs[1:])])


def _pool_gradient(library: Library, node: Node, inputs: Layouts, outputs: Layouts) -> Recipe:
    """Return the recipe with inputs dy and, for the maximum, argmax, and output dx.

    The format of dx is that of argmax or, if argmax is plain or missing, of dy.
    """
    forward = _forward(library, node, format_of(*reversed(inputs), *outputs), node.outputs[0], node.inputs[0])
    algorithm = _ALGORITHMS[node.attributes.get("count_padding")]
    geometry = (forward.descriptor(dnnl.SRC), forward.descriptor(dnnl.DST), *_window(library, node), forward.handle)
    desc = Description(library, "pooling_backward", algorithm, *geometry)
    ports = [desc.port(dnnl.DIFF_DST), *(_positions(library, desc) for _ in inputs[1:])]
    return Recipe(desc, ports, [desc.port(dnnl.DIFF_SRC)])


def _request_whole_images(node: Node, offered: Layouts) -> tuple[Layouts, Layouts] | None:
    whole = len(node.inputs[0].shape) == 4 and node.attributes["axes"] == (2, 3)
    return as_offered(node, offered) if whole else None


def _mean_of_image(library: Library, node: Node, inputs: Layouts, outputs: Layouts) -> Recipe:
    """Return the recipe with input x (N, C, H, W) and output (N, C) or (N, C, 1, 1): pooling with one window."""
    (x,), (y,) = node.inputs, node.outputs
    name = format_of(inputs[0])
    if not _is_array_of_pixels(library, x, name):
        name = ""
    image = formatted(library, x.shape, x.dtype, name)
    pixel = formatted(library, (*x.shape[:2], 1, 1), x.dtype, name)
    what = (dnnl.FORWARD_INFERENCE, dnnl.POOLING_AVG_INCLUDE_PADDING, image, pixel)
    geometry = map(library.ints, ((1, 1), x.shape[2:], (0, 0), (0, 0), (0, 0)))
    desc = Description(library, "pooling_forward", *what, *geometry)
    return Recipe(desc, [Port(dnnl.SRC, image)], [Port(dnnl.DST, pixel, layout=plain(y))])


def _is_array_of_pixels(library: Library, x: Spec, name: str) -> bool:
    """Return whether the named format stores images (N, C, 1, 1), with N and C from x, exactly as C order does."""
    dims = (*x.shape[:2], 1, 1)
    pixel, array = formatted(library, dims, x.dtype, name), in_c_order(library, dims, x.dtype)
    return name.rfind("a") <= 0 and nbytes(library, pixel) == nbytes(library, array)
