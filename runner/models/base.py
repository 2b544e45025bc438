"""The base class of models: their settings, and the layers from inputs to predictions."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

from runner.engine.graph import NetworkBuilder, Tensor
from runner.errors import ConfigError


@dataclass
class Model(ABC):
    """The base class of all models; the fields are the settings."""

    name: str = ""

    @abstractmethod
    def forward(self, net: NetworkBuilder, x: Tensor, outputs: int) -> Tensor:
        """Add the layers for inputs x, such as images (N, C, H, W), and return (N, outputs), all in ``net.dtype``.

        outputs: number of values that the task reads for each example, such as the logits of the classes.
        Raises ConfigError, which names the layer, at the first layer whose input is too small.
        """


@dataclass
class SequenceModel(Model):
    """The base class of models of sequences, whose output layer belongs to the task."""

    @abstractmethod
    def states(self, net: NetworkBuilder, x: Tensor, entries: int) -> list[Tensor]:
        """Add the layers for inputs x (N, T), integers below ``entries``; return the outputs of all steps.

        The outputs (T, N, features) are in consecutive parts along the axis of steps.
        """

    def forward(self, net: NetworkBuilder, x: Tensor, outputs: int) -> Tensor:
        """Raise ConfigError, because only task=language has an output layer for all steps."""
        raise ConfigError(f"model={self.name} computes an output for each word; expected task=language")
