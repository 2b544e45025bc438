"""The physical limit, and the arithmetic that is counted for it."""

import pytest

from benchmarks.cases import CASES
from benchmarks.compare import phase_work
from benchmarks.limit import Rates
from benchmarks.machine import CONV_MULTIPLY_ADDS, convolution
from benchmarks.work import multiply_adds


def test_a_step_takes_its_arithmetic_and_its_optimizer() -> None:
    rates = Rates({"gemm": 100e9, "conv": 200e9}, bytes_per_s=10e9)
    assert rates.limit_s("step", multiply_adds=40_000_000_000, parameters=50_000_000) == pytest.approx(0.2 + 0.1)
    assert rates.limit_s("gradients", multiply_adds=40_000_000_000, parameters=50_000_000) == pytest.approx(0.2)


def test_without_a_rate_there_is_no_limit() -> None:
    assert Rates({}, bytes_per_s=10e9).limit_s("step", 1, 1) is None


def test_the_sentence_names_every_rate() -> None:
    text = Rates({"NumPy's matrix product": 78.94e9}, bytes_per_s=31e9).sentence()
    assert text == "78.9 G multiply-adds/s by NumPy's matrix product, 31.0 GB/s adding arrays"


def test_the_first_layer_has_no_gradient_of_its_input() -> None:
    # conv1 2@5x5 on 16x16, conv2 3@5x5 on 6x6 after pooling, 3 features to 8 units to 4 classes; 4 examples.
    conv1, conv2, dense1, dense2 = 144 * 2 * 25, 4 * 3 * 2 * 25, 3 * 8, 8 * 4
    forward = 4 * (conv1 + conv2 + dense1 + dense2)
    whole = 3 * forward - 4 * conv1
    assert phase_work(CASES["smoke"]) == {"forward": forward, "gradients": whole, "step": whole}


@pytest.mark.parametrize(
    ("name", "multiplications"),
    [
        ("alexnet", 714_188_480),
        ("overfeat", 2_801_403_904),
        ("vgg_a", 7_609_090_048),
        ("googlenet", 1_582_671_872),
    ],
)
def test_classic_networks_are_those_of_the_papers(name: str, multiplications: int) -> None:
    assert phase_work(CASES[name])["forward"] == CASES[name].batch * multiplications


def test_the_convolution_of_the_machine_has_the_stated_size() -> None:
    program = convolution("float32")
    assert multiply_adds(program.graph, program.clients["train"]) == CONV_MULTIPLY_ADDS
