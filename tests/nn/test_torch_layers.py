"""Layers have the values and the gradients of PyTorch's modules. Tests skip without PyTorch."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from runner import nn
from runner.engine.graph import NetworkBuilder, Tensor, gradients, ops
from tests.nn.support import bench, normal

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")

F = torch.nn.functional
IMAGES = (2, 4, 7, 6)


@dataclass(frozen=True)
class Case:
    """A layer named "l" and its oracle. oracle: (x, weights by their last names) -> result. x: shape of the input."""

    layer: Callable[[NetworkBuilder, Tensor], Tensor]
    oracle: Callable[[Any, Mapping[str, Any]], Any]
    x: tuple[int, ...] = IMAGES


def _conv(padding: int, **options: int) -> Case:
    return Case(
        lambda net, x: nn.conv(net, x, 6, 3, name="l", padding=padding, **options),
        lambda x, w: F.conv2d(x, w["weights"], w["bias"], padding=padding, **options),
    )


def _transposed(padding: int, **options: int) -> Case:
    return Case(
        lambda net, x: nn.conv_transpose(net, x, 6, 3, name="l", padding=padding, **options),
        lambda x, w: F.conv_transpose2d(x, w["weights"], w["bias"], padding=padding, **options),
    )


def _unshared(x: Any, w: Mapping[str, Any]) -> Any:
    """Return 3 filters over windows of 3x3 pixels with stride 2, each window with its own weights."""
    patches = F.unfold(x, 3, stride=2)
    weights = w["weights"].reshape(patches.shape[2], 3, -1)
    return torch.einsum("nkp,pok->nop", patches, weights).reshape(len(x), *w["bias"].shape) + w["bias"]


def _contrast(x: Any, w: Mapping[str, Any]) -> Any:
    """Return x normalized by mean and variance of 3x3 pixels and all channels."""

    def mean(values: Any) -> Any:
        return F.avg_pool2d(values, 3, 1, 1, count_include_pad=False).mean(1, keepdim=True)

    centered = x - mean(x)
    return centered / torch.sqrt(mean(centered**2) + 0.01)


CASES: dict[str, Case] = {
    "convolution of rows": Case(
        lambda net, x: nn.conv(net, x, 6, (1, 3), name="l", padding="same", dilation=2),
        lambda x, w: F.conv2d(x, w["weights"], w["bias"], padding="same", dilation=2),
    ),
    "batch_norm without gamma": Case(
        lambda net, x: nn.batch_norm(net, x, name="l", scale=False),
        lambda x, w: F.batch_norm(x, None, None, None, w["beta"], training=True),
    ),
    "locally_connected": Case(lambda net, x: nn.locally_connected(net, x, 3, 3, name="l", stride=2), _unshared),
    "local_contrast_normalization": Case(
        lambda net, x: nn.local_contrast_normalization(net, x, name="l", size=3), _contrast
    ),
    "dilated": _conv(2, dilation=2),
    "dilated, with strides and groups": _conv(3, dilation=3, stride=2, groups=2),
    "transposed": _transposed(0),
    "transposed with strides": _transposed(1, stride=2),
    "transposed, with more pixels": _transposed(1, stride=2, output_padding=1),
    "transposed and dilated": _transposed(1, stride=3, output_padding=2, dilation=2),
    "transposed in groups": _transposed(2, groups=2),
    "layer_norm": Case(
        lambda net, x: nn.layer_norm(net, x, name="l"), lambda x, w: F.layer_norm(x, (6,), w["gamma"], w["beta"])
    ),
    "layer_norm over images": Case(
        lambda net, x: nn.layer_norm(net, x, name="l", axes=3, epsilon=0.1),
        lambda x, w: F.layer_norm(x, IMAGES[1:], w["gamma"], w["beta"], 0.1),
    ),
    "group_norm": Case(
        lambda net, x: nn.group_norm(net, x, 2, name="l", epsilon=0.1),
        lambda x, w: F.group_norm(x, 2, w["gamma"], w["beta"], 0.1),
    ),
    "group_norm of features": Case(
        lambda net, x: nn.group_norm(net, x, 4, name="l"),
        lambda x, w: F.group_norm(x, 4, w["gamma"], w["beta"]),
        x=(5, 12),
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_a_layer_has_the_values_and_gradients_of_pytorch(case: Case) -> None:
    x = normal(*case.x)
    b = bench(x)
    y, graph = case.layer(b.net, b.x), b.net.graph
    dy = ops.placeholder(graph, b.shape(y), "float64", name="dy")
    b.feeds[dy] = normal(*b.shape(y), seed=2)
    variables = b.net.variables.trainable
    for seed, variable in enumerate(variables, start=3):
        b.set(variable.name, normal(*variable.spec.shape, seed=seed))
    sources = [b.x, *(variable.tensor for variable in variables)]
    found = b.values(y, *[each for each in gradients(graph, [y], sources, [dy]) if each is not None])
    given = [torch.tensor(b.feeds[source], requires_grad=True) for source in sources]
    weights = {v.name.removeprefix("l/"): value for v, value in zip(variables, given[1:], strict=True)}
    expected = case.oracle(given[0], weights)
    slopes = torch.autograd.grad(expected, given, torch.from_numpy(b.feeds[dy]))
    for ours, theirs in zip(found, (expected, *slopes), strict=True):
        np.testing.assert_allclose(ours, theirs.detach().numpy(), rtol=1e-11, atol=1e-12)


def test_an_embedding_has_the_values_and_gradient_of_pytorch() -> None:
    b = bench(np.zeros((3, 2)))
    graph, tokens = b.net.graph, np.array([[0, 4], [4, 4], [2, 0]])
    x = ops.placeholder(graph, tokens.shape, "int64", name="tokens")
    y = nn.embedding(b.net, x, 5, 3, name="l")
    table, dy = normal(5, 3), normal(3, 2, 3, seed=2)
    b.set("l/table", table)
    (slope,) = gradients(graph, [y], [b.net.variables["l/table"].tensor], [ops.constant(graph, dy)])
    value, ours = b.values(y, slope, feeds={x: tokens})
    given = torch.tensor(table, requires_grad=True)
    expected = F.embedding(torch.from_numpy(tokens), given)
    np.testing.assert_array_equal(value, expected.detach().numpy())
    (theirs,) = torch.autograd.grad(expected, [given], torch.from_numpy(dy))
    np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-14)
