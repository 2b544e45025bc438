"""The methods of adaptation, and their scores and divergences on a target domain."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from runner.config.schema import ADABN, ADABN_CORAL, CORAL, Adaptation
from runner.data.dataset import Normalisation
from runner.data.settings import DatasetSettings
from runner.errors import ConfigError
from runner.training.adaptation.coral import classifier
from runner.training.adaptation.domains import SOURCE, TARGET, DomainProgram, DomainSession, Weights, opened_domains
from runner.training.adaptation.moments import Moments, divergence
from runner.training.inference import OneDevice

UNADAPTED = "source"  # the key of the unadapted network in results by method


@dataclass
class Adapted:
    """The results of an adaptation.

    examples: number of target examples for the statistics of AdaBN. scores: method, or :data:`UNADAPTED` -> metric ->
    value on the test split of the target. divergence: method -> layer -> symmetric divergence of the outputs of the
    layer between the source and the target, in nats (:func:`~runner.training.adaptation.moments.divergence`). curve:
    number of target batches -> scores of AdaBN with this number. weights: method -> variables changed by the method.
    """

    examples: int
    batch_size: int
    scores: dict[str, Mapping[str, float]] = field(default_factory=dict)
    divergence: dict[str, Mapping[str, float]] = field(default_factory=dict)
    curve: dict[int, Mapping[str, float]] = field(default_factory=dict)
    weights: dict[str, Weights] = field(default_factory=dict)

    @property
    def metrics(self) -> dict[str, float]:
        """The scores and divergences as metrics, such as "adapt/adabn/accuracy" and "adapt/adabn_8/accuracy"."""
        scored = {**self.scores, **{f"{ADABN}_{batches}": scores for batches, scores in self.curve.items()}}
        found = {f"adapt/{name}/{metric}": value for name, scores in scored.items() for metric, value in scores.items()}
        for method, layers in self.divergence.items():
            found |= {f"adapt/{method}/divergence/{layer}": value for layer, value in layers.items()}
        return found


def adapt(
    device: OneDevice, weights: Weights, normalisation: Normalisation, target: DatasetSettings, settings: Adaptation
) -> Adapted:
    """Adapt a network to a target by each method of ``settings``; return scores, divergences and new weights.

    weights: all variables of the trained network. normalisation: the normalisation used in training. The target's
    labels are used only for the scores on its test split. Raises ConfigError if a method does not fit the network, and
    the errors of :func:`~runner.training.adaptation.domains.opened_domains`.
    """
    with opened_domains(device, normalisation, target, settings.batch_size) as session:
        require_adaptable(session.built, session.config, settings)
        batches = min(settings.batches or session.batches[TARGET], session.batches[TARGET])
        adapting = _Adapting(session, weights, settings, batches)
        return adapting.run()


def require_adaptable(built: DomainProgram, config: Any, settings: Adaptation) -> None:
    """Raise ConfigError if a method does not fit the network of a configuration."""
    methods, model = set(settings.methods), config.model.name
    if methods & {ADABN, ADABN_CORAL} and not built.normalised:
        raise ConfigError(
            f"adapt.methods={settings.methods}: model={model} has no batch normalization, so {ADABN} changes nothing; "
            f"choose a model with batch normalization, or [{CORAL}]"
        )
    if methods & {CORAL, ADABN_CORAL} and built.classifier is None:
        raise ConfigError(
            f"adapt.methods={settings.methods}: {CORAL} replaces the last layer, which must be dense with a bias; "
            f"model={model} has another last layer"
        )


class _Adapting:
    """One adaptation in a session. batches: target batches for the statistics."""

    def __init__(self, session: DomainSession, weights: Weights, settings: Adaptation, batches: int) -> None:
        self._session = session
        self._weights = weights
        self._settings = settings
        self._batches = batches
        self._found = Adapted(batches * session.batch_size, session.batch_size)
        self._source: Mapping[str, Moments] = {}
        self._statistics: Weights = {}

    def run(self) -> Adapted:
        """Score and compare the network as trained, then after each method."""
        self._session.restore(self._weights)
        self._source = self._session.moments(SOURCE)
        self._score(UNADAPTED)
        if any(method != CORAL for method in self._settings.methods):
            self._statistics = self._pooled()
        for method in self._settings.methods:
            changed: Weights = {} if method == CORAL else self._statistics
            if method != ADABN:
                changed = {**changed, **self._classifier(changed)}
            self._found.weights[method] = changed
            self._session.restore({**self._weights, **changed})
            self._score(method)
        return self._found

    def _score(self, method: str) -> None:
        """Score the network with its present weights; compare its target outputs with the original source outputs."""
        target = self._session.moments(TARGET)
        self._found.scores[method] = self._session.scores().metrics
        self._found.divergence[method] = {name: divergence(self._source[name], target[name]) for name in target}

    def _pooled(self) -> Weights:
        """Return the statistics of the target; score the network after each number of batches in ``settings.curve``."""
        statistics: Weights = {}
        for batches, statistics in enumerate(self._session.statistics(self._batches), start=1):
            if batches in self._settings.curve:
                # The next statistics do not depend on the moving averages that are restored here.
                self._session.restore({**self._weights, **statistics})
                self._found.curve[batches] = self._session.scores().metrics
        return statistics

    def _classifier(self, statistics: Weights) -> Weights:
        """Return weights and bias trained by CORAL. statistics: variables to set before target features are read."""
        place = self._session.built.classifier
        assert place is not None, "checked before"
        self._session.restore(self._weights)
        source, labels = self._session.features(SOURCE)
        self._session.restore({**self._weights, **statistics})
        target, _ = self._session.features(TARGET)
        weights, bias = classifier(source, labels, target, self._session.config)
        dtype: Any = self._weights[place.weights].dtype
        return {place.weights: np.asarray(weights, dtype), place.bias: np.asarray(bias, dtype)}
