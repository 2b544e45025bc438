"""Usable GPUs and libraries, and the advice if there are none."""

import subprocess
import sys
from collections.abc import Mapping

import pytest

from runner.kernels.gpu.discovery import INSTALL, INSTALL_12, Found, discover
from runner.kernels.gpu.driver import DriverFacts, GpuFacts

GPU = GpuFacts(0, "Big GPU", 90, 80 << 30)
ALL = {
    "cupy-cuda13x": "14.2.0",
    "nvidia-cublas": "13.1",
    "nvidia-cuda-nvrtc": "13.2",
    "nvidia-cudnn-cu13": "9.28",
    "nvidia-cudnn-frontend": "1.28.0",
    "nvidia-nccl-cu13": "2.32.3",
}


def found(installed: Mapping[str, str], cuda: int = 13000, gpu: GpuFacts = GPU) -> Found:
    """Return the findings on a machine with one GPU."""
    return discover(lambda: DriverFacts("580.1", cuda, (gpu,)), lambda: installed)


def test_a_gpu_with_its_libraries_can_be_used() -> None:
    here = found(ALL)
    assert here.obstacle == ""
    assert here.gpus == (GPU,)
    assert [f"{each.name}: {each}" for each in here.libraries] == [
        "CuPy: 14.2.0 (cupy-cuda13x)",
        "cuBLAS: 13.1",
        "NVRTC: 13.2",
        "cuDNN: 9.28",
        "cuDNN frontend: 1.28.0",
        "NCCL: 2.32.3",
    ]
    slower = [str(each) for each in found({"cupy-cuda13x": "14.2.0"}).libraries if each.fast]
    assert slower == 2 * [f"not installed, convolutions take slower kernels: {INSTALL}"]


@pytest.mark.parametrize(
    ("installed", "cuda", "capability", "obstacle"),
    [
        ({}, 13000, 90, f"Big GPU cannot be used: CuPy is not installed; {INSTALL}"),
        ({"cupy-cuda13x": "13.6.0"}, 13000, 90, f"cupy-cuda13x 13.6.0 is installed, expected 14.*; {INSTALL}"),
        ({"cupy-cuda12x": "15.0.0"}, 13000, 90, f"cupy-cuda12x 15.0.0 is installed, expected 14.*; {INSTALL}"),
        (ALL | {"cupy": "14.0"}, 13000, 90, "cupy-cuda13x and cupy are installed and overwrite each other; keep one"),
        (ALL, 12080, 90, "driver 580.1 for CUDA up to 12.8, and cupy-cuda13x is made for 13.0 and newer; update the"),
        (ALL, 12080, 90, f"or `{INSTALL_12}` instead of cupy-cuda13x"),
        (ALL, 13000, 70, "compute capability 7.0, 80.0 GiB: CUDA 13 compiles for 7.5 and newer; let CUDA_VISIBLE_"),
    ],
)
def test_the_obstacle_of_an_unusable_gpu_is_reported(
    installed: dict[str, str], cuda: int, capability: int, obstacle: str
) -> None:
    assert obstacle in found(installed, cuda, GpuFacts(0, "Big GPU", capability, 80 << 30)).obstacle


@pytest.mark.parametrize(
    ("installed", "cuda", "capability"),
    [({"cupy-cuda12x": "14.2.0"}, 12080, 70), ({"cupy": "14.2.0"}, 12080, 70), ({"cupy-cuda12x": "14.9"}, 13000, 90)],
)
def test_older_drivers_and_gpus_work_with_libraries_made_for_them(
    installed: dict[str, str], cuda: int, capability: int
) -> None:
    assert found(installed, cuda, GpuFacts(0, "Old GPU", capability, 1 << 34)).obstacle == ""


def test_without_a_gpu_the_driver_reports_the_reason() -> None:
    nothing = discover(lambda: DriverFacts(fault="there is no NVIDIA driver"), lambda: ALL)
    assert nothing.obstacle == "there is no NVIDIA driver"


def test_discovery_imports_no_gpu_package() -> None:
    script = (
        "import sys; from runner.kernels.gpu.discovery import discover; discover(); "
        "print(sorted({name.split('.')[0] for name in sys.modules} & {'cupy', 'cudnn', 'cuda', 'numpy'}))"
    )
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert answer.stdout == "[]\n"
