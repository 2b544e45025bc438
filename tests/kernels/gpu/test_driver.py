"""Discovery of a machine's GPUs: queries to the driver, here a compiled fake, and advice if no GPU can be used."""

import gc
import shutil
import subprocess
import sys
import weakref
from collections.abc import Mapping
from pathlib import Path

import pytest

from runner.kernels.gpu.discovery import INSTALL, INSTALL_12, Found, discover
from runner.kernels.gpu.driver import DriverFacts, GpuFacts, ask_driver

COMPILER = shutil.which("gcc") or shutil.which("cc")

DRIVER = r"""
#include <stdio.h>
#include <string.h>
int cuInit(unsigned flags) { return flags ? 1 : INIT; }
int cuDriverGetVersion(int *version) { *version = 13010; return 0; }
int cuDeviceGetCount(int *count) { *count = GPUS; return 0; }
int cuDeviceGet(int *device, int ordinal) { *device = 40 + ordinal; return 0; }
int cuDeviceGetName(char *name, int length, int device) {
    strncpy(name, device == 40 ? "First" : "Second", length); return 0; }
int cuDeviceTotalMem_v2(size_t *bytes, int device) { *bytes = (size_t)(device - 39) << 33; return 0; }
int cuDeviceGetAttribute(int *value, int which, int device) {
    *value = which == 75 ? 9 : which == 76 ? device - 40 : -1; return MEMORY; }
int UUID(unsigned char *uuid, int device) {
    for (int k = 0; k < 16; ++k) uuid[k] = 16 * (device - 40) + k; return 0; }

int nvmlInit_v2(void) { return MANAGED; }
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetHandleByUUID(const char *uuid, void **device) {
    *device = (void *)(strcmp(uuid, "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f") ? 2l : 1l);
    return *device == (void *)2l && strcmp(uuid, "MIG-10111213-1415-1617-1819-1a1b1c1d1e1f"); }
int nvmlDeviceGetMemoryInfo(void *device, unsigned long long *memory) {
    memory[0] = 100; memory[1] = 70 + (long)device; memory[2] = 30; return UNKNOWN; }
"""

needs_compiler = pytest.mark.skipif(COMPILER is None, reason="there is no C compiler")


def driver(folder: Path, **settings: int) -> str:
    """Compile a fake driver with functions of CUDA and NVML; return its path. settings: values of macros of DRIVER."""
    assert COMPILER is not None
    (folder / "driver.c").write_text(DRIVER)
    answers: dict[str, int | str] = {"init": 0, "gpus": 2, "memory": 0, "managed": 0, "unknown": 0} | settings
    answers["uuid"] = "cuDeviceGetUuid" if settings.get("uuid") else "cuDeviceGetUuid_v2"
    defined = [f"-D{name.upper()}={value}" for name, value in answers.items()]
    command = [COMPILER, "-shared", "-fPIC", *defined, "-o", str(folder / "driver.so"), str(folder / "driver.c")]
    subprocess.run(command, check=True, capture_output=True)
    return str(folder / "driver.so")


@needs_compiler
def test_gpus_have_number_name_capability_and_memory(tmp_path: Path) -> None:
    (tmp_path / "version").write_text("580.65.06\n")
    found = ask_driver(driver(tmp_path), tmp_path / "version", "absent.so")
    assert found == DriverFacts(
        "580.65.06", 13010, (GpuFacts(0, "First", 90, 1 << 33), GpuFacts(1, "Second", 91, 2 << 33))
    )
    assert str(found) == "580.65.06 for CUDA up to 13.1"
    assert str(found.gpus[1]) == "Second, compute capability 9.1, 16.0 GiB"


@needs_compiler
@pytest.mark.parametrize(
    ("settings", "free"),
    [({}, [71, 72]), ({"uuid": 1}, [71, 72]), ({"managed": 9}, [None, None]), ({"unknown": 3}, [None, None])],
)
def test_free_memory_is_queried_for_gpus_and_mig_partitions(
    settings: dict[str, int], free: list[int | None], tmp_path: Path
) -> None:
    library = driver(tmp_path, **settings)
    gpus = ask_driver(library, tmp_path / "absent", library).gpus
    assert [gpu.free_bytes for gpu in gpus] == free
    assert [gpu.available_bytes for gpu in gpus] == [
        each or gpu.memory_bytes for each, gpu in zip(free, gpus, strict=True)
    ]


@needs_compiler
def test_memory_of_closed_sessions_counts_as_free(tmp_path: Path) -> None:
    class Session:
        def __init__(self) -> None:
            self.itself = self

    library = driver(tmp_path)
    gc.disable()
    try:
        ended = weakref.ref(Session())
        assert ended() is not None
        ask_driver(library, tmp_path / "absent", library)
        assert ended() is None
    finally:
        gc.enable()


@needs_compiler
@pytest.mark.parametrize(
    ("settings", "fault"),
    [
        ({"init": 100}, "the driver finds no GPU (CUDA_VISIBLE_DEVICES may hide them)"),
        ({"init": 803}, "cuInit of the driver fails with CUDA error 803; `nvidia-smi` should list the GPUs"),
        ({"memory": 999}, "cuDeviceGetAttribute of the driver fails with CUDA error 999; `nvidia-smi` should list"),
        ({"gpus": 0}, "the driver finds no GPU"),
    ],
)
def test_a_driver_without_a_gpu_reports_the_reason(settings: dict[str, int], fault: str, tmp_path: Path) -> None:
    found = ask_driver(driver(tmp_path, **settings), tmp_path / "absent")
    assert found.fault.startswith(fault)
    assert found.gpus == ()


def test_a_machine_without_a_driver_has_no_gpu(tmp_path: Path) -> None:
    found = ask_driver(str(tmp_path / "absent.so"), tmp_path / "absent")
    assert found.fault.startswith("there is no NVIDIA driver: ")
    assert (found.release, found.cuda, found.gpus) == ("", 0, ())


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
    """Return the result of ``discover`` on a machine with one GPU and these installed packages."""
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
    assert slower == 2 * [f"not installed, convolutions use slower kernels: {INSTALL}"]


@pytest.mark.parametrize(
    ("installed", "cuda", "capability", "obstacle"),
    [
        ({}, 13000, 90, f"Big GPU cannot be used: CuPy is not installed; {INSTALL}"),
        ({"cupy-cuda13x": "13.6.0"}, 13000, 90, f"cupy-cuda13x 13.6.0 is installed, expected 14.*; {INSTALL}"),
        ({"cupy-cuda12x": "15.0.0"}, 13000, 90, f"cupy-cuda12x 15.0.0 is installed, expected 14.*; {INSTALL}"),
        (ALL | {"cupy": "14.0"}, 13000, 90, "cupy-cuda13x and cupy are installed and overwrite each other; keep one"),
        (ALL, 12080, 90, "driver 580.1 for CUDA up to 12.8, but cupy-cuda13x needs CUDA 13.0 or newer; update the"),
        (ALL, 12080, 90, f"or `{INSTALL_12}` instead of cupy-cuda13x"),
        (ALL, 13000, 70, "compute capability 7.0, 80.0 GiB: CUDA 13 compiles for 7.5 and newer; set CUDA_VISIBLE_"),
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
