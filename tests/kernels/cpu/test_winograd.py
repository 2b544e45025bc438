"""Convolutions by minimal filtering: rounding errors, threads, chosen kernels, and refused scratch memory.

``test_table.py`` compares the values with the reference.
"""

from typing import Any

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from runner.engine.run.kernel_table import load_kernels
from runner.kernels.contract import Array, Buffers
from runner.kernels.cpu.machine_code import winograd
from runner.kernels.memory import allocate
from tests.kernels.harness import Shaped, arranged, exact, filled, holding, node_of, run_node

REGISTRY = load_kernels()
GEOMETRY = {"strides": (1, 1), "padding": (1, 1, 1, 1), "dilations": (1, 1), "groups": 1}
X, W = (2, 32, 18, 15), (48, 32, 3, 3)
Y = (2, 48, 18, 15)

pytestmark = pytest.mark.skipif(
    not any(each.library == "llvm" for each in REGISTRY.of("conv2d", "cpu")),
    reason="needs LLVM and a CPU with AVX2 or AVX-512",
)


def normal(*shape: int) -> Array:
    return np.random.default_rng(len(shape) + sum(shape)).standard_normal(shape).astype(np.float32)


OPS: dict[str, tuple[list[Array], dict[str, Any]]] = {
    "conv2d": ([normal(*X), normal(*W)], GEOMETRY),
    "conv2d_input_gradient": ([normal(*Y), normal(*W)], {**GEOMETRY, "input_shape": X}),
    "conv2d_weight_gradient": ([normal(*Y), normal(*X)], {**GEOMETRY, "weight_shape": W, "dtype": "float32"}),
}


def computed(op: str, library: str = "llvm", threads: int = 2) -> Array:
    arrays, attributes = OPS[op]
    with threadpool_limits(threads, user_api="openmp"):
        return run_node(REGISTRY.find(op, "cpu", library), attributes, arrays, registry=REGISTRY).outputs[0]


@pytest.mark.parametrize("op", OPS)
def test_rounding_errors_are_a_millionth_of_the_results(op: str) -> None:
    (wanted,) = exact(op, *OPS[op])
    assert np.sqrt(np.mean((computed(op) - wanted) ** 2)) < 1e-6 * np.sqrt(np.mean(wanted**2))


@pytest.mark.parametrize("op", OPS)
def test_only_the_gradient_of_weights_depends_on_the_number_of_threads(op: str) -> None:
    results = [computed(op, threads=threads) for threads in (1, 2, 3, 7)]
    equal = [np.array_equal(results[0], each) for each in results[1:]]
    assert all(equal) or op == "conv2d_weight_gradient"
    for each in results[1:]:
        np.testing.assert_allclose(each, results[0], rtol=0, atol=3e-6 * np.abs(results[0]).max())


def test_an_infinite_pixel_makes_only_its_tiles_nan() -> None:
    (x, w), geometry = OPS["conv2d"]
    x = x.copy()
    x[1, 3, 9, 6] = np.inf
    y = run_node(REGISTRY.find("conv2d", "cpu", "llvm"), geometry, [x, w], registry=REGISTRY).outputs[0]
    rows, columns = slice(8, 12), slice(4, 8)  # the results that the pixel contributes to, in whole tiles
    assert np.isnan(y[1, :, rows, columns]).all()
    y[1, :, rows, columns] = 0
    assert np.isfinite(y).all()


@pytest.mark.parametrize(
    ("x", "filters", "changes", "library"),
    [
        (X, 48, {}, "llvm"),
        (X, 48, {"padding": (0, 2, 1, 0)}, "llvm"),
        ((2, 32, 18, 15), 40, {}, "onednn"),  # 40 filters do not fill vectors of 16, nor 36 vectors of 8
        ((2, 32, 18, 15), 36, {}, "onednn"),
        ((2, 8, 18, 15), 48, {}, "onednn"),
        (X, 8, {}, "onednn"),
        ((1, 32, 18, 15), 48, {}, "onednn"),  # 20 tiles
        ((32, 32, 2, 5), 48, {}, "onednn"),  # 10 of 32 results lie inside
        (X, 48, {"strides": (2, 1)}, "onednn"),
        (X, 48, {"dilations": (1, 2), "padding": (1, 1, 2, 2)}, "onednn"),
        (X, 48, {"groups": 2}, "onednn"),
        (X, 48, {"size": (3, 5)}, "onednn"),
    ],
)
def test_the_kernel_computes_the_convolutions_for_which_it_is_faster(
    x: tuple[int, ...], filters: int, changes: dict[str, Any], library: str
) -> None:
    size, groups = changes.get("size", (3, 3)), changes.get("groups", 1)
    geometry = {**GEOMETRY, **{key: value for key, value in changes.items() if key != "size"}}
    arrays = [normal(*x), normal(filters, x[1] // groups, *size)]
    node, specs = node_of("conv2d", arrays, geometry), [Shaped.of(each) for each in arrays]
    choice = REGISTRY.choose("conv2d", "cpu", node.attributes, specs, node.outputs, [None, None])
    if filters == 40 and winograd.host().vector_bytes == 32:
        library = "llvm"
    assert choice.kernel.library == library


def test_sums_that_take_too_much_memory_are_left_to_onednn(monkeypatch: pytest.MonkeyPatch) -> None:
    arrays, attributes = OPS["conv2d_weight_gradient"]
    node, specs = node_of("conv2d_weight_gradient", arrays, attributes), [Shaped.of(each) for each in arrays]
    kernel = REGISTRY.find("conv2d_weight_gradient", "cpu", "llvm")
    one_thread = (36 * 32 * 48 + 48) * 4
    with threadpool_limits(3, user_api="openmp"):
        monkeypatch.setattr(winograd, "MOST_SUMS_BYTES", 3 * one_thread)
        assert kernel.arrange(node.attributes, specs, node.outputs, [None, None])
        monkeypatch.setattr(winograd, "MOST_SUMS_BYTES", 3 * one_thread - 1)
        assert kernel.arrange(node.attributes, specs, node.outputs, [None, None]) is None


@pytest.mark.parametrize("op", OPS)
def test_scratch_memory_that_was_planned_for_fewer_threads_is_refused(op: str) -> None:
    arrays, attributes = OPS[op]
    kernel, node = REGISTRY.find(op, "cpu", "llvm"), node_of(op, arrays, attributes)
    with threadpool_limits(1, user_api="openmp"):
        arrangement = arranged(kernel, node.attributes, [Shaped.of(each) for each in arrays], node.outputs)
    outputs = [filled(spec, layout) for spec, layout in zip(node.outputs, arrangement.outputs, strict=True)]
    buffers = Buffers(tuple(map(holding, arrays)), tuple(outputs), allocate(arrangement.scratch_bytes))
    expected = "a convolution with 2 threads needs .* bytes of scratch memory, got .*: planned for another thread count"
    with threadpool_limits(2, user_api="openmp"), pytest.raises(ValueError, match=expected):
        kernel.bind(node.attributes, arrangement, buffers)
