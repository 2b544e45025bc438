"""Element-wise programs on a GPU: to the bit what the reference kernels give, in any layout, broadcast or not."""

from __future__ import annotations

import numpy as np
import pytest

from runner.kernels.contract import KernelError
from runner.kernels.elementwise import FUNCTIONS
from runner.kernels.gpu import elementwise
from runner.kernels.gpu.layouts import channels_last
from tests.kernels.gpu.emulation import EmulatedRuntime
from tests.kernels.gpu.running import (
    Array,
    Offers,
    drawn,
    node_of,
    reference,
    registry_of,
    require_close,
    run_op,
    table_of,
)
from tests.op_cases import Case

OPS = ("elementwise", "add_n", *FUNCTIONS)
SPECIAL = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 1e-40, 3.4e38])


def random(seed: int, *shape: int, dtype: str = "float32") -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def check(
    runtime: EmulatedRuntime,
    op: str,
    inputs: list[Array],
    attributes: dict[str, object] | None = None,
    layouts: Offers = None,
    *,
    in_place: bool = False,
) -> None:
    """The kernel gives the bits of the reference."""
    found = run_op(
        runtime, op, inputs, attributes, layouts, registry=registry_of(runtime, elementwise), in_place=in_place
    )
    require_close(found, reference(op, inputs, attributes))


@pytest.mark.parametrize(("op", "case", "dtype"), table_of(OPS))
def test_bits_are_those_of_the_reference(runtime: EmulatedRuntime, op: str, case: Case, dtype: str) -> None:
    check(runtime, op, *drawn(case, dtype))


@pytest.mark.parametrize("op", sorted(FUNCTIONS))
def test_special_values_go_where_numpy_lets_them(runtime: EmulatedRuntime, op: str) -> None:
    values = SPECIAL.astype("float32")
    pairs = [np.repeat(values, len(values)), np.tile(values, len(values))]
    check(runtime, op, pairs[: FUNCTIONS[op][0]])


@pytest.mark.parametrize("op", ["add", "sub", "mul", "neg", "square", "abs", "maximum", "minimum"])
@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_integers_wrap_around(runtime: EmulatedRuntime, op: str, dtype: str) -> None:
    limits = np.iinfo(dtype)
    values = np.array([0, 1, -1, limits.max, limits.min, 123456789], dtype)
    pairs = [np.repeat(values, len(values)), np.tile(values, len(values))]
    check(runtime, op, pairs[: FUNCTIONS[op][0]])


@pytest.mark.parametrize("count", [0, 1, 3, 4, 255, 1023, 40_001])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_any_number_of_elements(runtime: EmulatedRuntime, count: int, dtype: str) -> None:
    check(runtime, "sub", [random(0, count, dtype=dtype), random(1, count, dtype=dtype)])


@pytest.mark.parametrize(
    "shapes",
    [
        [(2, 3, 4, 5), (1, 3, 1, 1)],
        [(2, 3, 4, 5), (5,)],
        [(2, 1, 4, 1), (3, 1, 5)],
        [(2, 3, 4, 5), (2, 3, 4, 5)],
        [(2, 3, 4, 5), ()],
        [(0, 3, 4, 5), (1, 3, 1, 1)],
        [(0, 1), (1, 5)],
        [(2, 1, 2, 1, 2, 1, 2, 1), (1, 3, 1, 3, 1, 3, 1, 3)],
    ],
    ids=str,
)
@pytest.mark.parametrize("layouts", [None, "nhwc"])
def test_any_broadcast_in_either_layout(
    runtime: EmulatedRuntime, shapes: list[tuple[int, ...]], layouts: str | None
) -> None:
    check(runtime, "sub", [random(seed, *shape) for seed, shape in enumerate(shapes)], None, layouts)
    check(runtime, "sub", [random(seed, *shape) for seed, shape in enumerate(reversed(shapes))], None, layouts)


def test_more_axes_than_eight_are_refused(runtime: EmulatedRuntime) -> None:
    with pytest.raises(KernelError, match="no kernel for op 'sub'"):
        check(runtime, "sub", [random(0, *(2, 1) * 5), random(1, *(1, 2) * 5)])


def test_neighbouring_axes_count_as_one(runtime: EmulatedRuntime) -> None:
    check(runtime, "sub", [random(0, *(2,) * 10), random(1, 2, *(1,) * 9)])


@pytest.mark.parametrize("op", ["relu", "sub"])
def test_channels_last_stay_so(runtime: EmulatedRuntime, op: str) -> None:
    inputs = [random(seed, 2, 3, 4, 5) for seed in range(FUNCTIONS[op][0])]
    kernel = registry_of(runtime, elementwise).find(op, "gpu", "cuda")
    node = node_of(op, inputs, {})
    from_one = [None, channels_last(node.outputs[0])][-len(inputs) :]
    arrangement = kernel.arrange({}, node.outputs * len(inputs), node.outputs, from_one)
    assert arrangement is not None
    assert {layout.tag for layout in (*arrangement.inputs, *arrangement.outputs)} == {"nhwc"}


def test_outputs_may_take_the_place_of_inputs(runtime: EmulatedRuntime) -> None:
    inputs = [random(seed, 6, 7) for seed in range(2)]
    program = {"program": "mul 0 #0.9; sub 2 1; add 1 3", "outputs": (3,)}
    check(runtime, "elementwise", inputs, program, in_place=True)


def test_outputs_do_not_take_the_place_of_what_is_broadcast(runtime: EmulatedRuntime) -> None:
    check(runtime, "sub", [random(0, 6, 7), random(1, 7)], in_place=True)


def test_literals_are_exact(runtime: EmulatedRuntime) -> None:
    numbers = (0.1, -1e-45, 3.4028235677973366e38, float("inf"), float("-inf"), -0.0)
    for dtype in ("float32", "float64"):
        program = "; ".join(f"mul 0 #{number!r}" for number in numbers)
        outputs = tuple(range(1, 1 + len(numbers)))
        check(runtime, "elementwise", [np.array([1.0, -3.0], dtype)], {"program": program, "outputs": outputs})


def test_steps_are_not_contracted(runtime: EmulatedRuntime) -> None:
    x = random(0, 4096)
    program = {"program": "mul 0 0; sub 1 #0.333; mul 2 0; add 3 1", "outputs": (4,)}
    check(runtime, "elementwise", [x], program)


def test_eight_byte_places_find_the_same_elements(runtime: EmulatedRuntime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runner.kernels.gpu.element_kernels._SMALL", 0)
    check(runtime, "sub", [random(0, 2, 3, 4, 5), random(1, 1, 3, 1, 1)])
