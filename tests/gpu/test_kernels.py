"""Every GPU kernel of every library equals the reference kernel on all cases, in all dtypes, layouts and precisions."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from runner.kernels.gpu.layouts import CHANNELS_LAST
from tests.gpu.gpus import Gpu
from tests.kernels.gpu.running import DTYPES, able, drawn_for, require_close, run_op
from tests.kernels.harness import reference
from tests.op_cases import CASES, all_cases
from tests.samples import Case

TOLERANCES = {"float64": 1e-10, "bfloat16": 0.02}
"""Relative and absolute tolerances. A kernel may round bfloat16 sums at other points, which changes the last bit."""

TF32_TOLERANCE = 5e-3
"""Relative and absolute tolerance for sums of a few products whose factors are rounded to 10 fraction bits."""

ROUNDED = frozenset(op for op in CASES if op.startswith(("conv2d", "matmul")))
"""Ops that compute products; tf32 rounds the factors."""


def _parameters() -> Iterator[Any]:
    """Yield every case in every dtype, also with channels last if an input has four axes."""
    for op, case, name in all_cases():
        dtypes = DTYPES if any(each.dtype.kind == "f" for each in case.draw(0)) or not case.inputs else DTYPES[:1]
        layouts = (None, CHANNELS_LAST) if any(each.ndim == 4 for each in case.draw(0)) else (None,)
        for dtype in dtypes:
            for layout in layouts:
                yield pytest.param(op, case, dtype, layout, id=f"{name}-{dtype}{'-nhwc' if layout else ''}")


PARAMETERS = list(_parameters())


def check(gpu: Gpu, op: str, case: Case, dtype: str, layout: Any, *, tf32: bool, tolerance: float) -> None:
    """Compare every kernel that accepts the case with the reference."""
    registry, runtime = gpu.registry(tf32=tf32), gpu.opened(tf32)
    runtime.use(0)
    arrays, attributes = drawn_for(op, case, dtype)
    expected = reference(op, arrays, attributes)
    for kernel, _ in able(registry, op, arrays, attributes, layout):
        ran = run_op(runtime, op, arrays, attributes, layout, registry=registry, library=kernel.library)
        require_close(ran, expected, tolerance)


@pytest.mark.small
def test_every_case_has_a_kernel(gpu: Gpu) -> None:
    """The test only asks the kernels whether they accept the nodes. It runs no kernel, so it is quick."""
    registry = gpu.registry()
    for op, case, dtype, layout in (each.values for each in PARAMETERS):
        assert able(registry, op, *drawn_for(op, case, dtype), layout)


@pytest.mark.parametrize(("op", "case", "dtype", "layout"), PARAMETERS)
def test_kernels_agree_with_the_reference(gpu: Gpu, op: str, case: Case, dtype: str, layout: Any) -> None:
    tolerance = TOLERANCES.get(dtype, 4 * case.tolerance)
    check(gpu, op, case, dtype, layout, tf32=False, tolerance=tolerance)


PRODUCTS = [each for each in PARAMETERS if each.values[0] in ROUNDED and each.values[2] == "float32"]


@pytest.mark.gpu_only
@pytest.mark.parametrize(("op", "case", "dtype", "layout"), PRODUCTS)
def test_tf32_products_are_near_the_reference(gpu: Gpu, op: str, case: Case, dtype: str, layout: Any) -> None:
    check(gpu, op, case, dtype, layout, tf32=True, tolerance=TF32_TOLERANCE)


@pytest.mark.gpu_only
@pytest.mark.parametrize("tf32", [False, True])
def test_tf32_rounds_products_only_if_allowed(gpu: Gpu, tf32: bool) -> None:
    """tf32 keeps 10 fraction bits, so the product of 1 + 2**-12 and 1 shows whether the factors were rounded."""
    registry, runtime = gpu.registry(tf32=tf32), gpu.opened(tf32)
    a, b = np.full((256, 256), 1 + 2.0**-12, np.float32), np.eye(256, dtype=np.float32)
    attributes = {"transpose_a": False, "transpose_b": False}
    for kernel, _ in able(registry, "matmul", [a, b], attributes, None):
        (found,) = run_op(runtime, "matmul", [a, b], attributes, registry=registry, library=kernel.library)
        if not tf32 or kernel.library == "cuda":
            np.testing.assert_array_equal(found, a)
        else:
            assert np.abs(found - a).max() <= 2.0**-10
