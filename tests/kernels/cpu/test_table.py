"""Every fast CPU kernel agrees with the float64 reference in all dtypes and layouts, and with outputs in place.

Element-wise programs are tested in ``test_elementwise.py``, conversions of layouts in ``onednn/test_values.py``, copies
in ``test_copies.py``. The values here are finite, because fast kernels may spread NaN further than the reference does.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

from runner.engine.run.kernel_table import load_kernels
from runner.kernels.contract import FLOATS, Arrangement, Array, Kernel
from runner.kernels.elementwise import FUNCTIONS
from tests.kernels.cpu.layout_cases import LAYOUT_CASES, WIDENED
from tests.kernels.cpu.onednn.checking import IMAGE_TAGS, assert_close, assert_padding_is_zero, layout, library
from tests.kernels.gpu.running import drawn_for
from tests.kernels.harness import Shaped, exact, node_of, run
from tests.kernels.special_cases import SPECIAL
from tests.op_cases import CASES

REGISTRY = load_kernels()
ELSEWHERE = {*FUNCTIONS, "elementwise", "convert"}
KERNELS = [
    pytest.param(kernel, dtype, id=f"{op}-{kernel.library}-{dtype}", marks=marks)
    for op in CASES
    for kernel in REGISTRY.of(op, "cpu")
    for dtype, marks in (("float32", ()), ("bfloat16", pytest.mark.slow))
    if kernel.library != "numpy" and dtype in kernel.dtypes and op not in ELSEWHERE
]
EXACT = ("concat", "split", "slice", "pad", "broadcast_to", "max_pool", "fill", "cast")
"""Prefixes of the names of ops without arithmetic, whose results are exact."""

TOLERANCES = {"float32": 1e-5, "bfloat16": 2.0**-7}
"""Tolerance relative to the largest magnitude of a result, by the dtype of the result."""

FILTERS = {"conv2d": 1, "conv2d_fused": 1, "conv2d_input_gradient": 1}
"""Op -> index of the input that holds filters instead of images."""


@pytest.mark.parametrize(("kernel", "dtype"), KERNELS)
def test_a_kernel_gives_the_results_of_the_reference(kernel: Kernel, dtype: str) -> None:
    op, compared = kernel.op, 0
    widened = WIDENED.get(op, []) if dtype == "bfloat16" else []
    for number, case in enumerate([*CASES[op], *SPECIAL.get(op, []), *LAYOUT_CASES.get(op, []), *widened]):
        with np.errstate(all="ignore"):  # as the executor does in every step
            arrays, attributes = drawn_for(op, case, dtype)
            try:
                compared += check(kernel, attributes, arrays) if is_finite(arrays) else 0
            except Exception as error:
                error.add_note(f"case {number} of {op}: {attributes} for {[Shaped.of(each) for each in arrays]}")
                raise
    assert compared or dtype not in library().dtypes, "the kernel takes none of the cases"


def is_finite(arrays: Iterable[Array]) -> bool:
    """Return whether all floats are finite."""
    return all(each.dtype.kind not in "fV" or np.isfinite(each.astype(np.float64)).all() for each in arrays)


def check(kernel: Kernel, attributes: dict[str, Any], arrays: list[Array]) -> int:
    """Compare a case in every layout that the kernel chooses; return the number of these layouts."""
    op, node = kernel.op, node_of(kernel.op, arrays, attributes)
    inputs, outputs = [Shaped.of(each) for each in arrays], node.outputs
    compared: set[Arrangement] = set()
    if not FLOATS.intersection(spec.dtype for spec in (*inputs, *outputs)) <= kernel.dtypes:
        return 0
    laid_out = TOLERANCES.keys() & library().dtypes
    images = [len(spec.shape) == 4 and spec.dtype in laid_out and FILTERS.get(op) != k for k, spec in enumerate(inputs)]
    wanted = None
    for tag in IMAGE_TAGS if any(images) else ("",):
        offered = [layout(spec, tag if image else "") for spec, image in zip(inputs, images, strict=True)]
        arrangement = kernel.arrange(node.attributes, inputs, outputs, offered)
        if arrangement is None or arrangement in compared:
            continue
        wanted = wanted or exact(op, arrays, attributes)
        if not is_finite(each.astype(spec.dtype) for each, spec in zip(wanted, outputs, strict=True)):
            break
        for in_place in (False, True) if arrangement.in_place else (False,):
            ran = run(kernel, node.attributes, inputs, outputs, arrays, offered, registry=REGISTRY, in_place=in_place)
            for found, truth, operand in zip(ran.outputs, wanted, ran.outputs_in_memory, strict=True):
                if found.size:
                    rounded = truth.astype(found.dtype).astype(truth.dtype) if op.startswith(EXACT) else truth
                    tolerance = 0.0 if op.startswith(EXACT) else TOLERANCES.get(found.dtype.name, 0.0)
                    assert_close(found, rounded, tolerance)
                if operand.spec.dtype in TOLERANCES:
                    assert_padding_is_zero(operand)
        compared.add(arrangement)
    return len(compared)
