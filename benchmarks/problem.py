"""A problem for all implementations: a framework-independent network, its initial values and one batch.

The folder of a problem has ``problem.json``, ``x.npy``, ``y.npy`` and one file ``variables/NAME.npy`` per variable, so
that a process can load one variable at a time. This module imports nothing from runner, because peers import it too.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

DOCUMENT = "problem.json"

KINDS = (
    *("conv", "dense", "relu", "batch_norm", "max_pool", "avg_pool", "global_avg_pool", "subsample", "flatten", "add"),
    *("concat", "pad", "slice"),
)
"""The kinds of layers. Shapes are (N, C, H, W) and weights (O, C/groups, R, S), whatever layout a framework uses.

conv: variables weights and optionally bias (O,); settings strides, padding (top, bottom, left, right), groups, and
the sizes of the image (H, W) and the kernel (R, S). dense: variables weights (features, units) and optionally bias;
setting image: (C, H, W) of a flattened input, else null. batch_norm: variables gamma (optional), beta, moving_mean,
moving_variance (C,); settings epsilon, and decay of the moving averages. max_pool, avg_pool: settings window,
strides, padding, image (H, W) of the input, and for avg_pool count_padding. subsample: setting strides. concat:
setting axis. pad: settings low and high, counts of zeros by axis. slice: settings begin and size by axis. Other kinds
have no variables or settings.
"""


@dataclass(frozen=True)
class Layer:
    """One call in the network's forward pass.

    name: name of the output. inputs: names of earlier layers, or "x". shape: shape of the output. variables: role ->
    name. last_uses: inputs that no later layer reads.
    """

    name: str
    kind: str
    inputs: tuple[str, ...]
    shape: tuple[int, ...]
    variables: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    last_uses: tuple[str, ...] = ()


@dataclass(frozen=True)
class Problem:
    """The computation: mean softmax cross-entropy of the last layer's output against y, and training steps on it.

    A step is a forward pass, a backward pass and the update v <- momentum * v - learning_rate * g, w <- w + v.
    trainable: names of the variables that a step updates; the others are moving averages. precision: "float32", or
    "bfloat16" for bfloat16 compute with variables, statistics and loss in float32. threads: thread budget of a process.
    overrides: the configuration of runner.
    """

    folder: Path
    layers: tuple[Layer, ...]
    trainable: tuple[str, ...]
    precision: str
    threads: int
    learning_rate: float
    momentum: float
    overrides: tuple[str, ...] = ()

    @property
    def x(self) -> Array:
        """Return the images, (N, C, H, W) float32."""
        return _read(self.folder / "x.npy")

    @property
    def y(self) -> Array:
        """Return the labels, (N,) int64."""
        return _read(self.folder / "y.npy")

    @property
    def moving(self) -> tuple[str, ...]:
        """Return the names of the moving averages."""
        named = [name for layer in self.layers for name in layer.variables.values()]
        return tuple(name for name in named if name not in self.trainable)

    @property
    def parameters(self) -> int:
        """Return the number of trainable parameters."""
        return sum(self.variable(name).size for name in self.trainable)

    def variable(self, name: str) -> Array:
        """Return the initial value of a variable, float32, read from its file."""
        return _read(_variable_path(self.folder, name))

    def save(self, x: Array, y: Array, variables: Mapping[str, Array]) -> None:
        """Write the problem into its folder, which must exist."""
        np.save(self.folder / "x.npy", x)
        np.save(self.folder / "y.npy", y)
        for name, value in variables.items():
            path = _variable_path(self.folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            np.save(path, value)
        document = {name: value for name, value in asdict(self).items() if name != "folder"}
        (self.folder / DOCUMENT).write_text(json.dumps(document))


def load_problem(folder: Path) -> Problem:
    """Return the problem that :meth:`Problem.save` wrote to a folder. Arrays are read on use."""
    document = json.loads((folder / DOCUMENT).read_text())
    layers = tuple(_layer(entry) for entry in document.pop("layers"))
    lists: dict[str, Any] = {name: tuple(document.pop(name)) for name in ("trainable", "overrides")}
    return Problem(folder=folder, layers=layers, **lists, **document)


def _layer(entry: Mapping[str, Any]) -> Layer:
    sequences = {name: tuple(entry[name]) for name in ("inputs", "shape", "last_uses")}
    return Layer(**{**entry, **sequences})


def _read(path: Path) -> Array:
    values: Array = np.load(path)
    return values


def _variable_path(folder: Path, name: str) -> Path:
    return folder / "variables" / f"{name}.npy"


def unsupported(layer: Layer, reader: str, supported: Sequence[str]) -> ValueError:
    """Return the error for a layer that an implementation cannot build."""
    return ValueError(
        f"layer {layer.name!r} is of kind {layer.kind!r}, which {reader} does not support; expected one of "
        f"{', '.join(supported)}"
    )
