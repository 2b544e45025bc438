"""Time PyTorch on a problem: ``python -m benchmarks.peers.torch_peer VARIANT FOLDER``; see :data:`VARIANTS`."""

import contextlib
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the framework's own idiom

from benchmarks.problem import Layer, Problem, load_problem, unsupported
from benchmarks.protocol import Run, serve

VARIANTS = {
    "eager": (torch.contiguous_format, False),
    "channels-last": (torch.channels_last, False),
    "compile": (torch.contiguous_format, True),
    "compile-channels-last": (torch.channels_last, True),
}
"""Name -> memory format of images and filters, and whether torch.compile compiles forward and backward pass."""

VIEWS = ("flatten", "subsample", "slice")
"""Kinds of layers whose output may reuse the memory of their input."""


class Network(nn.Module):
    """The problem's layers, each a PyTorch module, called in order."""

    def __init__(self, problem: Problem) -> None:
        super().__init__()
        private = _private(problem.layers)
        self.calls = nn.ModuleList(_module(problem, layer, layer.inputs[0] in private) for layer in problem.layers)
        self.wiring = [(layer.name, layer.inputs, layer.last_uses) for layer in problem.layers]

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of images. A tensor is freed when no later layer reads it."""
        values = {"x": x}
        for call, (name, inputs, last_uses) in zip(self.calls, self.wiring, strict=True):
            y = call(*[values[each] for each in inputs])
            for used in last_uses:
                del values[used]
            values[name] = y
        return y


class Sum(nn.Module):
    """Adds tensors of equal shape."""

    def forward(self, first: Tensor, *others: Tensor) -> Tensor:
        for other in others:
            first = first + other
        return first


class Concat(nn.Module):
    """Joins tensors along an axis."""

    def __init__(self, axis: int) -> None:
        super().__init__()
        self.axis = axis

    def forward(self, *parts: Tensor) -> Tensor:
        return torch.cat(parts, self.axis)


class Slice(nn.Module):
    """Cuts a block out of a tensor."""

    def __init__(self, begin: list[int], size: list[int]) -> None:
        super().__init__()
        self.block = tuple(slice(b, b + s) for b, s in zip(begin, size, strict=True))

    def forward(self, x: Tensor) -> Tensor:
        return x[self.block]


class Pad(nn.Module):
    """Adds zeros before and after each axis."""

    def __init__(self, low: list[int], high: list[int]) -> None:
        super().__init__()
        # F.pad expects the widths of the last axis first.
        self.widths = [width for pair in reversed(list(zip(low, high, strict=True))) for width in pair]

    def forward(self, x: Tensor) -> Tensor:
        return F.pad(x, self.widths)


class Subsample(nn.Module):
    """Keeps every n-th row and column of images."""

    def __init__(self, rows: int, columns: int) -> None:
        super().__init__()
        self.rows, self.columns = rows, columns

    def forward(self, x: Tensor) -> Tensor:
        return x[:, :, :: self.rows, :: self.columns]


class GlobalAverage(nn.Module):
    """Averages every channel of images."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean((2, 3))


def _private(layers: Sequence[Layer]) -> set[str]:
    """Return the names of outputs that have separate memory and exactly one reader."""
    readers = Counter(name for layer in layers for name in layer.inputs)
    return {layer.name for layer in layers if readers[layer.name] == 1 and layer.kind not in VIEWS}


def _module(problem: Problem, layer: Layer, private: bool) -> nn.Module:
    if layer.kind not in _MODULES:
        raise unsupported(layer, "the PyTorch peer", tuple(_MODULES))
    return _MODULES[layer.kind](problem, layer, private)


def _parameter(values: np.ndarray) -> nn.Parameter:
    # The clone has aligned memory, and the array that was read from the file can be freed.
    return nn.Parameter(torch.from_numpy(values).clone())


def _conv(problem: Problem, layer: Layer, private: bool) -> nn.Module:
    weights = problem.variable(layer.variables["weights"])
    filters, channels, *kernel = weights.shape
    settings = layer.settings
    groups, (padding, before) = settings["groups"], _symmetric(settings["padding"], 0.0)
    with torch.device("meta"):
        conv = nn.Conv2d(channels * groups, filters, kernel, settings["strides"], padding, groups=groups, bias=False)
    conv.weight = _parameter(weights)
    if "bias" in layer.variables:
        conv.bias = _parameter(problem.variable(layer.variables["bias"]))
    return nn.Sequential(before, conv) if before else conv


def _dense(problem: Problem, layer: Layer, private: bool) -> nn.Module:
    weights = problem.variable(layer.variables["weights"])
    with torch.device("meta"):
        linear = nn.Linear(*weights.shape, bias=False)
    linear.weight = _parameter(np.ascontiguousarray(weights.T))
    if "bias" in layer.variables:
        linear.bias = _parameter(problem.variable(layer.variables["bias"]))
    return linear


def _batch_norm(problem: Problem, layer: Layer, private: bool) -> nn.Module:
    kind = nn.BatchNorm2d if len(layer.shape) == 4 else nn.BatchNorm1d
    norm = kind(layer.shape[1], eps=layer.settings["epsilon"], momentum=1.0 - layer.settings["decay"])
    if "gamma" in layer.variables:
        norm.weight = _parameter(problem.variable(layer.variables["gamma"]))
    else:
        norm.weight.requires_grad_(False)  # PyTorch's initial value is 1
    norm.bias = _parameter(problem.variable(layer.variables["beta"]))
    return norm


