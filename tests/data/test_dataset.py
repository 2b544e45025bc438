"""Normalisation."""

from __future__ import annotations

import numpy as np
import pytest

from runner.data.dataset import Normalisation


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-6), ("float64", 1e-14)])
def test_normalisation_follows_its_formula_per_channel(dtype: str, tolerance: float):
    images = np.random.default_rng(0).integers(0, 256, (4, 2, 3, 5), np.uint8)
    inputs = Normalisation(255.0, (0.25, 0.5), (0.2, 0.4)).apply(images, np.dtype(dtype))
    assert inputs.dtype == dtype
    for channel, (mean, std) in enumerate([(0.25, 0.2), (0.5, 0.4)]):
        expected = (images[:, channel].astype(np.float64) / 255.0 - mean) / std
        np.testing.assert_allclose(inputs[:, channel], expected, rtol=tolerance, atol=tolerance)
