"""Optimizers by their names in the configuration. To add an optimizer, write its class and list it here.

Read the modules in this order:

* ``base``: settings, the rule of an update, slots, and the factor that clips gradients.
* ``row_updates``: the same rules for a few rows of a table.
* ``parameter_rules``, ``batch_scaling``, ``averages``: settings of all optimizers.
* ``sgd`` (with momentum), ``adam`` (with Adagrad and RMSProp): rules that compute an update from one gradient.
* ``lbfgs``: L-BFGS, as commands to a ``VectorMachine``; ``line_search``: the length of its steps.
* ``schedules``: factors of the learning rate.
"""

from runner.optimizers.adam import Adagrad, Adam, AdamW, RmsProp
from runner.optimizers.base import Optimizer
from runner.optimizers.lbfgs import Lbfgs
from runner.optimizers.sgd import HeavyBall, Momentum, Sgd

_ALL: tuple[type[Optimizer], ...] = (Sgd, Momentum, HeavyBall, Adagrad, RmsProp, Adam, AdamW, Lbfgs)
OPTIMIZERS = {optimizer.name: optimizer for optimizer in _ALL}

__all__ = ["OPTIMIZERS", "Adagrad", "Adam", "AdamW", "HeavyBall", "Lbfgs", "Momentum", "Optimizer", "RmsProp", "Sgd"]
