"""Weights and networks outside of runner: safetensors, PyTorch and ONNX. Tests skip without torch or onnxruntime."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file

import runner
from runner import nn
from runner.api.runs import Run
from runner.api.weights import from_state_dict, state_dict
from runner.data.dataset import Normalisation
from runner.engine.graph import Graph, NetworkBuilder, Tensor, Variables, ops
from tests.nn.support import copy_onto, normal
from tests.small_runs import SMALL

SHAPES = {
    "mlp": (1, 8, 8),
    "lenet": (1, 28, 28),
    "cifar_convnet": (3, 32, 32),
    "cifar_alexnet": (3, 32, 32),
    "resnet_cifar": (3, 32, 32),
    "googlenet": (3, 64, 64),
    "alexnet": (3, 96, 96),
    "vgg_a": (3, 32, 32),
    "vgg_d": (3, 32, 32),
    "alexnet_2012": (3, 96, 96),
    "inception_bn": (3, 64, 64),
    "inception_v3": (3, 107, 107),
    "resnet_imagenet": (3, 33, 33),
    "distbelief_speech": (1, 11, 40),
    "distbelief_vision": (3, 40, 40),
}
SETTINGS = {
    "alexnet": ("model.crop=pad", "model.units=64"),
    "alexnet_2012": ("model.units=64",),
    "vgg_a": ("model.units=64",),
    "vgg_d": ("model.units=64",),
    "distbelief_vision": ("model.stages=1",),
}
QUICK = ("mlp", "lenet", "resnet_cifar")
MODELS = [pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow) for name in SHAPES]
NOT_IN_PYTORCH = ("distbelief_vision",)
"""Models with a layer that PyTorch lacks: the locally connected one."""

Stored = Callable[[str], Run]


@pytest.fixture(scope="module")
def stored(trained: Callable[..., Path]) -> Stored:
    """Return a function that trains a model for one step on synthetic images and returns the run."""

    def train(model: str) -> Run:
        shape = ",".join(map(str, SHAPES[model]))
        data = ("data=synthetic", f"data.shape=[{shape}]", "data.classes=7", "data.examples=8", "data.test_examples=4")
        sizes = ("train.steps=1", "train.batch_size=4", "train.eval_batch_size=4", "optimizer.lr=1e-4")
        return Run(trained(f"model={model}", *SETTINGS.get(model, ()), *data, *sizes))

    return train


def images(model: str) -> NDArray[np.float32]:
    return np.random.default_rng(0).integers(0, 256, (3, *SHAPES[model])).astype(np.float32)


def centred(logits: NDArray[Any]) -> NDArray[np.float64]:
    """Return logits minus their mean over the classes, which the probabilities determine."""
    values = np.asarray(logits, np.float64)
    return values - values.mean(axis=1, keepdims=True)


def assert_same_logits(found: NDArray[Any], run: Run, x: NDArray[Any]) -> None:
    """Compare logits with those of a run, to 1e-5 of the largest."""
    expected = centred(np.log(run.predict(x, cluster={"device": "cpu"})))
    np.testing.assert_allclose(centred(found), expected, rtol=0, atol=1e-5 * max(1.0, np.abs(expected).max()))


@pytest.mark.parametrize("model", [each for each in MODELS if each.values[0] not in NOT_IN_PYTORCH])
def test_a_network_in_pytorch_computes_the_same_logits(model: str, stored: Stored) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")
    from tests.api.torch_networks import NETWORKS

    run, x = stored(model), images(model)
    normalised = run.config.data.normalisation().apply(x, np.dtype(np.float32))
    with torch.no_grad():
        logits = NETWORKS[model](run.state_dict(), torch.from_numpy(normalised)).numpy()
    assert_same_logits(logits, run, x)
    back = from_state_dict(run.state_dict())
    weights = run.weights()
    assert set(back) == set(weights)
    assert all(np.array_equal(back[name], weights[name]) for name in weights)


def test_names_map_layers_to_the_modules_of_a_network(stored: Stored, here: Path) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")
    nn = torch.nn
    torch.manual_seed(0)
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 5), nn.ReLU(), nn.Linear(5, 10))
    names = {"fc1": "1", "fc2": "3"}
    start = runner.from_state_dict(module.state_dict(), names)
    run = runner.run([*SMALL, "train.steps=1", "optimizer.lr=1e-30", "model.hidden=[5]"], model="mlp", init_from=start)
    assert run.summary.init_taken == ["fc1/weights", "fc1/bias", "fc2/weights", "fc2/bias"]
    module.load_state_dict(run.state_dict(names))
    x = np.random.default_rng(0).random((4, 1, 8, 8))
    inputs = torch.from_numpy(run.config.data.normalisation().apply(x, np.dtype(np.float32)))
    assert_same_logits(module(inputs).detach().numpy(), run, x)
    with pytest.raises(runner.RunnerError, match=r"names: there are no weights of fc9; expected some of \["):
        run.state_dict({"fc9": "1"})
    with pytest.raises(runner.RunnerError, match=r"names: there are no weights of 9; expected some of \["):
        runner.from_state_dict(module.state_dict(), {"fc1": "9"})


def test_modules_with_a_mean_or_a_vector_of_weights_are_normalisations() -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")
    found = from_state_dict(torch.nn.ModuleDict({"norm": torch.nn.BatchNorm1d(3)}).state_dict())
    values = {"gamma": [1, 1, 1], "beta": [0, 0, 0], "moving_mean": [0, 0, 0], "moving_variance": [1, 1, 1]}
    assert {name: value.tolist() for name, value in found.items()} == {f"norm/{k}": v for k, v in values.items()}
    modules = {"norm": torch.nn.GroupNorm(3, 6), "layer": torch.nn.LayerNorm(4), "fc": torch.nn.Linear(4, 2)}
    names = {"norm/gamma", "norm/beta", "layer/gamma", "layer/beta", "fc/weights", "fc/bias"}
    assert set(from_state_dict(torch.nn.ModuleDict(modules).state_dict())) == names
    assert set(state_dict({"words/table": np.zeros((5, 3))})) == {"words.weight"}


def test_further_variables_of_a_recurrent_layer_keep_their_names(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = SimpleNamespace(from_numpy=np.asarray, zeros_like=np.zeros_like)
    monkeypatch.setitem(sys.modules, "torch", torch)
    found = state_dict({"memory/recurrent": np.zeros((2, 8)), "memory/peephole": np.ones(2)})
    shapes = {name: value.shape for name, value in found.items()}
    assert shapes == {"memory.weight_hh_l0": (8, 2), "memory.peephole": (2,)}


def test_weights_are_written_as_safetensors(stored: Stored, here: Path) -> None:
    run = stored("mlp")
    path = run.export("weights.safetensors", which="newest")
    assert path == here / "weights.safetensors"
    found, weights = load_file(path), run.weights()
    assert set(found) == set(weights)
    assert all(np.array_equal(found[name], weights[name]) for name in weights)
    with pytest.raises(runner.RunnerError, match=r"export\('w\.pt'\): expected a file that ends in \.safetensors or"):
        run.export("w.pt")
    with pytest.raises(runner.RunnerError, match=r"cannot write absent/w\.safetensors: .*; choose another file"):
        run.export("absent/w.safetensors")


def layers_of_onnx(net: NetworkBuilder, x: Tensor) -> Tensor:
    h = nn.gelu(net, nn.conv(net, x, 6, 3, name="conv", padding="same", dilation=2), name="gelu")
    h = nn.conv_transpose(net, h, 4, 3, name="up", stride=2, padding=1, output_padding=1, groups=2)
    h = nn.tanh(net, nn.group_norm(net, h, 2, name="groups"), name="tanh")
    with nn.new_layer(net, "cut", "shape"):
        h = net.output(ops.slice(net.graph, h, (0, 3, 0, 12), (3, 2, 5, 3), (1, -3, 2, -4)))
    return nn.softmax(net, nn.layer_norm(net, nn.flatten(net, h, name="flat"), name="norm"), name="softmax")


def test_an_onnx_graph_has_the_values_of_all_layers() -> None:
    onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed: the extra onnx")
    import onnx

    from runner.api.onnx_file import Translation

    x = np.random.default_rng(0).standard_normal((3, 2, 7, 8)).astype(np.float32)
    graph = Graph()
    with graph.name_scope("batch"):
        b = copy_onto(graph, Variables(graph, seed=0), x, training=False)
    y = layers_of_onnx(b.net, b.x)
    weights = {variable.name: normal(*variable.spec.shape).astype(np.float32) for variable in b.net.variables}
    for name, value in weights.items():
        b.set(name, value)
    translation = Translation(onnx, graph, weights, Normalisation(1.0, (0.0,), (1.0,)), {b.x: 0})
    model = translation.model(y, b.x, x.shape[1:])
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for count in (3, 1):
        (found,) = session.run(None, {"x": x[:count]})
        np.testing.assert_allclose(found, b.value(y)[:count], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("model", MODELS)
def test_an_onnx_file_computes_the_same_logits(model: str, stored: Stored, here: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed: the extra onnx")
    run, x = stored(model), images(model)
    session = onnxruntime.InferenceSession(run.export("network.onnx"), providers=["CPUExecutionProvider"])
    for some in (x, x[:1]):
        (logits,) = session.run(None, {"x": some})
        assert logits.shape == (len(some), 7)
        assert_same_logits(logits, run, some)


@pytest.mark.parametrize(
    ("library", "use", "message"),
    [
        ("onnx", lambda run: run.export("n.onnx"), r"install it with: pip install 'runner-dataflow\[onnx\]'"),
        ("torch", lambda run: run.state_dict(), "install it with: pip install torch"),
    ],
)
def test_a_missing_library_is_named(
    library: str, use: Callable[[Run], Any], message: str, stored: Stored, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(runner.RunnerError, match=message):
        use(stored("mlp"))
