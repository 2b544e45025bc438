"""Dataflow graphs: descriptions of computations, independent of the order of execution and of kernels.

Read in this order:

* ``tensor``, ``node``, ``op``: references to values, their producers, and the definition of an op with its rules.
* ``graph``: a growing set of nodes; ``device``: device names, which constrain nodes, and clusters of devices.
* ``expression``: operators on tensors; ``ops``: the definitions of all ops, and functions that add nodes.
* ``autodiff``: gradients, computed by nodes that extend a graph; ``rows``: gradients of a few rows of a table.
* ``initializers``, ``variables``, ``network``: the state and the layers of one copy of a network.
* ``verify``: checks of graphs; ``serialize``: graphs as plain data, for other processes.

Other packages and plugins import the names below from this package. A module is imported when one of its names is first
used, so that the configuration reads device names without loading NumPy.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from runner.engine.graph.autodiff import gradients
    from runner.engine.graph.device import (
        GPU,
        Cluster,
        Device,
        DeviceName,
        GpuOptions,
        Gpus,
        local_cluster,
        server_task,
        task_of,
        worker_device,
        worker_task,
    )
    from runner.engine.graph.expression import Expr, apply
    from runner.engine.graph.graph import Graph
    from runner.engine.graph.initializers import Constant, Initializer, Normal, Uniform, he_normal
    from runner.engine.graph.network import NetworkBuilder, NetworkFunction, Outputs, StateUpdate
    from runner.engine.graph.node import LayerStamp, Node
    from runner.engine.graph.op import OPS, OpDef, ShapeError
    from runner.engine.graph.rows import Gradient, Rows
    from runner.engine.graph.tensor import Tensor, TensorSpec, state_dtype
    from runner.engine.graph.variables import Declaration, Variable, Variables

_NAMES = {
    "autodiff": "gradients",
    "device": "GPU Cluster Device DeviceName GpuOptions Gpus local_cluster server_task task_of"
    " worker_device worker_task",
    "expression": "Expr apply",
    "graph": "Graph",
    "initializers": "Constant Initializer Normal Uniform he_normal",
    "network": "NetworkBuilder NetworkFunction Outputs StateUpdate",
    "node": "LayerStamp Node",
    "op": "OPS OpDef ShapeError",
    "rows": "Gradient Rows",
    "tensor": "Tensor TensorSpec state_dtype",
    "variables": "Declaration Variable Variables",
}
"""Module -> its names that this package exports."""

_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    """Import and return the object of an exported name; raises AttributeError for any other name."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    return value
