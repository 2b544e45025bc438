"""Loops of long short-term memory: equal bits for every size of vectors and number of threads, and groups of rows."""

from dataclasses import replace

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from runner.engine.run.kernel_table import load_kernels
from runner.kernels.contract import Array
from runner.kernels.cpu.machine_code import recurrent
from runner.kernels.cpu.machine_code.compiler import host
from runner.kernels.cpu.machine_code.recurrent_loops import MOST_ROWS
from tests.kernels.cpu.onednn.checking import assert_close, normal
from tests.kernels.cpu.test_programs import all_same_bits
from tests.kernels.harness import exact, run_node

SIZES = [(1, 1, 16), (3, 7, 32), (2, 20, 304), (2, MOST_ROWS + 1, 16), (1, 2 * MOST_ROWS + 3, 48)]
"""(steps, rows, units): some have one group of rows, some several; with 304 units, panels have several parts."""


def arrays_of(op: str, size: tuple[int, int, int]) -> list[Array]:
    steps, rows, units = size
    weights = normal(0, units, 4 * units) * np.float32(0.2)
    if op == "lstm":
        return [normal(1, steps, rows, 4 * units), weights, normal(2, rows, units), normal(3, rows, units)]
    dh, dc, c = (normal(seed, steps, rows, units) for seed in (1, 2, 3))
    gates = np.random.default_rng(4).random((steps, rows, 4 * units), np.float32)
    return [dh, dc, weights, normal(5, rows, units), c, gates]


def computed(op: str, arrays: list[Array]) -> list[Array]:
    return run_node(load_kernels().find(op, "cpu", "llvm"), {}, arrays).outputs


@pytest.mark.parametrize("op", ["lstm", "lstm_gradient"])
@pytest.mark.parametrize("size", SIZES)
def test_every_number_of_rows_equals_the_reference(op: str, size: tuple[int, int, int]) -> None:
    arrays = arrays_of(op, size)
    for found, expected in zip(computed(op, arrays), exact(op, arrays, {}), strict=True):
        assert_close(found, expected, 2e-5)


@pytest.mark.parametrize("op", ["lstm", "lstm_gradient"])
@pytest.mark.parametrize("vector_bytes", [16, 32, 64])
def test_vectors_of_every_size_give_the_same_bits(op: str, vector_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = arrays_of(op, (2, 23, 304))
    expected = computed(op, arrays)
    monkeypatch.setattr(recurrent, "_compiled", recurrent._compiled.__wrapped__)
    narrow = replace(host(), vector_bytes=vector_bytes)
    monkeypatch.setattr(recurrent, "host", lambda: narrow)
    assert all_same_bits(computed(op, arrays), expected)


@pytest.mark.parametrize("op", ["lstm", "lstm_gradient"])
def test_the_number_of_threads_changes_no_bit(op: str) -> None:
    arrays = arrays_of(op, (2, 23, 304))
    with threadpool_limits(1, user_api="openmp"):
        alone = computed(op, arrays)
    with threadpool_limits(3, user_api="openmp"):
        assert all_same_bits(computed(op, arrays), alone)
