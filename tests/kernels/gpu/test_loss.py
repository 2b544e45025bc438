"""Cross-entropies on an emulated GPU against the reference kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from runner.kernels.gpu import loss
from runner.kernels.gpu.layouts import CHANNELS_LAST
from tests.kernels.gpu.emulation import EmulatedRuntime
from tests.kernels.gpu.running import DTYPES, drawn, reference, registry_of, require_close, run_op
from tests.op_cases import CASES

OPS = ("softmax_cross_entropy", "softmax_cross_entropy_gradient", "sigmoid_cross_entropy")
TOLERANCES = {"float32": 2e-6, "float64": 1e-14, "bfloat16": 1e-2}


def batch(rows: int, classes: int, op: str) -> list[np.ndarray[Any, Any]]:
    """Inputs of one of the two ops with labels."""
    rng = np.random.default_rng(5)
    scores = rng.normal(0, 5, (rows, classes)).astype("float32")
    labels = rng.integers(0, classes, rows)
    return [scores, labels] + [rng.standard_normal(rows).astype("float32")] * op.endswith("gradient")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", OPS)
def test_the_cases_of_the_table(runtime: EmulatedRuntime, op: str, dtype: str) -> None:
    registry = registry_of(runtime, loss)
    for case in CASES[op]:
        inputs, attributes = drawn(case, dtype)
        found = run_op(runtime, op, inputs, attributes, registry=registry)
        require_close(found, reference(op, inputs, attributes), TOLERANCES[dtype])


@pytest.mark.parametrize("shape", [(19, 10), (3, 1000), (0, 3)])
@pytest.mark.parametrize("op", OPS[:2])
def test_few_and_many_classes(either_order: EmulatedRuntime, op: str, shape: tuple[int, int]) -> None:
    inputs = batch(*shape, op)
    found = run_op(either_order, op, inputs, {}, registry=registry_of(either_order, loss))
    require_close(found, reference(op, inputs), 4e-6)


def test_a_label_far_more_probable_than_the_others_costs_little_but_not_nothing(runtime: EmulatedRuntime) -> None:
    logits = np.array([[40.0, 0.0, 0.0]], "float32")
    found, _ = run_op(
        runtime, "softmax_cross_entropy", [logits, np.array([0])], {}, registry=registry_of(runtime, loss)
    )
    np.testing.assert_allclose(found, [2 * np.exp(-40.0)], rtol=0.05, atol=2e-16)


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize(("label", "place"), [(4, 3), (-1, 0)])
@pytest.mark.parametrize("op", OPS[:2])
def test_the_first_label_that_is_no_class_is_named(
    either_order: EmulatedRuntime, op: str, label: int, place: int, dtype: str
) -> None:
    scores, labels, *others = batch(7, 4, op)
    labels = labels.astype(dtype)
    labels[[place, 5]] = label, 9 * label
    expected = rf"^IndexError: op '{op}': index {label} at \[{place}\] is outside 0\.\.3$"
    with pytest.raises(RuntimeError, match=expected):
        run_op(either_order, op, [scores, labels, *others], {}, registry=registry_of(either_order, loss))
    with pytest.raises(IndexError, match=expected.replace("IndexError: ", "")):
        reference(op, [scores, labels, *others])


def test_the_gradient_may_lie_where_the_probabilities_do(runtime: EmulatedRuntime) -> None:
    inputs = batch(3, 5, OPS[1])
    found = run_op(runtime, OPS[1], inputs, {}, registry=registry_of(runtime, loss), in_place=True)
    require_close(found, reference(OPS[1], inputs), 1e-6)


@pytest.mark.parametrize("layouts", [None, CHANNELS_LAST])
def test_sigmoids_of_images(runtime: EmulatedRuntime, layouts: str | None) -> None:
    rng = np.random.default_rng(5)
    inputs = [rng.normal(0, 20, (2, 3, 4, 5)).astype("float32"), rng.random((2, 3, 4, 5)).astype("float32")]
    inputs[0][0, 0, 0, :3] = np.nan, 0, 200
    found = run_op(runtime, OPS[2], inputs, {}, layouts, registry=registry_of(runtime, loss))
    require_close(found, reference(OPS[2], inputs), 2e-6)
