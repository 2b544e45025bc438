"""Constants, copies, layouts and dtypes on a GPU."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from runner.kernels.contract import KernelError, Layout, plain
from runner.kernels.gpu import structural
from runner.kernels.gpu.layouts import channels_last
from tests.kernels.gpu.emulation import EmulatedRuntime
from tests.kernels.gpu.running import drawn, reference, registry_of, require_close, run_op, table_of
from tests.kernels.harness import Shaped
from tests.op_cases import Case

COPIES = ("identity", "convert", "stop_gradient")
DTYPES = ("float32", "float64", "bfloat16", "int32", "int64", "uint8", "bool")


@pytest.mark.parametrize(
    ("op", "case", "dtype"), table_of((*COPIES, "fill", "constant", "cast", "truncate_to_bfloat16"))
)
def test_bits_are_those_of_the_reference(runtime: EmulatedRuntime, op: str, case: Case, dtype: str) -> None:
    inputs, attributes = drawn(case, dtype)
    found = run_op(runtime, op, inputs, attributes, registry=registry_of(runtime, structural))
    require_close(found, reference(op, inputs, attributes))


@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (1, 1, 1, 1), (3, 70, 5, 13), (2, 0, 3, 3), (40, 33, 1, 1)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "bool", "int64"])
@pytest.mark.parametrize("way", ["to", "from", "stays"])
def test_layouts_are_converted(either_order: EmulatedRuntime, shape: tuple[int, ...], dtype: str, way: str) -> None:
    x = (np.random.default_rng(0).standard_normal(shape) * 9).astype(dtype)
    spec = Shaped.of(x)
    offers: list[Layout | None] = {
        "to": [plain(spec), channels_last(spec)],
        "from": [channels_last(spec), plain(spec)],
        "stays": [channels_last(spec)],
    }[way]
    found = run_op(either_order, "convert", [x], {}, offers, registry=registry_of(either_order, structural))
    require_close(found, [x])


def test_layouts_of_others_are_not_converted(runtime: EmulatedRuntime) -> None:
    x = np.zeros((2, 8, 3, 3), "float32")
    with pytest.raises(KernelError, match="no kernel for op 'convert'"):
        run_op(runtime, "convert", [x], {}, [Layout("aBcd8b", x.nbytes)], registry=registry_of(runtime, structural))


@pytest.mark.parametrize("op", COPIES)
def test_copies_keep_channels_last(runtime: EmulatedRuntime, op: str) -> None:
    x = np.random.default_rng(0).standard_normal((2, 3, 4, 5)).astype("float32")
    found = run_op(runtime, op, [x], {}, "nhwc", registry=registry_of(runtime, structural), in_place=op != "convert")
    require_close(found, [x])


@pytest.mark.parametrize(
    ("source", "target"),
    [
        *(("float32", dtype) for dtype in DTYPES),
        *((dtype, "float32") for dtype in DTYPES[1:]),
        *pairwise(DTYPES[1:]),
        ("bool", "float64"),
    ],
)
def test_every_dtype_can_be_cast(runtime: EmulatedRuntime, source: str, target: str) -> None:
    x = np.array([0, 1, 2.75, 200.5, 1.00390625, 3.14159265358979, 65537.0]).astype(source)
    if target == "uint8" and source not in ("uint8", "bool"):
        x = x[:4]
    found = run_op(runtime, "cast", [x], {"dtype": target}, registry=registry_of(runtime, structural))
    require_close(found, reference("cast", [x], {"dtype": target}))


@pytest.mark.parametrize("target", ["int32", "int64", "bool"])
@pytest.mark.parametrize("source", ["float32", "float64"])
def test_floats_that_no_integer_can_be_become_what_they_do_on_the_host(
    runtime: EmulatedRuntime, source: str, target: str
) -> None:
    x = np.array([np.nan, np.inf, -np.inf, 1e30, -1e30, -(2.0**31), -(2.0**63), -0.5, 2.0**31, 2.0**63], source)
    found = run_op(runtime, "cast", [x], {"dtype": target}, registry=registry_of(runtime, structural))
    require_close(found, reference("cast", [x], {"dtype": target}))


def test_a_nan_is_one_after_it_was_truncated(runtime: EmulatedRuntime) -> None:
    words = np.array([0x7F800001, 0xFF80FFFF, 0x7FC00000, 0x7F800000, 0x3F80FFFF, 0x00000001], np.uint32)
    x = words.view(np.float32)
    (found,) = run_op(runtime, "truncate_to_bfloat16", [x], {}, registry=registry_of(runtime, structural))
    (expected,) = reference("truncate_to_bfloat16", [x], {})
    assert found.tobytes() == expected.tobytes()


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (-0.0, "float32"),
        (0.1, "float64"),
        (0.1, "bfloat16"),
        (-3.0, "int64"),
        (float("nan"), "float32"),
        (1e60, "float32"),
    ],
)
@pytest.mark.parametrize("shape", [(), (0, 3), (5, 301)])
def test_any_value_fills_any_shape(runtime: EmulatedRuntime, value: float, dtype: str, shape: tuple[int, ...]) -> None:
    given = {"value": value, "shape": shape, "dtype": dtype}
    with np.errstate(over="ignore"):
        expected = np.full(shape, value, dtype)
    (found,) = run_op(runtime, "fill", [], given, registry=registry_of(runtime, structural))
    assert found.tobytes() == expected.tobytes()
