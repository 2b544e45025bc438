"""The subject of `make gpu-bench`: the network of a case with the values of a problem, on the GPU."""

from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from benchmarks.gpu.engine import Engine, engine_on
from benchmarks.gpu.networks import GPU_CASES, task_of
from benchmarks.gpu.ours import OursOnGpu
from benchmarks.gpu.problems import prepare
from benchmarks.problem import Problem
from tests.gpu.gpus import Gpu, on_gpu

CASE = GPU_CASES["smoke"]


def losses(engine: Engine, problem: Problem) -> tuple[list[float], float]:
    """Return the losses of four steps and of the gradients after them, and the memory of a step."""
    with ExitStack() as stack:
        subject = OursOnGpu(engine, task_of(CASE, "float32"), problem, stack)
        subject.load()
        step, gradients = subject.phase("step"), subject.phase("gradients")
        return [step() for _ in range(4)] + [gradients()], subject.memory_mib()


@pytest.mark.small
def test_a_subject_on_a_gpu_computes_what_one_on_cpus_does(gpu: Gpu, tmp_path: Path) -> None:
    problem = prepare(CASE, tmp_path / "problem")
    found, memory = losses(Engine(on_gpu(1), gpu.registry()), problem)
    expected, _ = losses(engine_on("cpu", "float32"), problem)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert expected[0] > expected[-1]
    assert 0.0 < memory < 1.0
