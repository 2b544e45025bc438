"""Rewrite rules for fusions, in the notation of :mod:`runner.engine.compile.passes.matching`.

With the reference kernels and without NaN, only fusions that involve bfloat16 change values: they omit a rounding.
"""

from collections.abc import Sequence

from runner.engine.compile.passes.matching import Accept, Match, Rule, rewrite
from runner.engine.compile.passes.rewriting import Rewrite, Roots
from runner.engine.graph import DeviceName, Graph, Node, TensorSpec
from runner.kernels.contract import KernelError
from runner.kernels.registry import Registry

NORMALIZATION_AND_RELU = (
    Rule(
        before="y, mean, variance = batch_norm(x, gamma, beta); z = relu(y)",
        after="z, mean, variance, mask = batch_norm_relu(x, gamma, beta)",
    ),
    Rule(
        given="z, _, _, mask = batch_norm_relu(_, _, _)",
        before="dx, dgamma, dbeta = batch_norm_gradient(x, gamma, mean, variance, dy); dy = relu_gradient(dz, z)",
        after="dx, dgamma, dbeta = batch_norm_relu_gradient(x, gamma, mean, variance, mask, dz)",
    ),
)
"""Fusion of batch normalization with the ReLU that follows it, and fusion of their gradients. ``mask`` is z > 0."""


def _is_column(match: Match) -> bool:
    """Return whether a bias is reshaped so that it broadcasts over the pixels of an (N, O, H, W) tensor."""
    bias = match.spec("b").shape
    return len(bias) == 1 and match.spec("column").shape in ((*bias, 1, 1), (1, *bias, 1, 1))


BIAS_AND_RELU = tuple(
    Rule(f"y = {before}", f"y = {after}", given="column = reshape(b)", where=_is_column)
    if "column" in before
    else Rule(f"y = {before}", f"y = {after}")
    for before, after in (
        ("relu(add(add(conv2d(x, w), column), r))", "conv2d_fused(x, w, b, r, bias=True, residual=True, relu=True)"),
        ("add(add(conv2d(x, w), column), r)", "conv2d_fused(x, w, b, r, bias=True, residual=True, relu=False)"),
        ("relu(add(conv2d(x, w), column))", "conv2d_fused(x, w, b, bias=True, residual=False, relu=True)"),
        ("add(conv2d(x, w), column)", "conv2d_fused(x, w, b, bias=True, residual=False, relu=False)"),
        ("relu(add(conv2d(x, w), r))", "conv2d_fused(x, w, r, bias=False, residual=True, relu=True)"),
        ("add(conv2d(x, w), r)", "conv2d_fused(x, w, r, bias=False, residual=True, relu=False)"),
        ("relu(conv2d(x, w))", "conv2d_fused(x, w, bias=False, residual=False, relu=True)"),
        ("relu(add(matmul(x, w), b))", "matmul_fused(x, w, b, bias=True, relu=True, dtype=y.dtype)"),
        ("add(matmul(x, w), b)", "matmul_fused(x, w, b, bias=True, relu=False, dtype=y.dtype)"),
        ("relu(matmul(x, w))", "matmul_fused(x, w, bias=False, relu=True, dtype=y.dtype)"),
    )
)
"""Fusion of a convolution or matrix product with the bias, the residual and the ReLU of its layer.

The search for matches starts at the end of the graph. So of two convolutions whose outputs are added, the later one
is fused with the sum.
"""

BIAS_GRADIENTS = (
    Rule(
        before="dw = conv2d_weight_gradient(dy, x); db = reduce_sum(dy, axes=(0, 2, 3), keepdims=False)",
        after="dw, db = conv2d_weight_bias_gradient(dy, x)",
    ),
    Rule(
        before="""dw = matmul(x, dy, transpose_a=True, transpose_b=False)
        db = reduce_sum(dy, axes=(0,), keepdims=False)""",
        after="dw, db = matmul_bias_gradient(x, dy, dtype=dw.dtype)",
    ),
)
"""Fusion of the gradient of a layer's weights with the gradient of its bias: both nodes read the same dy."""


def _is_scalar(match: Match) -> bool:
    return match.spec("y").shape == () and match.spec("y").dtype != "bfloat16"


SQUARES = (Rule("y = reduce_sum(square(x))", "y = sum_of_squares(x)", where=_is_scalar),)
"""Fusion of squares with their sum over all axes, as in the norm of gradients: the squares are not stored."""


