"""Convolution, both of its gradients, and fused convolution with bias, residual and ReLU."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from runner.kernels.contract import Layout, Spec
from runner.kernels.cpu.onednn import constants as dnnl
from runner.kernels.cpu.onednn.library import Library
from runner.kernels.cpu.onednn.memory import UNKNOWN, described, free, in_c_order, layout_of, strided, viewed
from runner.kernels.cpu.onednn.recipe import Description, Layouts, Node, Port, Recipe, add_kernel, attributes
from runner.kernels.registry import Registry

FEW_CHANNELS = 4
"""Maximum number of channels of images that stay plain (in C order), because blocks would be mostly padding.

oneDNN 3.2 itself chooses plain images for most first layers: with AVX-512 the plans of LeNet, AlexNet, GoogLeNet and
the CIFAR ResNets are the same without this rule, in float32 and bfloat16. Without the rule, oneDNN would choose blocks
for 1x1 filters, for weight gradients of 4 channels in float32, and with AVX2 for weight gradients of 1 and 2 channels.
With the rule, a training step of LeNet on one AVX2 worker converts 8 layouts instead of 10.
"""


def register(registry: Registry, library: Library) -> None:
    """Add the kernels of this family."""
    add_kernel(registry, library, "conv2d", _forward, _request_forward)
    add_kernel(registry, library, "conv2d_fused", _forward, _request_forward)
    add_kernel(registry, library, "conv2d_input_gradient", _input_gradient, _request_input_gradient)
    add_kernel(registry, library, "conv2d_weight_gradient", _weight_gradient, _request_weight_gradient)
    add_kernel(registry, library, "conv2d_weight_bias_gradient", _weight_gradient, _request_weight_gradient)


def preferred_layout(library: Library, images: Spec) -> Layout:
    """Return the layout that oneDNN chooses for images (N, C, H, W) of a 3x3 convolution with C filters."""
    channels = images.shape[1]
    shapes = (images.shape, (channels, channels, 3, 3), images.shape)
    x, w, y = (free(library, shape, images.dtype) for shape in shapes)
    node = Node({"strides": (1, 1), "padding": (1, 1, 1, 1), "dilations": (1, 1)}, [], [])
    desc = _describe_forward(library, node, x, w, library.ffi.NULL, y)
    return layout_of(library, desc.descriptor(dnnl.DST), images)


def _request_nothing(node: Node, offered: Layouts) -> tuple[Layouts, Layouts]:
    return [None] * len(node.inputs), [None] * len(node.outputs)


def _request_forward(node: Node, offered: Layouts) -> tuple[Layouts, Layouts]:
    inputs, outputs = _request_nothing(node, offered)
    return [_image_as_it_is(node.inputs[0], offered[0]), *inputs[1:]], outputs


def _request_input_gradient(node: Node, offered: Layouts) -> tuple[Layouts, Layouts]:
    (dy, w), (dx,) = _request_nothing(node, offered)
    gradient_layout = offered[0]
    # oneDNN itself chooses channels last for strided convolutions. Channels last is not faster and would need
    # conversions on both sides, because the neighbouring convolutions use blocks.
    if max(node.attributes["strides"]) > 1 and gradient_layout is not None and gradient_layout.tag == "aBcd16b":
        dy, dx = gradient_layout, Layout(gradient_layout.tag, UNKNOWN)
    return [dy, w], [dx]


def _request_weight_gradient(node: Node, offered: Layouts) -> tuple[Layouts, Layouts]:
    (dy, _), outputs = _request_nothing(node, offered)
    return [dy, _image_as_it_is(node.inputs[1], offered[1])], outputs


def _image_as_it_is(image: Spec, offered: Layout | None) -> Layout | None:
    if offered is not None and offered.is_plain and image.shape[1] <= FEW_CHANNELS:
        return offered
    return None


def _prefix(node: Node) -> str:
    """Return the prefix (see ``memory``) under which oneDNN reads the weights."""
    groups = node.attributes["groups"]
    return f"g{groups}:" if groups > 1 else ""


def _tensor(library: Library, spec: Spec, layout: Layout | None, prefix: str = "") -> Any:
    if layout is None:
        return free(library, viewed(spec.shape, prefix), spec.dtype)
    return described(library, spec, layout, prefix)


def _images(library: Library, tensors: Sequence[tuple[Spec, Layout | None]], *, last: bool) -> list[Any]:
    """Return the descriptors of images. last: describe images whose memory allows it with channels last."""
    return [
        strided(library, spec.shape, spec.dtype, _channels_last(spec.shape))
        if last and layout is not None and layout.is_plain and (spec.shape[1] == 1 or math.prod(spec.shape[2:]) == 1)
        else _tensor(library, spec, layout)
        for spec, layout in tensors
    ]


def _channels_last(shape: Sequence[int]) -> tuple[int, ...]:
    channels, height, width = shape[1:]
    return height * width * channels, 1, width * channels, channels


def _fast(describe: Callable[[bool], Description]) -> Description:
    """Return ``describe(False)`` or, if this is oneDNN's slow reference kernel, ``describe(True)``.

    The argument is ``last`` of :func:`_images`. Images with one channel or one pixel have the same memory in C order
    and with channels last, but different strides. oneDNN compares strides, and some of its kernels need channels last.
    """
    description = describe(False)
    return describe(True) if description.implementation == "ref:any" else description


def _geometry(library: Library, node: Node) -> tuple[Any, ...]:
    """Return strides, dilations, padding before, and padding after, as C arrays. oneDNN counts dilations from 0."""
    top, bottom, left, right = node.attributes["padding"]
    between = [step - 1 for step in node.attributes["dilations"]]
    return tuple(map(library.ints, (node.attributes["strides"], between, (top, left), (bottom, right))))


def _describe_forward(library: Library, node: Node, x: Any, w: Any, bias: Any, y: Any, attr: Any = None) -> Description:
    what = (dnnl.FORWARD_TRAINING, dnnl.CONVOLUTION_DIRECT, x, w, bias, y, *_geometry(library, node))
    return Description(library, "convolution_forward", *what, attr=attr)


def _forward(library: Library, node: Node, inputs: Layouts, outputs: Layouts) -> Recipe:
    """Return the recipe with inputs x, w, then bias and residual if the attributes enable them."""
    prefix = _prefix(node)
    w = _tensor(library, node.inputs[1], inputs[1], prefix)
    bias = in_c_order(library, node.inputs[2].shape, node.inputs[2].dtype) if node.attributes.get("bias") else None
    images = [(node.inputs[0], inputs[0]), (node.outputs[0], outputs[0])]
    added, relu = None, node.attributes.get("relu", False)

    def describe(attr: Any, last: bool) -> Description:
        x, y = _images(library, images, last=last)
        return _describe_forward(library, node, x, w, bias or library.ffi.NULL, y, attr)

    if node.attributes.get("residual"):
        # The residual must have the layout of the result, which oneDNN chooses in a description without a residual.
        bare = _fast(partial(describe, None))
        x, w, added = (bare.descriptor(number) for number in (dnnl.SRC, dnnl.WEIGHTS, dnnl.DST))
        attr = attributes(library, relu=relu, added=added)
        desc = _describe_forward(library, node, x, w, bias or library.ffi.NULL, added, attr)
    else:
        desc = _fast(partial(describe, attributes(library, relu=relu)))
    ports = [desc.port(dnnl.SRC), desc.port(dnnl.WEIGHTS, prefix)]
    if bias is not None:
        ports.append(Port(dnnl.BIAS, bias))
    if added is not None:
        # The result cannot share memory with the residual: partial sums are written before the residual is read.
        ports.append(Port(dnnl.POST_OP_BASE | dnnl.SRC_1, desc.descriptor(dnnl.DST)))
    return Recipe(desc, ports, [desc.port(dnnl.DST)])


def _hint(library: Library, node: Node, x: Spec, w: Spec, y: Spec) -> Description:
    """Return the description of the forward convolution, which oneDNN needs as a hint for a gradient."""
    filters = viewed(w.shape, _prefix(node))
    every = [free(library, shape, spec.dtype) for shape, spec in ((x.shape, x), (filters, y), (y.shape, y))]
    return _describe_forward(library, node, every[0], every[1], library.ffi.NULL, every[2])


def _input_gradient(library: Library, node: Node, inputs: Layouts, outputs: Layouts) -> Recipe:
    """Return the recipe with inputs dy, w and output dx."""
    prefix = _prefix(node)
    w = _tensor(library, node.inputs[1], inputs[1], prefix)
    images = [(node.inputs[0], inputs[0]), (node.outputs[0], outputs[0])]
    hint = _hint(library, node, node.outputs[0], node.inputs[1], node.inputs[0])

    def describe(last: bool) -> Description:
        dy, dx = _images(library, images, last=last)
        what = (dnnl.CONVOLUTION_DIRECT, dx, w, dy, *_geometry(library, node), hint.handle)
        return Description(library, "convolution_backward_data", *what)

    desc = _fast(describe)
    return Recipe(desc, [desc.port(dnnl.DIFF_DST), desc.port(dnnl.WEIGHTS, prefix)], [desc.port(dnnl.DIFF_SRC)])


def _weight_gradient(library: Library, node: Node, inputs: Layouts, outputs: Layouts) -> Recipe:
    """Return the recipe with inputs dy, x and outputs dw and, if there are two, db."""
    prefix = _prefix(node)
    dw = _tensor(library, node.outputs[0], outputs[0], prefix)
    db = [in_c_order(library, each.shape, each.dtype) for each in node.outputs[1:]]
    images = list(zip(node.inputs, inputs, strict=True))
    hint = _hint(library, node, node.inputs[1], node.outputs[0], node.inputs[0])

    def describe(last: bool) -> Description:
        dy, x = _images(library, images, last=last)
        what = (x, dw, db[0] if db else library.ffi.NULL, dy, *_geometry(library, node), hint.handle)
        return Description(library, "convolution_backward_weights", dnnl.CONVOLUTION_DIRECT, *what)

    desc = _fast(describe)
    gradients = [desc.port(dnnl.DIFF_WEIGHTS, prefix), *(Port(dnnl.DIFF_BIAS, each) for each in db)]
    return Recipe(desc, [desc.port(dnnl.DIFF_DST), desc.port(dnnl.SRC)], gradients)
