"""Weights for use outside of runner: as a safetensors file, and as a ``state_dict`` of PyTorch.

PyTorch names a parameter ``MODULE.weight``, and this package ``LAYER/weights``. By default a module has the name of its
layer. ``names`` maps layers to modules: {"conv1": "features.0"}.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runner.checkpoint import CheckpointMeta, save, weights_sha256
from runner.checkpoint.shard import pack
from runner.errors import ConfigError
from runner.system.files import replace_durably, user_cache_folder, writing

_WEIGHTS, _TABLE = "weights", "table"
_SAME = {"bias": "bias", "gamma": "weight", "beta": "bias", "moving_mean": "running_mean"}
_TO_TORCH = {**_SAME, _WEIGHTS: "weight", _TABLE: "weight", "moving_variance": "running_var"}
"""Last part of the name of a variable -> last part of the name of a tensor of PyTorch."""
_NORM = {"weight": "gamma", "bias": "beta", "running_mean": "moving_mean", "running_var": "moving_variance"}
_OTHER = {"weight": _WEIGHTS, "bias": "bias"}
_COUNTER = "num_batches_tracked"
_RECURRENT = {_WEIGHTS: "weight_ih", "recurrent": "weight_hh", "bias": "bias_ih"}
"""Variable of a layer of long short-term memory -> parameter of PyTorch's LSTM, without the number of its layer."""
_OF_LSTM = re.compile(r"(weight|bias)_(ih|hh)_l(\d+)")


def write_safetensors(path: Path, weights: Mapping[str, NDArray[Any]]) -> Path:
    """Write variables by their names to a safetensors file; return its absolute path.

    Raises ResourceError if the file cannot be written.
    """
    _, payload = pack(weights, path.name)
    with writing(str(path), "choose another file"):
        replace_durably(path, payload)
    return path.absolute()


def state_dict(weights: Mapping[str, NDArray[Any]], names: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return weights as tensors of PyTorch, for ``module.load_state_dict``.

    Dense weights (features, units) become (units, features); other arrays keep their shape. A layer of long short-term
    memory becomes an LSTM of one layer, whose second bias is 0. weights: as
    :meth:`~runner.api.runs.Run.weights` returns them. names: layer -> module; other layers keep their names. Raises
    ConfigError if PyTorch is missing, or if a layer of ``names`` has no weights.
    """
    torch = _torch()
    _require_layers(names or {}, {_split(name)[0] for name in weights})
    found = {}
    for name, value in weights.items():
        layer, kind = _split(name)
        module = (names or {}).get(layer, layer)
        if f"{layer}/recurrent" in weights and kind in _RECURRENT:
            array = torch.from_numpy(np.ascontiguousarray(value.T))
            found[f"{module}.{_RECURRENT[kind]}_l0"] = array
            if kind == "bias":
                found[f"{module}.bias_hh_l0"] = torch.zeros_like(array)
            continue
        array = value.T if kind == _WEIGHTS and value.ndim == 2 else value
        found[f"{module}.{_TO_TORCH.get(kind, kind)}"] = torch.from_numpy(np.require(array, requirements=("C", "W")))
        if kind == "moving_mean":
            found[f"{module}.{_COUNTER}"] = torch.tensor(0)
    return found


def from_state_dict(
    state: Mapping[str, Any], names: Mapping[str, str] | None = None, tables: Collection[str] = ()
) -> dict[str, NDArray[Any]]:
    """Return a ``state_dict`` of PyTorch as weights, for ``runner.run(init_from=...)``; the inverse of `state_dict`.

    state: name -> tensor or array. names: layer -> module; other modules are layers of the same name. tables: layers
    whose matrix is a table: embeddings and, for task=language, the layer "softmax". The matrix of any other layer is
    read as dense weights. If an LSTM has several layers, they are numbered: LAYER1, LAYER2. A run takes the weights
    whose names and shapes fit its network, and logs the weights that do not fit. Raises ConfigError for a module of
    ``names`` without tensors.
    """
    layers = {module: layer for layer, module in (names or {}).items()}
    _require_layers(layers, {name.rpartition(".")[0] for name in state})
    return dict(_variables(state, layers, tables))


def _variables(
    state: Mapping[str, Any], layers: Mapping[str, str], tables: Collection[str]
) -> Iterator[tuple[str, NDArray[Any]]]:
    for name, tensor in state.items():
        module, _, kind = name.rpartition(".")
        if kind == _COUNTER:
            continue
        value = _array(tensor)
        layer = layers.get(module, module)
        if of_lstm := _OF_LSTM.fullmatch(kind):
            yield from _recurrent(state, layer, name, of_lstm)
            continue
        if kind == "weight" and layer in tables:
            yield f"{layer}/{_TABLE}", value
            continue
        known = _NORM if _normalizes(state, module) else _OTHER
        array = value.T if kind == "weight" and value.ndim == 2 else value
        yield f"{layer}/{known.get(kind, kind)}", np.ascontiguousarray(array)


def _recurrent(
    state: Mapping[str, Any], layer: str, name: str, found: re.Match[str]
) -> Iterator[tuple[str, NDArray[Any]]]:
    """Yield the variable that a parameter of an LSTM becomes; the two biases become their sum."""
    what, source, number = found.groups()
    several = f"{name.removesuffix(found[0])}weight_ih_l1" in state
    value = _array(state[name])
    kind = f"{what}_{source}"
    if kind == "bias_hh":
        return
    if kind == "bias_ih":
        value = value + _array(state[name.replace("bias_ih", "bias_hh")])
    variables = {parameter: variable for variable, parameter in _RECURRENT.items()}
    yield f"{layer}{int(number) + 1 if several else ''}/{variables[kind]}", np.ascontiguousarray(value.T)


def _array(tensor: Any) -> NDArray[Any]:
    return np.asarray(tensor.detach().cpu().numpy() if hasattr(tensor, "detach") else tensor)


def _normalizes(state: Mapping[str, Any], module: str) -> bool:
    """Return whether a module of PyTorch is a normalization: it has a mean, or one weight for each channel."""
    weight = state.get(f"{module}.weight")
    return f"{module}.running_mean" in state or (weight is not None and np.ndim(weight) == 1)


def stored_weights(weights: Mapping[str, NDArray[Any]]) -> Path:
    """Write weights as a checkpoint, named by its content, to the user's cache folder; return the checkpoint.

    Raises CheckpointError for names or types that a checkpoint cannot hold, NumericError for non-finite values.
    """
    variables = {name: np.asarray(value) for name, value in weights.items()}
    digest = weights_sha256(variables)
    folder = user_cache_folder() / "weights" / digest[:32]
    return save(folder, step=0, variables=variables, meta=CheckpointMeta(digest, digest[:16], 1, 0, {}))


def _split(name: str) -> tuple[str, str]:
    layer, _, kind = name.rpartition("/")
    return layer, kind


def _require_layers(names: Mapping[str, str], known: set[str]) -> None:
    if unknown := sorted(names.keys() - known):
        raise ConfigError(f"names: there are no weights of {', '.join(unknown)}; expected some of {sorted(known)}")


def _torch() -> Any:
    try:
        import torch
    except ImportError as error:
        raise ConfigError(f"PyTorch cannot be imported ({error}); install it with: pip install torch") from error
    return torch
