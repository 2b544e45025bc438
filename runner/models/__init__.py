"""Models by their names in the configuration. To add a model, write its class and list it here.

Read ``base`` first, then ``lenet``, then every other file in any order: each describes one architecture.
"""

from runner.models.alexnet import AlexNet
from runner.models.base import Model
from runner.models.cifar_alexnet import CifarAlexNet
from runner.models.cifar_convnet import CifarConvNet
from runner.models.googlenet import GoogLeNet
from runner.models.lenet import LeNet
from runner.models.mlp import Mlp
from runner.models.overfeat import Overfeat
from runner.models.resnet_cifar import ResNetCifar
from runner.models.vgg_a import VggA

MODELS: dict[str, type[Model]] = {
    "mlp": Mlp,
    "lenet": LeNet,
    "cifar_convnet": CifarConvNet,
    "alexnet": AlexNet,
    "cifar_alexnet": CifarAlexNet,
    "overfeat": Overfeat,
    "vgg_a": VggA,
    "googlenet": GoogLeNet,
    "resnet_cifar": ResNetCifar,
}

__all__ = ["AlexNet", "CifarAlexNet", "CifarConvNet", "GoogLeNet", "LeNet", "Mlp", "Overfeat", "ResNetCifar", "VggA"]
