"""Convolutions by minimal filtering: rounding errors, threads, chosen kernels, and refused scratch memory.

``test_table.py`` compares the values with the reference.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from runner.engine.run.kernel_table import load_kernels
from runner.kernels.contract import Array, Buffers, native_calls
from runner.kernels.cpu import loading
from runner.kernels.cpu.machine_code import threads, winograd
from runner.kernels.cpu.machine_code.compiler import host
from runner.kernels.cpu.machine_code.winograd_tiles import SIZES
from runner.kernels.memory import allocate
from runner.kernels.registry import Registry
from tests.kernels.harness import Shaped, arranged, exact, filled, holding, node_of, run_node

REGISTRY = load_kernels()
GEOMETRY = {"strides": (1, 1), "padding": (1, 1, 1, 1), "dilations": (1, 1), "groups": 1}
X, W, Y = (8, 32, 18, 15), (48, 32, 3, 3), (8, 48, 18, 15)
TILES = 8 * 5 * 4

pytestmark = pytest.mark.skipif(
    not any(each.library == "llvm" for each in REGISTRY.of("conv2d", "cpu")),
    reason="needs oneDNN, LLVM and a CPU with AVX2 or AVX-512",
)


def normal(*shape: int) -> Array:
    return np.random.default_rng(len(shape) + sum(shape)).standard_normal(shape).astype(np.float32)


TO_WEIGHT = {**GEOMETRY, "weight_shape": W, "dtype": "float32"}
OPS: dict[str, tuple[list[Array], dict[str, Any]]] = {
    "conv2d": ([normal(*X), normal(*W)], GEOMETRY),
    "conv2d_input_gradient": ([normal(*Y), normal(*W)], {**GEOMETRY, "input_shape": X}),
    "conv2d_weight_gradient": ([normal(*Y), normal(*X)], TO_WEIGHT),
    "conv2d_weight_bias_gradient": ([normal(*Y), normal(*X)], TO_WEIGHT),
}


def computed(op: str, thread_count: int = 2) -> list[Array]:
    arrays, attributes = OPS[op]
    with threadpool_limits(thread_count, user_api="openmp"):
        return run_node(REGISTRY.find(op, "cpu", "llvm"), attributes, arrays, registry=REGISTRY).outputs


@pytest.mark.parametrize("op", OPS)
def test_rounding_errors_are_a_millionth_of_the_results(op: str) -> None:
    for came, wanted in zip(computed(op), exact(op, *OPS[op]), strict=True):
        assert np.sqrt(np.mean((came - wanted) ** 2)) < 1e-6 * np.sqrt(np.mean(wanted**2))


@pytest.mark.parametrize("op", OPS)
def test_only_gradients_of_weights_and_biases_depend_on_the_number_of_threads(
    op: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(winograd, "FEWEST_TILES", 0)
    monkeypatch.setattr(winograd, "MOST_TILES_PER_RESULT", 100)
    expected, *others = [computed(op, count) for count in (1, 2, 3, 7, 107)]  # 80 of 107 threads have tiles
    for outputs in others:
        for came, wanted in zip(outputs, expected, strict=True):
            assert "weight" in op or np.array_equal(came, wanted)
            np.testing.assert_allclose(came, wanted, rtol=0, atol=3e-6 * np.abs(wanted).max())


def test_an_infinite_pixel_changes_only_the_tiles_that_read_it() -> None:
    (x, w), geometry = OPS["conv2d"]
    x = x.copy()
    x[1, 3, 8, 4] = np.inf
    y = run_node(REGISTRY.find("conv2d", "cpu", "llvm"), geometry, [x, w], registry=REGISTRY).outputs[0]
    assert not np.isfinite(y[1, :, 7:10, 3:6]).any()
    y[1, :, 4:12, 0:8] = 0
    assert np.isfinite(y).all()


CHOICES: list[tuple[tuple[int, ...], int, dict[str, Any], str]] = [
    # x, number of filters, changes, library for one thread and vectors of 16 numbers
    (X, 48, {}, "llvm"),
    (X, 16, {}, "llvm"),
    (X, 48, {"padding": (0, 2, 1, 0)}, "llvm"),
    (X, 40, {}, "onednn"),  # 40 filters do not fill vectors
    ((8, 16, 18, 15), 48, {}, "llvm"),
    ((8, 24, 18, 15), 48, {}, "onednn"),
    ((8, 8, 18, 15), 48, {}, "onednn"),
    (X, 8, {}, "onednn"),
    ((8, 32, 8, 8), 48, {}, "llvm"),  # 32 tiles
    ((31, 32, 4, 4), 48, {}, "onednn"),  # 31 tiles
    ((84, 32, 4, 2), 48, {}, "llvm"),  # half of all results inside, in whole blocks of 14 tiles
    ((84, 32, 7, 1), 48, {}, "onednn"),
    ((42, 32, 5, 5), 48, {}, "onednn"),  # 25 of 64 results inside
    (X, 48, {"strides": (2, 1)}, "onednn"),
    (X, 48, {"dilations": (1, 2), "padding": (1, 1, 2, 2)}, "onednn"),
    (X, 48, {"groups": 2}, "onednn"),
    (X, 48, {"size": (3, 5)}, "onednn"),
]


@pytest.mark.skipif(host().vector_bytes != 64, reason="the cases are for vectors of 16 numbers")
@pytest.mark.parametrize(("x", "filters", "changes", "library"), CHOICES)
def test_the_kernel_computes_the_convolutions_for_which_it_is_faster(
    x: tuple[int, ...], filters: int, changes: dict[str, Any], library: str
) -> None:
    size, groups = changes.get("size", (3, 3)), changes.get("groups", 1)
    geometry = {**GEOMETRY, **{key: value for key, value in changes.items() if key != "size"}}
    arrays = [np.empty(x, np.float32), np.empty((filters, x[1] // groups, *size), np.float32)]
    with threadpool_limits(1, user_api="openmp"):
        assert chosen("conv2d", arrays, geometry) == library


def chosen(op: str, arrays: list[Array], attributes: dict[str, Any]) -> str:
    """Return the library that computes a node."""
    node, specs = node_of(op, arrays, attributes), [Shaped.of(each) for each in arrays]
    return REGISTRY.choose(op, "cpu", node.attributes, specs, node.outputs, [None] * len(arrays)).kernel.library


@pytest.mark.parametrize("op", OPS)
def test_each_thread_needs_a_number_of_tiles(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(winograd, "MOST_TILES_PER_RESULT", 100)
    for count, library in ((TILES // 32, "llvm"), (TILES // 32 + 1, "onednn")):
        with threadpool_limits(count, user_api="openmp"):
            assert chosen(op, *OPS[op]) == library


@pytest.mark.parametrize("op", OPS)
def test_convolutions_that_need_too_much_scratch_memory_are_left_to_onednn(
    op: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrays, attributes = OPS[op]
    with threadpool_limits(2, user_api="openmp"):
        node, specs = node_of(op, arrays, attributes), [Shaped.of(each) for each in arrays]
        needed = arranged(REGISTRY.find(op, "cpu", "llvm"), node.attributes, specs, node.outputs).scratch_bytes
        for limit, library in ((needed, "llvm"), (needed - 1, "onednn")):
            monkeypatch.setattr(winograd, "MOST_SCRATCH_BYTES", limit)
            assert chosen(op, arrays, attributes) == library


@pytest.mark.parametrize("op", OPS)
def test_calls_run_on_all_threads_and_refuse_scratch_memory_for_fewer(op: str) -> None:
    arrays, attributes = OPS[op]
    kernel, node = REGISTRY.find(op, "cpu", "llvm"), node_of(op, arrays, attributes)
    with threadpool_limits(1, user_api="openmp"):
        arrangement = arranged(kernel, node.attributes, [Shaped.of(each) for each in arrays], node.outputs)
        outputs = [filled(spec, layout) for spec, layout in zip(node.outputs, arrangement.outputs, strict=True)]
        buffers = Buffers(tuple(map(holding, arrays)), tuple(outputs), allocate(arrangement.scratch_bytes))
        calls = native_calls(kernel.bind(node.attributes, arrangement, buffers))
    parallel = threads.call(winograd._compiled_filters(False), [], 1, 1, None, parallel=True)
    assert [call.function for call in calls] == [parallel.function] * 2
    expected = "a call on 2 threads needs .* bytes of scratch memory, got .*: planned for another thread count"
    with threadpool_limits(2, user_api="openmp"), pytest.raises(ValueError, match=expected):
        kernel.bind(node.attributes, arrangement, buffers)


@pytest.mark.parametrize(("workers", "blocks"), [(3, 2), (TILES // 4, 1)])
def test_tiles_are_shared_evenly_in_chunks_of_at_most_two_blocks(workers: int, blocks: int) -> None:
    convolution = winograd._Convolution(X, Y, (1, 1), workers)
    sizes = dict(zip(SIZES, convolution.sizes(), strict=True))
    assert (sizes["share"], sizes["workers"]) == (-(-TILES // workers), workers)
    assert sizes["chunk"] == blocks * winograd.BLOCKS[host().vector_bytes][0][0]


@pytest.fixture
def eight_lanes(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Compile the kernels for vectors of 8 numbers."""
    narrow = replace(host(), vector_bytes=32)
    compiled = [each for name, each in vars(winograd).items() if name.startswith("_compiled_") or name == "_zeros"]
    for each in compiled:
        each.cache_clear()
    monkeypatch.setattr(winograd, "host", lambda: narrow)
    yield
    for each in compiled:
        each.cache_clear()


@pytest.mark.usefixtures("eight_lanes")
@pytest.mark.parametrize("op", OPS)
def test_vectors_of_eight_numbers(op: str) -> None:
    test_rounding_errors_are_a_millionth_of_the_results(op)


def test_without_onednn_nothing_converts_images_to_blocks() -> None:
    registry = Registry()
    loading.register_machine_code(registry)
    assert registry.of("max_pool", "cpu")
    assert not registry.of("conv2d", "cpu")