UNROUNDED_SUMS = tuple(
    Rule(before, f"{after}, dtype='float32', like=p, at=p)")
    for before, after in (
        ("p = matmul(x, w); y = cast(p, dtype='float32')", "y = matmul_fused(x, w, bias=False, relu=False"),
        ("p = matmul_fused(*x); y = cast(p, dtype='float32')", "y = matmul_fused(*x"),
        ("p = conv2d_weight_gradient(dy, x); y = cast(p, dtype='float32')", "y = conv2d_weight_gradient(dy, x"),
        *(
            each
            for op in ("matmul_bias_gradient", "conv2d_weight_bias_gradient")
            for each in (
                (f"p, q = {op}(*x); dw = cast(p, dtype='float32'); db = cast(q, dtype='float32')", f"dw, db = {op}(*x"),
                (f"p, q = {op}(*x); dw = cast(p, dtype='float32')", f"dw, _ = {op}(*x"),
            )
        ),
    )
)
"""Products of bfloat16 tensors whose results are only read as float32: the fused nodes do not round to bfloat16 first.

The rules do not match float64 products, because the ops accept a float32 result only for float32 or bfloat16 products.
The rules are meant for gradients of weights, but also apply to logits.
"""


def _same_windows(match: Match) -> bool:
    (pooling,), gradient = match.given, match.node("d")
    return all(pooling.attributes[name] == gradient.attributes[name] for name in ("window", "strides", "padding"))


RELU_GRADIENTS = (
    Rule(
        given="pooled, argmax = max_pool(z)",
        before="d = max_pool_gradient(dy, argmax); dx = relu_gradient(d, z)",
        after="gated = relu_gradient(dy, pooled, like=dx, at=d); dx = max_pool_gradient(gated, argmax, like=d, at=d)",
        where=_same_windows,
    ),
)
"""The gradient of a ReLU before a max pooling is computed from the pooled tensor, which is smaller than z.

A window passes dy to its maximal element, where z > 0 if and only if pooled > 0. No bit changes, including the signs of
zeros: elements with z > 0 receive the same terms in the same order, and other elements receive only zeros. If z
contains NaN, the result may differ: the pooled value of a window is then NaN, but its argmax is another element.
"""

SMALLEST_BYTES = 4 << 20
"""Smallest size in bytes of a product that is worth fusing: the update reads smaller products from the cache anyway."""


def fuse_updates(
    graph: Graph, roots: Roots, registry: Registry | None = None, smallest_bytes: int = SMALLEST_BYTES
) -> Rewrite:
    """Fuse weight gradients, transpose(x) dy, into the element-wise updates that read them, instead of storing them.

    bfloat16 factors are first cast to the dtype of the product. If one node computes both the product and a bias
    gradient, a separate ``reduce_sum`` then computes the bias gradient. registry: if given, an update is fused only if
    the registry's kernel for it is faster than the reference. smallest_bytes: size of the smallest product to fuse.
    """

    def updates_variables(match: Match) -> bool:
        """Return whether the product is large and all other operands of its shape are variables on the same device.

        With other operands, the fused node might have to wait for another device. Partial gradients that are summed
        later are not fused: kernels differ in rounding, so the same kernel must compute all partial gradients,
        regardless of the number of devices.
        """
        product, operands = match.spec("dw"), (*match.tensors["*left"], *match.tensors["*right"])
        others = (graph.nodes[t.node] for t in operands if graph.spec(t).shape == product.shape)
        device = match.node("dw").device
        return product.nbytes >= smallest_bytes and all(
            node.op == "variable" and node.device == device for node in others
        )

    factors = "p = cast(x, dtype=dw.dtype, name='x', at=dw); q = cast(dy, dtype=dw.dtype, name='dy', at=dw)"
    bias = "db = reduce_sum(q, axes=(0,), keepdims=False, name='reduce_sum', at=dw)"
    update = (
        "*new, = matmul_elementwise(p, q, *left, *right,"
        " transpose_a=True, transpose_b=False, dtype=dw.dtype, product=len(left))"
    )
    read = "*new, = elementwise(*left, dw, *right)"
    product = "(x, dy, transpose_a=True, transpose_b=False"
    rules = (
        Rule(f"dw, db = matmul_bias_gradient(x, dy); {read}", f"{factors}; {bias}; {update}", where=updates_variables),
        Rule(f"dw = matmul{product}); {read}", f"{factors}; {update}", where=updates_variables),
        Rule(
            f"dw = matmul_fused{product}, bias=False, relu=False); {read}",
            f"{factors}; {update}",
            where=updates_variables,
        ),
    )
    return rewrite(graph, roots, rules, accept=_faster_by(registry))


def _faster_by(registry: Registry | None) -> Accept | None:
    """Return a function that accepts nodes for which the registry has a faster kernel than the reference."""
    if registry is None:
        return None

    def is_faster(node: Node, specs: Sequence[TensorSpec]) -> bool:
        device_type = DeviceName.parse(node.device).type or ""
        try:
            choice = registry.choose(node.op, device_type, node.attributes, specs, node.outputs, [None] * len(specs))
        except KernelError:
            return False
        return choice.kernel.priority > 0

    return is_faster
