"""Parallelism strategies: each is a graph rewrite with its clients, selected by ``parallelism=NAME``."""

from runner.strategies.async_data import AsyncData
from runner.strategies.base import Strategy
from runner.strategies.hybrid import Hybrid
from runner.strategies.model import ModelParallel
from runner.strategies.sandblaster import Sandblaster
from runner.strategies.single import Single
from runner.strategies.sync_data import SyncData

STRATEGIES: dict[str, type[Strategy]] = {
    "single": Single,
    "sync_data": SyncData,
    "async_data": AsyncData,
    "model": ModelParallel,
    "hybrid": Hybrid,
    "sandblaster": Sandblaster,
}
