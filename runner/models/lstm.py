"""Recurrent networks for language: an embedding of words and long short-term memory (LSTM) layers."""

from dataclasses import dataclass, field

from runner import nn
from runner.bounds import Count, Rate, Real, SmallCount
from runner.engine.graph import NetworkBuilder, Tensor, Uniform
from runner.errors import require
from runner.models.base import SequenceModel


@dataclass
class Lstm(SequenceModel):
    """An embedding and LSTM layers (Jozefowicz et al. 2016; Zaremba et al. 2014).

    units: units of each layer. embedding: length of a word's vector. dropout: rate of dropout after the embedding and
    after every layer, but not between the steps of a layer (Zaremba et al. 2014). forget_bias: initial bias of the
    forget gates; other biases are initially 0. init_scale: initial weights are uniform from -init_scale to init_scale.
    chunks: number of parts of a sequence, each computed by a separate node in each layer, so that layers on different
    devices compute different parts at the same time (whitepaper 2016, figure 8). The draws of dropout depend on
    ``chunks``; without dropout, only the rounding of gradients does.
    """

    name: str = "lstm"
    units: list[Count] = field(default_factory=lambda: [512, 512])
    embedding: Count = 512
    dropout: Rate = 0.0
    forget_bias: Real = 1.0
    init_scale: Rate = 0.05
    chunks: SmallCount = 1

    def __post_init__(self) -> None:
        require(bool(self.units), "model.units", self.units, "at least one layer")

    def states(self, net: NetworkBuilder, x: Tensor, entries: int) -> list[Tensor]:
        """Add layers embedding, lstm1, lstm2, ... and dropout1, dropout2, ... if dropout is not 0."""
        steps = net.graph.spec(x).shape[1]
        require(self.chunks <= steps, "model.chunks", self.chunks, f"at most data.steps={steps}")
        initializer = Uniform(-self.init_scale, self.init_scale)
        parts = nn.embedding_of_steps(
            net, x, entries, self.embedding, chunks=self.chunks, name="embedding", initializer=initializer
        )
        for number, units in enumerate(self.units, start=1):
            parts = nn.dropout_of_steps(net, parts, self.dropout, name=f"dropout{number}")
            parts = nn.lstm(
                net, parts, units, name=f"lstm{number}", forget_bias=self.forget_bias, initializer=initializer
            )
        return nn.dropout_of_steps(net, parts, self.dropout, name=f"dropout{len(self.units) + 1}")
