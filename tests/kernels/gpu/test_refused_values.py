"""An index or a label out of range: the GPU finds the first one, and the message is that of the reference kernel."""

from typing import Any

import numpy as np
import pytest

from runner.kernels.gpu import rows
from tests.kernels.gpu.emulation import EmulatedRuntime
from tests.kernels.gpu.running import Array, reference, registry_of, run_op

SCORES = np.zeros((7, 4), "float32")
LABELS = np.array([0, 1, 2, 4, 3, 36, 1])
INDICES = np.array([[0, 3, 1], [2, -7, 4]])
MANY = np.zeros(1000, "int64")
MANY[[300, 556, 999]] = 8, 9, 10


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize(
    ("op", "inputs", "attributes", "index", "place"),
    [
        ("gather", [SCORES[:4], INDICES], {}, -7, "1, 1"),
        ("scatter_add", [INDICES, np.zeros((2, 3, 2), "float32")], {"rows": 4}, -7, "1, 1"),
        ("one_hot", [INDICES], {"depth": 4, "dtype": "float32"}, -7, "1, 1"),
        ("gather", [SCORES[:4], MANY], {}, 8, "300"),
        ("softmax_cross_entropy", [SCORES, LABELS], {}, 4, "3"),
        ("softmax_cross_entropy", [SCORES, LABELS - 1], {}, -1, "0"),
        ("softmax_cross_entropy_gradient", [SCORES, LABELS, SCORES[:, 0]], {}, 4, "3"),
        ("softmax_cross_entropy_gradient", [SCORES, LABELS - 1, SCORES[:, 0]], {}, -1, "0"),
    ],
)
def test_the_first_index_out_of_range_is_named(
    runtime: EmulatedRuntime,
    op: str,
    inputs: list[Array],
    attributes: dict[str, Any],
    index: int,
    place: str,
    dtype: str,
) -> None:
    inputs = [each.astype(dtype) if each.dtype == "int64" else each for each in inputs]
    expected = rf"op '{op}': index {index} at \[{place}\] is outside 0\.\.3$"
    with pytest.raises(RuntimeError, match=f"^IndexError: {expected}"):
        run_op(runtime, op, inputs, attributes, registry=registry_of(runtime, rows))
    with pytest.raises(IndexError, match=f"^{expected}"):
        reference(op, inputs, attributes)
