"""The real cuDNN has plans for this project's networks, on GPUs that may be absent. Skipped if cuDNN is missing."""

import importlib.util
import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path

import pytest

from runner.kernels.gpu.cudnn.graphs import FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT, Convolution
from runner.kernels.gpu.cudnn.library import WORKSPACE_LIMIT
from tests.kernels.gpu.running import DTYPES

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("cudnn") is None or shutil.which("gcc") is None, reason="needs the extra gpu, and gcc"
)

HERE = Path(__file__).parent
GPUS = ("A100", "H100")
KINDS = (FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT)
Job = tuple[str, bool, Convolution]

GEOMETRIES = {
    # x, w, y, strides, padding, and dilations if they are not 1
    "alexnet_1": ((128, 3, 224, 224), (64, 3, 11, 11), (128, 64, 55, 55), (4, 4), (2, 2, 2, 2)),
    "two_groups": ((128, 64, 27, 27), (192, 32, 5, 5), (128, 192, 27, 27), (1, 1), (2, 2, 2, 2)),
    "vgg_1": ((64, 3, 224, 224), (64, 3, 3, 3), (64, 64, 224, 224), (1, 1), (1, 1, 1, 1)),
    "resnet_110": ((128, 16, 32, 32), (16, 16, 3, 3), (128, 16, 32, 32), (1, 1), (1, 1, 1, 1)),
    "projection": ((128, 16, 32, 32), (32, 16, 1, 1), (128, 32, 16, 16), (2, 2), (0, 0, 0, 0)),
    "mnist": ((100, 1, 28, 28), (10, 1, 5, 5), (100, 10, 24, 24), (1, 1), (0, 0, 0, 0)),
    "depthwise": ((4, 6, 9, 9), (6, 1, 3, 3), (4, 6, 9, 9), (1, 1), (1, 1, 1, 1)),
    "uneven": ((2, 3, 7, 6), (4, 3, 3, 2), (2, 4, 3, 8), (2, 1), (1, 0, 2, 1)),
    "dilated": ((8, 64, 33, 33), (64, 64, 3, 3), (8, 64, 33, 33), (1, 1), (2, 2, 2, 2), (2, 2)),
    "dilated_strides": ((8, 20, 33, 32), (24, 20, 3, 3), (8, 24, 17, 16), (2, 2), (3, 3, 3, 3), (3, 3)),
}


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the path of a stub of the CUDA driver, which cuDNN needs on machines without a GPU."""
    library = tmp_path_factory.mktemp("driver") / "libcuda.so.1"
    command = ["gcc", "-w", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", library, HERE / "no_driver.c"]
    subprocess.run(command, check=True)
    return library


def planned(driver: Path, jobs: Sequence[Job]) -> list[tuple[str, int] | None]:
    """Return name and workspace bytes of the plan of each job, or None for a job without a plan."""
    request = {"driver": str(driver), "jobs": [(gpu, tf32, asdict(convolution)) for gpu, tf32, convolution in jobs]}
    command = [sys.executable, HERE / "plan_without_gpu.py"]
    done = subprocess.run(command, input=json.dumps(request), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    plans: list[tuple[str, int] | None] = json.loads(done.stdout)
    return plans


@pytest.mark.parametrize("tf32", [False, True])
@pytest.mark.parametrize("gpu", GPUS)
def test_every_convolution_and_gradient_has_a_plan(driver: Path, gpu: str, tf32: bool) -> None:
    jobs = [
        (gpu, tf32, Convolution(kind, dtype, *geometry))
        for kind, dtype, geometry in product(KINDS, DTYPES, GEOMETRIES.values())
    ]
    plans = planned(driver, jobs)
    assert [job for job, plan in zip(jobs, plans, strict=True) if plan is None] == []
    assert all(plan[1] <= WORKSPACE_LIMIT for plan in plans if plan is not None)


@pytest.mark.parametrize("gpu", GPUS)
def test_bias_and_relu_are_fused_in_every_dtype(driver: Path, gpu: str) -> None:
    jobs = [
        (gpu, False, Convolution(FORWARD, dtype, *geometry, bias=True, relu=relu))
        for dtype, geometry, relu in product(DTYPES, GEOMETRIES.values(), (False, True))
    ]
    assert None not in planned(driver, jobs)


def test_a_residual_is_fused_except_in_float64(driver: Path) -> None:
    layer = Convolution(FORWARD, "float32", *GEOMETRIES["resnet_110"], bias=True, residual=True, relu=True)
    jobs = [("H100", True, replace(layer, dtype=dtype)) for dtype in DTYPES]
    float32, float64, bfloat16 = planned(driver, jobs)
    assert float32 is not None
    assert bfloat16 is not None
    assert float64 is None


def test_without_tf32_another_plan_is_taken(driver: Path) -> None:
    layer = Convolution(FORWARD, "float32", *GEOMETRIES["two_groups"])
    exact, rounding = planned(driver, [("H100", False, layer), ("H100", True, layer)])
    assert exact != rounding
