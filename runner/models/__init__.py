"""Models by their names in the configuration. To add a model, write its class and list it here.

Read ``base`` first, then ``lenet``, ``lstm`` for language, ``residual`` before the files of residual networks, and
every other file in any order: each describes one architecture.
"""

from runner.models.alexnet import AlexNet
from runner.models.alexnet_2012 import AlexNet2012
from runner.models.base import Model
from runner.models.cifar_alexnet import CifarAlexNet
from runner.models.cifar_convnet import CifarConvNet
from runner.models.distbelief_vision import DistBeliefVision
from runner.models.googlenet import GoogLeNet
from runner.models.inception_bn import InceptionBn
from runner.models.inception_v3 import InceptionV3
from runner.models.lenet import LeNet
from runner.models.lstm import Lstm
from runner.models.mlp import Mlp
from runner.models.overfeat import Overfeat
from runner.models.resnet_cifar import ResNetCifar
from runner.models.resnet_imagenet import ResNetImageNet
from runner.models.skip_gram import SkipGram
from runner.models.vgg import VggA, VggD

MODELS: dict[str, type[Model]] = {
    "mlp": Mlp,
    "lenet": LeNet,
    "cifar_convnet": CifarConvNet,
    "alexnet": AlexNet,
    "alexnet_2012": AlexNet2012,
    "cifar_alexnet": CifarAlexNet,
    "overfeat": Overfeat,
    "vgg_a": VggA,
    "vgg_d": VggD,
    "googlenet": GoogLeNet,
    "inception_bn": InceptionBn,
    "inception_v3": InceptionV3,
    "resnet_cifar": ResNetCifar,
    "resnet_imagenet": ResNetImageNet,
    "distbelief_vision": DistBeliefVision,
    "lstm": Lstm,
    "skip_gram": SkipGram,
}

__all__ = [
    "AlexNet",
    "AlexNet2012",
    "CifarAlexNet",
    "CifarConvNet",
    "DistBeliefVision",
    "GoogLeNet",
    "InceptionBn",
    "InceptionV3",
    "LeNet",
    "Lstm",
    "Mlp",
    "Overfeat",
    "ResNetCifar",
    "ResNetImageNet",
    "SkipGram",
    "VggA",
    "VggD",
]
