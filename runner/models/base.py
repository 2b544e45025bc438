"""The base class of models: their settings, and the layers from images to logits."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

from runner import nn
from runner.engine.graph.network import NetworkBuilder, NetworkFunction, Outputs
from runner.engine.graph.tensor import Tensor
from runner.errors import ConfigError


@dataclass
class Model(ABC):
    """The base class of all models; the fields are the settings.

    loss: the loss over the classes, "softmax" or "logistic" (see :func:`runner.nn.classify`).
    """

    name: str = ""
    loss: str = "softmax"

    def __post_init__(self) -> None:
        require(self.loss in nn.LOSSES, "loss", repr(self.loss), f"one of {', '.join(nn.LOSSES)}")

    @abstractmethod
    def forward(self, net: NetworkBuilder, x: Tensor, classes: int) -> Tensor:
        """Add the layers for images x (N, C, H, W) and return logits (N, classes), all in ``net.dtype``.

        Raises ConfigError, which names the layer, at the first layer whose input is too small.
        """

    def network(self, classes: int) -> NetworkFunction:
        """Return a function that adds the whole network, with the loss, for images x and labels y, (N,) int64."""

        def add_to(net: NetworkBuilder, batch: Mapping[str, Tensor]) -> Outputs:
            logits = self.forward(net, batch["x"], classes)
            self._require_logits(net, logits, classes)
            return nn.classify(net, logits, batch["y"], self.loss)

        return add_to

    def _require_logits(self, net: NetworkBuilder, returned: object, classes: int) -> None:
        """Raise ConfigError unless ``returned`` has shape (N, classes): a plugin's model may return anything."""
        spec = net.graph.spec(returned) if isinstance(returned, Tensor) else None
        if spec is None or spec.shape[1:] != (classes,):
            actual = returned if spec is None else spec
            raise ConfigError(
                f"model.name={self.name}: forward returned {actual}; expected logits (N, {classes}), a number for each "
                "class; return the output of a final dense layer"
            )


def require(holds: bool, key: str, value: object, expected: str) -> None:
    """Raise ConfigError, naming the key of the ``model`` group, unless the condition holds."""
    if not holds:
        raise ConfigError(f"model.{key}={value}: expected {expected}")
