"""Every GPU kernel of every library, on the emulated GPU, agrees with the reference in all dtypes and layouts.

The fake cuBLAS computes with NumPy and the fake cuDNN with the reference kernels; see ``libraries.py``.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runner.kernels.gpu import cublas
from runner.kernels.gpu.layouts import CHANNELS_LAST
from runner.kernels.gpu.loading import MODULES
from runner.kernels.registry import Registry
from tests.kernels.gpu.libraries import GpuWithLibraries
from tests.kernels.gpu.running import DTYPES, able, drawn_for, registry_of, require_close, run_op
from tests.kernels.harness import reference
from tests.kernels.special_cases import SPECIAL
from tests.op_cases import CASES
from tests.samples import PRECISION, Case

TOLERANCES: dict[tuple[str, ...], tuple[float, float, float]] = {
    ("conv2d",): (2e-5, 1e-12, 2e-2),
    ("matmul",): (2e-5, 1e-12, 2e-2),
    ("batch_norm",): (2e-5, 1e-12, 2**-7),
    ("channel_window_sum", "local_response"): (1e-5, 1e-12, 2**-7),
    ("softmax", "log_softmax", "sigmoid_cross_entropy"): (4e-6, 1e-14, 1e-2),
    ("reduce_sum", "reduce_mean", "sum_of_squares"): (2e-5, 1e-13, 1e-2),
    ("exp", "log", "log1p", "sigmoid", "tanh", "pow", "random_normal"): (1e-6, 1e-13, 2**-7),
    ("erf",): (0.0, 1e-15, 0.0),
    ("lstm",): (2e-5, 1e-12, 4e-2),
    ("max_pool", "avg_pool"): (1e-6, 1e-14, 1e-30),
}
"""Prefixes of the names of ops -> relative and absolute tolerance in each of DTYPES. Other ops must match bit for bit.

Pooling adds in the order of the reference and rounds each sum to bfloat16 once.
"""


def tolerance_of(op: str, dtype: str) -> float:
    """Return the tolerance for the longest prefix in TOLERANCES with which ``op`` begins, or 0."""
    names = [(name, found) for group, found in TOLERANCES.items() for name in group if op.startswith(name)]
    _, tolerances = max(names, key=lambda each: len(each[0]), default=("", (0.0, 0.0, 0.0)))
    return tolerances[DTYPES.index(dtype)] if dtype in DTYPES else 0.0


def dtypes_of(case: Case, drawn: list[str]) -> tuple[str, ...]:
    """Return the dtypes of a case: all float dtypes, unless the drawn inputs have a fixed dtype."""
    if "float64" in drawn or PRECISION in case.attributes.values():
        return DTYPES
    return ("float32",) if "float32" in drawn or not drawn else (drawn[0],)


def _parameters() -> Iterator[Any]:
    """Yield each op in each dtype of its cases, also with channels last if a case has an input of four axes."""
    for op in CASES:
        of_dtype: dict[str, list[Case]] = {}
        of_image: dict[str, list[Case]] = {}
        for case in (*CASES[op], *SPECIAL.get(op, ())):
            drawn = case.draw(0)
            for dtype in dtypes_of(case, [each.dtype.name for each in drawn]):
                of_dtype.setdefault(dtype, []).append(case)
                if any(each.ndim == 4 for each in drawn):
                    of_image.setdefault(dtype, []).append(case)
        for dtype, cases in sorted(of_dtype.items()):
            marks = [] if dtype == "float32" else [pytest.mark.slow]
            yield pytest.param(op, cases, dtype, None, id=f"{op}-{dtype}", marks=marks)
            if dtype in of_image:
                yield pytest.param(op, of_image[dtype], dtype, CHANNELS_LAST, id=f"{op}-{dtype}-nhwc", marks=marks)


@pytest.fixture
def gpu(compiled_sources: Path, monkeypatch: pytest.MonkeyPatch) -> GpuWithLibraries:
    """Return an emulated GPU with all libraries; cuBLAS requests little memory."""
    monkeypatch.setattr(cublas, "WORKSPACE_BYTES", 1000)
    return GpuWithLibraries(compiled_sources)


@pytest.mark.parametrize(("op", "cases", "dtype", "layout"), list(_parameters()))
def test_a_kernel_gives_the_results_of_the_reference(
    gpu: GpuWithLibraries, op: str, cases: list[Case], dtype: str, layout: str | None
) -> None:
    registry = registry_of(gpu, *MODULES)
    for number, case in enumerate(cases):
        try:
            check(gpu, registry, op, case, dtype, layout)
        except Exception as error:
            error.add_note(f"case {number} of {op} in {dtype}: {case.attributes}")
            raise


def check(gpu: GpuWithLibraries, registry: Registry, op: str, case: Case, dtype: str, layout: str | None) -> None:
    """Compare each kernel that accepts a case to the reference, also with outputs that share the memory of inputs.

    Kernels that choose plain layouts although channels are last are compared only without ``layout``.
    """
    with np.errstate(all="ignore"):
        arrays, attributes = drawn_for(op, case, dtype)
    expected = reference(op, arrays, attributes)
    for kernel, arrangement in able(registry, op, arrays, attributes, layout):
        if layout and all(each.is_plain for each in (*arrangement.inputs, *arrangement.outputs)):
            continue
        for in_place in (False, True) if arrangement.in_place else (False,):
            found = run_op(
                gpu, op, arrays, attributes, layout, registry=registry, library=kernel.library, in_place=in_place
            )
            require_close(found, expected, tolerance_of(op, dtype))
