"""Local response normalisation on a GPU against the reference kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from runner.kernels.gpu import local_response_normalization
from runner.kernels.gpu.layouts import CHANNELS_LAST
from tests.kernels.gpu.emulation import EmulatedRuntime
from tests.kernels.gpu.running import DTYPES, Array, drawn, reference, registry_of, require_close, run_op
from tests.op_cases import CASES

OPS = ("channel_window_sum", "local_response_normalization", "local_response_normalization_gradient")
TOLERANCE = {"float32": 1e-5, "float64": 1e-12, "bfloat16": 2**-7}
RESPONSE = {"size": 5, "alpha": 0.3, "beta": 0.75, "k": 2.0, "divide_by_size": True}


def _check(runtime: EmulatedRuntime, op: str, inputs: list[Array], attributes: dict[str, Any], layouts: Any) -> None:
    registry = registry_of(runtime, local_response_normalization)
    found = run_op(runtime, op, inputs, attributes, layouts, registry=registry)
    require_close(found, reference(op, inputs, attributes), TOLERANCE[found[0].dtype.name])


@pytest.mark.parametrize("layouts", [None, CHANNELS_LAST])
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_table(runtime: EmulatedRuntime, dtype: str, layouts: str | None) -> None:
    for op in OPS:
        for case in CASES[op]:
            _check(runtime, op, *drawn(case, dtype), layouts)


@pytest.mark.parametrize(
    ("shape", "size"),
    [((2, 40, 7, 5), 5), ((3, 2, 5, 4), 9), ((70, 33), 3), ((2, 5, 3, 2, 4), 5), ((0, 4, 2, 2), 5), ((2, 0, 3, 3), 5)],
)
@pytest.mark.parametrize("layouts", [None, CHANNELS_LAST])
def test_other_shapes(runtime: EmulatedRuntime, shape: tuple[int, ...], size: int, layouts: str | None) -> None:
    rng = np.random.default_rng(0)
    x, dy = (rng.standard_normal(shape).astype(np.float32) for _ in range(2))
    response = {**RESPONSE, "size": size}
    _check(runtime, OPS[0], [x], {"size": size}, layouts)
    _check(runtime, OPS[1], [x], response, layouts)
    _check(runtime, OPS[2], [x, dy], response, layouts)
