"""Parallelism strategies, selected by ``parallelism=NAME``; each builds a graph with devices and clients.

Read in this order:

* ``base``: the contract. ``replica``: a copy of the network. ``clients``: the clients of a program.
* ``single``, with ``microbatches``; ``sync_data``, with ``collectives`` and ``synchronous``.
* ``model``, with ``microbatches`` and ``layer_names``; ``hybrid``; both use ``sharded``.
* ``servers``: variables on parameter servers; ``async_data``, with ``downpour``; ``sandblaster``, with ``lbfgs``.
* ``latest``: several updates of one variable within a step. ``averaged``: the variables that evaluations read.
"""

from runner.strategies.async_data import AsyncData
from runner.strategies.base import Strategy
from runner.strategies.base import Workload as Workload
from runner.strategies.hybrid import Hybrid
from runner.strategies.model import ModelParallel
from runner.strategies.sandblaster import Sandblaster
from runner.strategies.single import Single
from runner.strategies.sync_data import SyncData

_ALL: tuple[type[Strategy], ...] = (Single, SyncData, AsyncData, ModelParallel, Hybrid, Sandblaster)
STRATEGIES = {strategy.name: strategy for strategy in _ALL}
