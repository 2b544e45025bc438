"""The methods of adaptation, and their scores and divergences on a target domain."""

import logging
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
from runner.training.adaptation.moments import divergence
from runner.training.inference import OneDevice

log = logging.getLogger(__name__)

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
    labels are used only for the scores on its test split. The outputs of every adapted network are compared with the
    source outputs of the unadapted one. Raises ConfigError if a method does not fit the network, and the errors of
    :func:`~runner.training.adaptation.domains.opened_domains`.
    """
    with opened_domains(device, normalisation, target, settings.batch_size) as session:
        require_adaptable(session.built, session.config, settings)
        batches = min(settings.batches or session.batches[TARGET], session.batches[TARGET])
        found = Adapted(batches * session.batch_size, session.batch_size)
        session.restore(weights)
        if beyond := [count for count in settings.curve if count > batches]:
            log.warning("adapt.curve: %s are left out, because %d batches of the target are used", beyond, batches)
        source = session.moments(SOURCE)

        def score(method: str) -> None:
            moments = session.moments(TARGET)
            found.scores[method] = session.scores().metrics
            found.divergence[method] = {name: divergence(source[name], moments[name]) for name in moments}

        score(UNADAPTED)
        statistics: Weights = {}
        if any(method != CORAL for method in settings.methods):
            for count, statistics in enumerate(session.statistics(batches), start=1):
                if count in settings.curve:
                    # The next statistics do not depend on the moving averages that are restored here.
                    session.restore({**weights, **statistics})
                    found.curve[count] = session.scores().metrics
        for method in settings.methods:
            changed: Weights = {} if method == CORAL else statistics
            if method != ADABN:
                changed = {**changed, **_classifier(session, weights, changed)}
            found.weights[method] = changed
            session.restore({**weights, **changed})
            score(method)
        return found


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


def _classifier(session: DomainSession, weights: Weights, statistics: Weights) -> Weights:
    """Return weights and bias trained by CORAL. statistics: variables to set before target features are read."""
    place = session.built.classifier
    assert place is not None, "checked before"
    session.restore(weights)
    source, labels = session.features(SOURCE)
    session.restore({**weights, **statistics})
    target, _ = session.features(TARGET)
    kernel, bias = classifier(source, labels, target, session.config)
    dtype: Any = weights[place.weights].dtype
    return {place.weights: np.asarray(kernel, dtype), place.bias: np.asarray(bias, dtype)}
