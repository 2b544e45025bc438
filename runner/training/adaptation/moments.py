"""Mean and variance of each neuron over the batches of a domain, and the divergence of two domains.

The source is Li et al. 2016, "Revisiting batch normalization for practical domain adaptation", arXiv 1603.04779
(AdaBN).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]


@dataclass(frozen=True)
class Moments:
    """Mean and mean squared deviation of each neuron, (C,) float64, over equally large batches.

    batches: the number of batches. Before any batch, it is 0, the mean is 0 and the variance is 1.
    """

    mean: Vector
    variance: Vector
    batches: int = 0

    @classmethod
    def none(cls, neurons: int) -> "Moments":
        return cls(np.zeros(neurons), np.ones(neurons))

    def pooled(self, mean: NDArray[np.floating], variance: NDArray[np.floating]) -> "Moments":
        """Return the moments over the earlier batches and another batch, which has the given mean and variance.

        With n batches before and d the difference of the means: mean + d / (n + 1), and
        (n variance + other variance) / (n + 1) + d^2 n / (n + 1)^2 (Chan, Golub and LeVeque 1983). The results are
        exactly the moments of all examples. AdaBN uses this online form (section 3.2).
        """
        n, total = self.batches, self.batches + 1
        difference = np.asarray(mean, np.float64) - self.mean
        within = (n * self.variance + np.asarray(variance, np.float64)) / total
        return Moments(self.mean + difference / total, within + np.square(difference) * (n / total**2), total)


def divergence(one: Moments, other: Moments) -> float:
    """Return the symmetric Kullback-Leibler divergence of the domains, in nats, as the mean over the neurons.

    Each neuron is assumed to be normally distributed in each domain (AdaBN, equation 3). Neurons that are constant in a
    domain are left out, because their divergence is infinite; if no neuron is left, the result is 0.
    """
    varying = (one.variance > 0) & (other.variance > 0)
    if not varying.any():
        return 0.0
    squared = np.square(one.mean - other.mean)[varying]
    first, second = one.variance[varying], other.variance[varying]
    # KL(i, j) + KL(j, i): the logarithms cancel each other.
    return float(np.mean((first + squared) / (2 * second) + (second + squared) / (2 * first) - 1))
