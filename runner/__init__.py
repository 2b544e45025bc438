"""Declarative, config-driven experiment runner for parallel neural-network training.

``__all__`` lists the public names, which docs/python.md describes; all other names are private. A name is imported when
it is first used, so that ``import runner`` does not load the modules for configuration and training.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from runner import nn as nn
    from runner import testing as testing
    from runner.api.arrays import arrays as arrays
    from runner.api.runs import Run as Run
    from runner.api.runs import compose as compose
    from runner.api.runs import explain as explain
    from runner.api.runs import load as load
    from runner.api.runs import run as run
    from runner.api.sweeps import Sweep as Sweep
    from runner.api.sweeps import sweep as sweep
    from runner.api.weights import from_state_dict as from_state_dict
    from runner.callback import Callback as Callback
    from runner.callback import StopTraining as StopTraining
    from runner.data.settings import DatasetSettings as DatasetSettings
    from runner.errors import RunnerError as RunnerError
    from runner.models.base import Model as Model
    from runner.optimizers.base import Optimizer as Optimizer
    from runner.optimizers.schedules import Schedule as Schedule
    from runner.plugin import install as install
    from runner.tasks.base import Task as Task

_MODULES = {
    "Callback": "runner.callback",
    "DatasetSettings": "runner.data.settings",
    "Model": "runner.models.base",
    "Optimizer": "runner.optimizers.base",
    "Run": "runner.api.runs",
    "RunnerError": "runner.errors",
    "Schedule": "runner.optimizers.schedules",
    "StopTraining": "runner.callback",
    "Sweep": "runner.api.sweeps",
    "Task": "runner.tasks.base",
    "arrays": "runner.api.arrays",
    "compose": "runner.api.runs",
    "explain": "runner.api.runs",
    "from_state_dict": "runner.api.weights",
    "install": "runner.plugin",
    "load": "runner.api.runs",
    "nn": "runner",
    "run": "runner.api.runs",
    "sweep": "runner.api.sweeps",
    "testing": "runner",
}
"""Public name -> the module that defines it."""

__all__ = [*_MODULES]


def __getattr__(name: str) -> Any:
    """Import and return a public name. Raises AttributeError for any other name."""
    if name not in _MODULES:
        raise AttributeError(f"module 'runner' has no attribute {name!r}; it has {', '.join(__all__)}")
    module = _MODULES[name]
    value = import_module(f"runner.{name}") if module == "runner" else getattr(import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
