"""A classifier for features whose second moments are aligned between two domains (CORAL).

The source is Sun, Feng and Saenko 2016, "Return of frustratingly easy domain adaptation", algorithm 1.
"""

from collections.abc import Mapping
from contextlib import closing
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runner.config.groups import GROUPS
from runner.engine.compile.program import SAVE
from runner.engine.graph import local_cluster, state_dtype
from runner.engine.run.kernel_table import kernels_for
from runner.engine.run.local_session import LocalSession
from runner.engine.run.step_driver import bind
from runner.fields import Field
from runner.models.mlp import Mlp
from runner.optimizers.lbfgs import Lbfgs
from runner.strategies.base import Workload

ITERATIONS = 100
WEIGHT_DECAY = 1e-2
"""Iterations of L-BFGS and weight decay of the classifier; the paper states neither."""

_ONE_DEVICE = "single"  # the option of ``parallelism`` that evaluates a batch several times on one device
Matrix = NDArray[np.float64]


def _scaled(features: Matrix) -> tuple[Matrix, Matrix, Matrix]:
    """Return features (N, F) scaled to mean 0 and deviation 1, their mean, and their deviation (1 if constant)."""
    mean = features.mean(axis=0)
    # The computed deviation of a constant need not be 0, because the mean is rounded.
    deviation = np.where(np.ptp(features, axis=0) > 0, features.std(axis=0), 1.0)
    return (features - mean) / deviation, mean, deviation


def aligned(source: Matrix, target: Matrix) -> Matrix:
    """Return the source features (N, F) with the covariance of the target features (M, F).

    Both have mean 0. With C = cov(X) + I of each domain, the result is X_source C_source^(-1/2) C_target^(1/2).
    """
    whitened = source @ _power(_covariance(source), -0.5)
    return np.asarray(whitened @ _power(_covariance(target), 0.5))


def _covariance(features: Matrix) -> Matrix:
    return np.cov(features, rowvar=False).reshape(features.shape[1], -1) + np.eye(features.shape[1])


def _power(symmetric: Matrix, exponent: float) -> Matrix:
    """Return a power of a symmetric matrix with positive eigenvalues."""
    values, vectors = np.linalg.eigh(symmetric)
    return np.asarray((vectors * values**exponent) @ vectors.T)


def classifier(source: Matrix, labels: NDArray[np.int64], target: Matrix, config: Any) -> tuple[Matrix, Matrix]:
    """Return weights (F, C) and bias (C,) of a dense layer for target features, trained on aligned source features.

    source: (N, F). labels: (N,), of the source. target: (M, F). Features are first scaled to mean 0 and deviation 1 in
    each domain. The returned layer includes the scaling of the target, so it takes unscaled target features.
    """
    scaled, mean, deviation = _scaled(target)
    weights, bias = _trained(aligned(_scaled(source)[0], scaled), labels, config)
    weights = weights / deviation[:, None]
    return weights, bias - mean @ weights


def _trained(features: Matrix, labels: NDArray[np.int64], config: Any) -> tuple[Matrix, Matrix]:
    """Minimise the loss of the task over all examples with L-BFGS; return the weights and the bias of a dense layer."""
    dtype = state_dtype(config.precision)
    fields = {**config.data.facts().fields, "x": Field((features.shape[1],))}
    workload = Workload(
        network=config.task.network(Mlp(hidden=[]), fields),
        optimizer=Lbfgs(weight_decay=WEIGHT_DECAY),
        fields={name: fields[name] for name in config.task.fields},
        dtype=dtype,
        seed=config.seed,
        batch_size=len(features),
        eval_batch_size=1,
    )
    program, cluster = GROUPS["parallelism"][_ONE_DEVICE]().build(workload), local_cluster(1)
    batch = _WholeBatch(features.astype(dtype), labels)
    with closing(LocalSession(program, cluster, kernels_for(cluster.devices), batch)) as session:
        session.run("init")
        driver = bind(program.step_driver, session)
        for step in range(ITERATIONS):
            driver.update(step, np.asarray(1.0, dtype))
        found = session.run(SAVE)
        return found["fc1/weights"].astype(np.float64), found["fc1/bias"].astype(np.float64)


class _WholeBatch:
    """An input source whose batches all hold the same examples."""

    def __init__(self, features: NDArray[Any], labels: NDArray[np.int64]) -> None:
        count = len(features)
        index, mask = np.arange(count, dtype=np.int64), np.ones(count, features.dtype)
        self._fields = {"x": features, "y": labels, "index": index, "mask": mask}

    def read(self, split: str, step: int, lo: int, hi: int) -> Mapping[str, NDArray[Any]]:
        return {name: values[lo:hi] for name, values in self._fields.items()}
