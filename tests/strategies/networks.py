"""Small networks, one for each property that a strategy must preserve, and sources of examples for them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runner import nn
from runner.engine.graph import NetworkBuilder, NetworkFunction, Outputs, Tensor
from runner.fields import labelled
from runner.optimizers import Momentum, Optimizer
from runner.strategies import Workload
from runner.tasks.classification import Classification

EXAMPLE_SHAPE = (1, 6, 6)
CLASSES = 3
TEST_BATCH = 11
BATCH = 13
"""A prime number, so that no tested number of workers or parts above 1 divides it."""

DECAY = 0.8
"""The decay of the moving averages of the layer "norm1" of :func:`normalised_twice`."""

Batch = Mapping[str, Tensor]


def dense(net: NetworkBuilder, batch: Batch) -> Outputs:
    """Build a network of three dense layers."""
    h = nn.flatten(net, batch["x"], name="flat")
    h = nn.relu(net, nn.dense(net, h, 8, name="fc1"), name="relu1")
    h = nn.relu(net, nn.dense(net, h, 6, name="fc2"), name="relu2")
    return Classification().score(net, nn.dense(net, h, CLASSES, name="fc3"), batch)


def convolutional(net: NetworkBuilder, batch: Batch) -> Outputs:
    """Build a padded convolution, max pooling with overlapping windows, a grouped convolution and a dense layer."""
    h = nn.conv(net, batch["x"], 4, 3, name="conv1", padding="same")
    h = nn.max_pool(net, nn.relu(net, h, name="relu1"), 3, name="pool1", stride=2)
    h = nn.conv(net, h, 4, 2, name="conv2", groups=2)
    return Classification().score(net, nn.dense(net, nn.flatten(net, h, name="flat"), CLASSES, name="fc"), batch)


def batch_normalised(net: NetworkBuilder, batch: Batch) -> Outputs:
    """Build a network with a layer that mixes examples and has state that no gradient updates."""
    h = nn.conv(net, batch["x"], 3, 3, name="conv1", bias=None)
    h = nn.relu(net, nn.batch_norm(net, h, name="norm1"), name="relu1")
    return Classification().score(net, nn.dense(net, nn.flatten(net, h, name="flat"), CLASSES, name="fc"), batch)


def normalised_twice(net: NetworkBuilder, batch: Batch) -> Outputs:
    """Build a network that normalises images after a convolution and features between dense layers."""
    h = nn.conv(net, batch["x"], 3, 3, name="conv1", bias=None)
    h = nn.flatten(net, nn.relu(net, nn.batch_norm(net, h, name="norm1", decay=DECAY), name="relu1"), name="flat")
    h = nn.dense(net, h, 5, name="fc1", bias=None)
    h = nn.relu(net, nn.batch_norm(net, h, name="norm2", epsilon=1e-3), name="relu2")
    return Classification().score(net, nn.dense(net, h, CLASSES, name="fc2"), batch)


def dropped_out(net: NetworkBuilder, batch: Batch) -> Outputs:
    """Build a network with a layer that draws random numbers."""
    h = nn.relu(net, nn.dense(net, nn.flatten(net, batch["x"], name="flat"), 12, name="fc1"), name="relu1")
    return Classification().score(net, nn.dense(net, nn.dropout(net, h, 0.4, name="drop"), CLASSES, name="fc2"), batch)


def hybrid(net: NetworkBuilder, batch: Batch, loss: str = "softmax") -> Outputs:
    """Build a convolution and three dense layers with dropout; no number of units divides another."""
    h = nn.relu(net, nn.conv(net, batch["x"], 2, 3, name="conv1"), name="relu1")
    h = nn.flatten(net, nn.max_pool(net, h, 2, name="pool1"), name="flat")
    h = nn.dropout(net, nn.relu(net, nn.dense(net, h, 7, name="fc1"), name="relu2"), 0.4, name="drop")
    h = nn.relu(net, nn.dense(net, h, 5, name="fc2"), name="relu3")
    return Classification(loss=loss).score(net, nn.dense(net, h, CLASSES, name="fc3"), batch)


def branched(net: NetworkBuilder, batch: Batch) -> Outputs:
    """Build two dense layers that read the same input, batch normalisation of their sum, and a dense layer."""
    x = nn.flatten(net, batch["x"], name="flat")
    left, right = (nn.dense(net, x, 5, name=name) for name in ("left", "right"))
    h = nn.batch_norm(net, nn.add(net, left, right, name="sum"), name="norm")
    return Classification().score(net, nn.dense(net, nn.relu(net, h, name="relu"), CLASSES, name="fc"), batch)


def read_twice(net: NetworkBuilder, batch: Batch) -> Outputs:
    """Build a dense layer and the sum of two other dense layers that read its output."""
    h = nn.dense(net, nn.flatten(net, batch["x"], name="flat"), 6, name="first")
    left, right = (nn.dense(net, h, CLASSES, name=name) for name in ("left", "right"))
    return Classification().score(net, nn.add(net, left, right, name="sum"), batch)


NETWORKS: dict[str, NetworkFunction] = {
    "dense": dense,
    "convolutional": convolutional,
    "batch_normalised": batch_normalised,
    "dropped_out": dropped_out,
}


CLIPPED = Momentum(weight_decay=1e-3, clip_norm=0.5)
"""An optimizer with slots, weight decay and active clipping."""


def workload_of(
    network: NetworkFunction | str,
    optimizer: Optimizer = CLIPPED,
    *,
    batch_size: int = BATCH,
    microbatches: int = 1,
    dtype: str = "float64",
    example_shape: tuple[int, ...] = EXAMPLE_SHAPE,
    seed: int = 7,
) -> Workload:
    """Return a workload of a network, given as a function or by its name, by default on images of 6x6 pixels."""
    network = NETWORKS[network] if isinstance(network, str) else network
    return Workload(network, optimizer, labelled(example_shape), dtype, seed, batch_size, TEST_BATCH, microbatches)


@dataclass(frozen=True)
class Source:
    """A source of endless examples, which subclasses draw. padding: number of examples at the end of a test batch."""

    batch_size: int
    test_batch: int = field(default=TEST_BATCH, kw_only=True)
    padding: int = field(default=3, kw_only=True)
    dtype: str = field(default="float64", kw_only=True)

    def draw(self, rng: np.random.Generator, size: int, step: int, test: bool) -> dict[str, NDArray[Any]]:
        """Return ``size`` values of each field, except of index and mask."""
        raise NotImplementedError

    def read(self, split: str, step: int, lo: int, hi: int) -> dict[str, NDArray[Any]]:
        """Return rows lo..hi-1 of the whole batch; the examples do not depend on the division into shares."""
        test = split == "test"
        size = self.test_batch if test else self.batch_size
        batch = self.draw(np.random.default_rng([step, test]), size, step, test)
        batch |= {
            "index": step * size + np.arange(size),
            "mask": (np.arange(size) < size - self.padding * test).astype(self.dtype),
        }
        return {name: values[lo:hi] for name, values in batch.items()}


@dataclass(frozen=True)
class Examples(Source):
    """A source of images with labels that depend on the images."""

    example_shape: tuple[int, ...] = EXAMPLE_SHAPE

    def draw(self, rng: np.random.Generator, size: int, step: int, test: bool) -> dict[str, NDArray[Any]]:
        x = rng.standard_normal((size, *self.example_shape))
        corner = x.reshape(size, -1)[:, :CLASSES]
        return {"x": x.astype(self.dtype), "y": corner.argmax(1).astype(np.int64)}


class Chosen:
    """A source of the examples at positions ``places`` of a batch. step: replaces the requested step, if not None."""

    def __init__(self, batch_size: int, step: int | None = None) -> None:
        self.places: Sequence[int] = ()
        self._batch_size = batch_size
        self._step = step

    def read(self, split: str, step: int, lo: int, hi: int) -> dict[str, NDArray[Any]]:
        """Return rows lo..hi-1 of the examples at the chosen positions."""
        whole = Examples(self._batch_size).read(split, step if self._step is None else self._step, 0, self._batch_size)
        return {name: values[self.places][lo:hi] for name, values in whole.items()}


def convolved(images: NDArray[Any], weights: NDArray[Any]) -> NDArray[Any]:
    """Return the responses of 3x3 filters to images of 6x6 pixels, of shape (N, filters, positions)."""
    places = [(i, j) for i in range(4) for j in range(4)]
    patches = [np.einsum("ncij,fcij->nf", images[:, :, i : i + 3, j : j + 3], weights) for i, j in places]
    return np.stack(patches, axis=-1)
