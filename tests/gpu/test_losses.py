"""Whole networks: the losses of the first ten steps equal those of CPUs up to float32 rounding."""

import numpy as np
import pytest

from runner.engine.run.kernel_table import load_kernels
from tests.gpu.courses import NETWORKS, losses, of_cpus
from tests.gpu.gpus import Gpu

TOLERANCE = 1e-3
"""Relative, of float32 with exact products; for the first loss, before any update, a hundredth of it."""

NEAR = {"tf32": 0.02, "bfloat16": 0.05}
"""Relative, of rounded products."""


@pytest.mark.small
@pytest.mark.parametrize("name", ["lenet", "resnet20"])
def test_the_stored_losses_are_those_of_cpus(name: str) -> None:
    known = of_cpus(name)
    np.testing.assert_allclose(losses(name, "float32", load_kernels()), known, rtol=TOLERANCE / 10)


@pytest.mark.parametrize("name", sorted(NETWORKS))
def test_losses_fall_by_more_than_is_allowed(name: str) -> None:
    first, *_, last = of_cpus(name)
    assert last < first * (1 - 20 * TOLERANCE)


@pytest.mark.gpu_only
@pytest.mark.parametrize("name", sorted(NETWORKS))
def test_losses_on_a_gpu_are_those_of_cpus(gpu: Gpu, name: str) -> None:
    found, known = losses(name, "float32", gpu.registry(), gpus=True), of_cpus(name)
    np.testing.assert_allclose(found[0], known[0], rtol=TOLERANCE / 100)
    np.testing.assert_allclose(found, known, rtol=TOLERANCE)


@pytest.mark.gpu_only
@pytest.mark.parametrize("precision", sorted(NEAR))
@pytest.mark.parametrize("name", sorted(NETWORKS))
def test_losses_of_rounded_products_are_near(gpu: Gpu, name: str, precision: str) -> None:
    dtype = "bfloat16" if precision == "bfloat16" else "float32"
    found = losses(name, dtype, gpu.registry(tf32=precision == "tf32"), gpus=True)
    np.testing.assert_allclose(found, of_cpus(name), rtol=NEAR[precision])
