"""Optimizers by the name that the configuration uses. To add one: write its class and list it here."""

from runner.optimizers.adagrad import Adagrad
from runner.optimizers.adam import Adam
from runner.optimizers.adamw import AdamW
from runner.optimizers.base import Optimizer
from runner.optimizers.heavy_ball import HeavyBall
from runner.optimizers.lbfgs import Lbfgs
from runner.optimizers.momentum import Momentum
from runner.optimizers.sgd import Sgd

OPTIMIZERS: dict[str, type[Optimizer]] = {
    "sgd": Sgd,
    "momentum": Momentum,
    "heavy_ball": HeavyBall,
    "adagrad": Adagrad,
    "adam": Adam,
    "adamw": AdamW,
    "lbfgs": Lbfgs,
}

__all__ = ["OPTIMIZERS", "Adagrad", "Adam", "AdamW", "HeavyBall", "Lbfgs", "Momentum", "Optimizer", "Sgd"]
