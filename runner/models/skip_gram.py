"""The table of word vectors of a skip-gram model."""

from dataclasses import dataclass

from runner.bounds import Count
from runner.engine.graph import NetworkBuilder, Tensor, Uniform, Variable
from runner.errors import ConfigError
from runner.models.base import Model
from runner.nn import new_layer


@dataclass
class SkipGram(Model):
    """A vector of numbers for each word (Mikolov et al. 2013, "Distributed Representations of Words and Phrases").

    features: length of a vector. Initial vectors are uniform from -1 / (2 features) to 1 / (2 features), as in
    word2vec. The vectors of contexts and the loss belong to task=embeddings.
    """

    name: str = "skip_gram"
    features: Count = 128

    def table(self, net: NetworkBuilder, entries: int) -> Variable:
        """Add the layer "words" with the variable table (entries, features)."""
        bound = 0.5 / self.features
        with new_layer(net, "words", "embedding"):
            return net.parameter("table", (entries, self.features), Uniform(-bound, bound), decayed=True)

    def forward(self, net: NetworkBuilder, x: Tensor, outputs: int) -> Tensor:
        """Raise ConfigError, because only task=embeddings trains word vectors."""
        raise ConfigError(f"model={self.name} has vectors of words; expected task=embeddings")
