"""Models by their names in the configuration. To add a model, write its class and list it here.

Read ``base`` first, then ``lenet``, ``lstm`` for language, ``residual`` before the files of residual networks, and
every other file in any order: each describes one architecture.
"""

from runner.models.alexnet import AlexNet as AlexNet
from runner.models.alexnet_2012 import AlexNet2012 as AlexNet2012
from runner.models.base import Model
from runner.models.cifar_alexnet import CifarAlexNet as CifarAlexNet
from runner.models.cifar_convnet import CifarConvNet as CifarConvNet
from runner.models.distbelief_vision import DistBeliefVision as DistBeliefVision
from runner.models.googlenet import GoogLeNet as GoogLeNet
from runner.models.inception_bn import InceptionBn as InceptionBn
from runner.models.inception_v3 import InceptionV3 as InceptionV3
from runner.models.lenet import LeNet as LeNet
from runner.models.lstm import Lstm as Lstm
from runner.models.mlp import Mlp as Mlp
from runner.models.overfeat import Overfeat as Overfeat
from runner.models.resnet_cifar import ResNetCifar as ResNetCifar
from runner.models.resnet_imagenet import ResNetImageNet as ResNetImageNet
from runner.models.skip_gram import SkipGram as SkipGram
from runner.models.vgg import VggA as VggA
from runner.models.vgg import VggD as VggD

_ALL: tuple[type[Model], ...] = (
    *(Mlp, LeNet, CifarConvNet, AlexNet, AlexNet2012, CifarAlexNet, Overfeat, VggA, VggD, GoogLeNet, InceptionBn),
    *(InceptionV3, ResNetCifar, ResNetImageNet, DistBeliefVision, Lstm, SkipGram),
)
MODELS = {model.name: model for model in _ALL}
