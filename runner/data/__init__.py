"""Datasets by their names in the configuration. To add a dataset, write its settings class and list it here.

Read the modules in this order:

* ``dataset`` and ``settings``: a dataset and its settings. ``pipeline``, with ``order``, ``decoder`` and
  ``stage_times``: batches. ``source``: a worker's input source.
* ``digits`` and ``synthetic``: data without files.
* ``published``, with ``origins``, ``archive``, ``fetch`` and ``altered``: datasets that are downloaded.
* ``augmentation``: random changes of training examples.
* ``own_files``, with ``arrays``, ``npz``, ``image_folder`` and ``pictures``: the user's files.
* ``streamed``, with ``tfrecord``, ``records`` and ``encoded_files``: examples that are read when they are needed.
* ``convert`` and ``inspection``: the work of ``runner data convert`` and ``runner data inspect``.
* ``preprocessing``, with ``crops``, ``colour``, ``decoding``, ``resizing`` and ``compiled``: encoded images to arrays
  of one size.
* ``text``, ``shakespeare``: sequences of words.
* ``domains``: several datasets, for batches of one domain each.
* ``cifar100``, ``imagenet``, ``office31``: published datasets, in the user's files.
"""

from runner.data.arrays import Arrays
from runner.data.cifar100 import Cifar100
from runner.data.digits import Digits
from runner.data.domains import Domains
from runner.data.image_folder import ImageFolder
from runner.data.imagenet import ImageNet
from runner.data.office31 import Office31
from runner.data.published import Cifar10, FashionMnist, Mnist, Usps
from runner.data.settings import DATASETS, DatasetSettings
from runner.data.shakespeare import Shakespeare
from runner.data.synthetic import Synthetic, SyntheticText
from runner.data.text import Lm1b, Text
from runner.data.tfrecord import TFRecord

__all__ = ["DATASETS"]

_ALL: tuple[type[DatasetSettings], ...] = (
    *(Digits, Synthetic, SyntheticText, Mnist, FashionMnist, Cifar10, Usps, Cifar100, ImageNet, Arrays, ImageFolder),
    *(TFRecord, Office31, Domains, Shakespeare, Text, Lm1b),
)
DATASETS |= {settings.name: settings for settings in _ALL}
