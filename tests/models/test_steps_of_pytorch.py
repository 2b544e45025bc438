"""Networks take the same training steps as in PyTorch. Tests skip without PyTorch."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from runner.api.weights import state_dict
from runner.engine.graph import gradients, ops
from runner.models import InceptionV3, Model, ResNetCifar, ResNetImageNet
from runner.models.residual import SHORTCUTS, UNITS
from tests.nn.support import Array, Bench, initial_values, network

DEPTHS = {"single": 5, "basic": 8, "bottleneck": 11}
SETTINGS: dict[str, dict[str, Any]] = {
    "constant": {"shortcut_scale": 0.75, "branch_scale": 0.5},
    "exclusive_gating": {"gate_bias": -1.0},
    "shortcut_only_gating": {"gate_bias": -1.0},
    "dropout": {"shortcut_dropout": 0.25},
}
RESNETS = [
    *(("identity", block, unit) for block in DEPTHS for unit in UNITS),
    *(
        (shortcut, block, "original")
        for block in ("basic", "bottleneck")
        for shortcut in SHORTCUTS
        if shortcut != "identity"
    ),
]
NETWORKS: dict[str, tuple[Model, int]] = {
    **{
        f"{shortcut}-{block}-{unit}": (
            ResNetCifar(depth=DEPTHS[block], block=block, unit=unit, shortcut=shortcut, **SETTINGS.get(shortcut, {})),
            6,
        )
        for shortcut, block, unit in RESNETS
    },
    "resnet_imagenet 18": (ResNetImageNet(depth=18, block="basic"), 33),
    "resnet_imagenet 50": (ResNetImageNet(depth=50, unit="original"), 33),
    "resnet_imagenet 50 preactivation": (ResNetImageNet(depth=50), 33),
    "inception_v3": (InceptionV3(dropout=0.0), 107),
}
"""Label -> model, and side of the images. With 107 pixels, the auxiliary head of Inception v3 has one window."""
LARGE = tuple(label for label, (_, side) in NETWORKS.items() if side > 6)
STEPS, RATE = 5, 0.1


@pytest.mark.parametrize("label", [pytest.param(each, marks=[pytest.mark.slow] * (each in LARGE)) for each in NETWORKS])
def test_losses_and_gradients_of_steps_equal_those_of_pytorch(label: str) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")
    model, side = NETWORKS[label]
    b, outputs = network(model, 3, side, side, classes=3, examples=4)
    graph, variables = b.net.graph, b.net.variables.trainable
    loss = ops.reduce_mean(graph, outputs.losses)
    fetched = [loss, *_existing(gradients(graph, [loss], [variable.tensor for variable in variables]))]
    initial = initial_values(b.net)
    ours = {variable.name: initial[variable.tensor] for variable in variables}
    theirs = {name: tensor.requires_grad_() for name, tensor in state_dict(ours).items()}
    oracle = _oracle(b, model, theirs)
    for step in range(STEPS):
        x = np.random.default_rng(step).standard_normal(b.feeds[b.x].shape)
        feeds = {b.x: x, **{variable.tensor: ours[variable.name] for variable in variables}}
        value, *slopes = b.values(*fetched, feeds=feeds)
        expected = oracle.loss(torch.from_numpy(x), torch.arange(4) % 3)
        np.testing.assert_allclose(value, expected.item(), rtol=1e-8, atol=0)
        expected_slopes = torch.autograd.grad(expected, list(theirs.values()))
        # A beta whose shift the next normalization removes has a gradient of rounding errors.
        rounding = 1e-14 * max(float(other.abs().max()) for other in expected_slopes)
        for name, slope, weights, other in zip(ours, slopes, theirs.values(), expected_slopes, strict=True):
            atol = 1e-8 * float(other.abs().max()) + rounding
            found = _of_pytorch(name, slope)
            np.testing.assert_allclose(found, other.numpy(), rtol=0, atol=atol, err_msg=f"{name}, step {step}")
            ours[name] = ours[name] - RATE * slope
            # A step of a deep network multiplies rounding errors, so there every step begins with equal weights.
            same = label in LARGE
            weights.data = torch.tensor(_of_pytorch(name, ours[name])) if same else weights.data - RATE * other


def _of_pytorch(name: str, value: Array) -> Array:
    """Return the value of a variable with the axes of PyTorch, which swaps the axes of dense weights."""
    return value.T.copy() if name.endswith("/weights") and value.ndim == 2 else value


def _oracle(b: Bench, model: Model, state: Mapping[str, Any]) -> Any:
    """Return the model in PyTorch, with a function ``loss`` of images and labels."""
    import torch

    from tests.models.torch_inception import TorchInceptionV3
    from tests.models.torch_resnet import TorchResNet

    if isinstance(model, InceptionV3):
        return TorchInceptionV3(state, model.auxiliary_weight)
    assert isinstance(model, ResNetCifar | ResNetImageNet)
    masks = {name: torch.from_numpy(mask) for name, mask in _masks(b).items()}
    assert bool(masks) == (model.shortcut == "dropout")
    return TorchResNet(model, state, masks)


def _existing(found: Any) -> list[Any]:
    assert None not in found
    return list(found)


def _masks(b: Bench) -> dict[str, Array]:
    """Return layer -> mask of every dropout layer."""
    nodes = [node for node in b.net.graph if node.op == "dropout_mask"]
    values = b.values(*[node.tensors[0] for node in nodes])
    return {node.layer.name: np.array(value) for node, value in zip(nodes, values, strict=True) if node.layer}
