"""Models by the name that the configuration uses. To add one: write its class and list it here."""

from runner.models.base import Model
from runner.models.cifar_convnet import CifarConvNet
from runner.models.lenet import LeNet
from runner.models.mlp import Mlp

MODELS: dict[str, type[Model]] = {"mlp": Mlp, "lenet": LeNet, "cifar_convnet": CifarConvNet}

__all__ = ["MODELS", "CifarConvNet", "LeNet", "Mlp", "Model"]
