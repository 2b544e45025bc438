"""Whole networks: the losses of the first ten steps are those of processors, within what float32 allows."""

from __future__ import annotations

import numpy as np
import pytest

from runner.engine.kernel_table import load_kernels
from tests.gpu.cards import Card
from tests.gpu.courses import NETWORKS, losses, of_processors

TOLERANCE = 1e-3
"""Relative, of float32 with exact products; the first loss, before any update, is held to a hundredth of it."""

NEAR = {"tf32": 0.02, "bfloat16": 0.05}
"""Relative, of rounded products."""


@pytest.mark.small
@pytest.mark.parametrize("name", ["lenet", "resnet20"])
def test_what_is_written_down_is_what_processors_compute(name: str) -> None:
    known = of_processors(name)
    np.testing.assert_allclose(losses(name, "float32", load_kernels()), known, rtol=TOLERANCE / 10)


@pytest.mark.parametrize("name", sorted(NETWORKS))
def test_losses_fall_by_more_than_is_allowed(name: str) -> None:
    first, *_, last = of_processors(name)
    assert last < first * (1 - 20 * TOLERANCE)


@pytest.mark.card_only
@pytest.mark.parametrize("name", sorted(NETWORKS))
def test_losses_on_a_card_are_those_of_processors(card: Card, name: str) -> None:
    found, known = losses(name, "float32", card.registry(), cards=True), of_processors(name)
    np.testing.assert_allclose(found[0], known[0], rtol=TOLERANCE / 100)
    np.testing.assert_allclose(found, known, rtol=TOLERANCE)


@pytest.mark.card_only
@pytest.mark.parametrize("precision", sorted(NEAR))
@pytest.mark.parametrize("name", sorted(NETWORKS))
def test_losses_of_rounded_products_are_near(card: Card, name: str, precision: str) -> None:
    dtype = "bfloat16" if precision == "bfloat16" else "float32"
    found = losses(name, dtype, card.registry(tf32=precision == "tf32"), cards=True)
    np.testing.assert_allclose(found, of_processors(name), rtol=NEAR[precision])