def _relu(problem: Problem, layer: Layer, private: bool) -> nn.Module:
    # In place, as in PyTorch's own networks: the gradient of ReLU needs only its output.
    return nn.ReLU(inplace=private)


def _max_pool(problem: Problem, layer: Layer, private: bool) -> nn.Module:
    window, strides, padding = (layer.settings[name] for name in ("window", "strides", "padding"))
    if _is_ceil(layer):
        return nn.MaxPool2d(window, strides, (padding[0], padding[2]), ceil_mode=True)
    inside, before = _symmetric(padding, float("-inf"))
    pool = nn.MaxPool2d(window, strides, inside)
    return nn.Sequential(before, pool) if before else pool


def _avg_pool(problem: Problem, layer: Layer, private: bool) -> nn.Module:
    settings = layer.settings
    padding, before = _symmetric(settings["padding"], 0.0)
    if before is not None:
        raise ValueError(
            f"layer {layer.name!r}: average pooling has uneven padding {settings['padding']}; expected equal padding "
            "on opposite sides"
        )
    counted = settings["count_padding"]
    return nn.AvgPool2d(settings["window"], settings["strides"], padding, count_include_pad=counted)


def _is_ceil(layer: Layer) -> bool:
    """Return whether the bottom and right padding exceeds the top and left padding as in PyTorch's ceil_mode."""
    names = ("image", "window", "strides", "padding")
    image, window, strides, (top, bottom, left, right) = (layer.settings[name] for name in names)
    if (bottom, right) == (top, left) or bottom < top or right < left:
        return False
    rows, columns = (
        -(-(size + 2 * before - side) // stride) + 1
        for size, before, side, stride in zip(image, (top, left), window, strides, strict=True)
    )
    return (rows, columns) == layer.shape[2:]


def _symmetric(padding: list[int], value: float) -> tuple[tuple[int, int], nn.Module | None]:
    """Return padding for PyTorch (rows, columns) and, if the padding is uneven, a module that pads first."""
    top, bottom, left, right = padding
    if top == bottom and left == right:
        return (top, left), None
    return (0, 0), nn.ConstantPad2d((left, right, top, bottom), value)


_MODULES: Mapping[str, Callable[[Problem, Layer, bool], nn.Module]] = {
    "conv": _conv,
    "dense": _dense,
    "batch_norm": _batch_norm,
    "relu": _relu,
    "max_pool": _max_pool,
    "avg_pool": _avg_pool,
    "global_avg_pool": lambda problem, layer, private: GlobalAverage(),
    "subsample": lambda problem, layer, private: Subsample(*layer.settings["strides"]),
    "flatten": lambda problem, layer, private: nn.Flatten(),
    "add": lambda problem, layer, private: Sum(),
    "concat": lambda problem, layer, private: Concat(layer.settings["axis"]),
    "pad": lambda problem, layer, private: Pad(layer.settings["low"], layer.settings["high"]),
    "slice": lambda problem, layer, private: Slice(layer.settings["begin"], layer.settings["size"]),
}
"""Kind of layer -> function that returns a module. private: no other layer reads the memory of the layer's input."""


class Torch:
    """One variant of PyTorch, on one problem."""

    versions: Mapping[str, str] = {"torch": torch.__version__}

    def __init__(self, variant: str, problem: Problem) -> None:
        self._format, self._compiles = VARIANTS[variant]
        self._problem = problem

    def load(self) -> None:
        problem = self._problem
        torch.set_num_threads(problem.threads)
        self._network = Network(problem).to(memory_format=self._format).train()
        self._x = torch.from_numpy(problem.x).contiguous(memory_format=self._format)
        self._y = torch.from_numpy(problem.y)
        self._optimizer = torch.optim.SGD(
            self._network.parameters(), lr=problem.learning_rate, momentum=problem.momentum, fused=True
        )
        self._loss = torch.compile(self._eager_loss) if self._compiles else self._eager_loss

    def phase(self, name: str) -> Run:
        return {"forward": self._forward, "gradients": self._gradients, "step": self._step}[name]

    def _eager_loss(self, x: Tensor, y: Tensor) -> Tensor:
        narrow = self._problem.precision == "bfloat16"
        with torch.autocast("cpu", torch.bfloat16) if narrow else contextlib.nullcontext():
            logits = self._network(x)
        return F.cross_entropy(logits.float(), y)

    def _forward(self) -> float:
        with torch.no_grad():
            return float(self._loss(self._x, self._y).item())

    def _gradients(self) -> float:
        loss = self._loss(self._x, self._y)
        loss.backward()
        self._optimizer.zero_grad()
        return float(loss.item())

    def _step(self) -> float:
        loss = self._loss(self._x, self._y)
        loss.backward()
        self._optimizer.step()
        self._optimizer.zero_grad()
        return float(loss.item())


if __name__ == "__main__":
    serve(Torch(sys.argv[1], load_problem(Path(sys.argv[2]))))
