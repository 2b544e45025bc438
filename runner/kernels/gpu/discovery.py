"""The GPUs and libraries of this machine, whether a run can use them and, if not, which packages to install.

The driver reports the GPUs; the metadata of installed packages lists the libraries. No package is imported.
"""

import importlib.metadata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from runner.kernels.gpu.driver import DriverFacts, GpuFacts, ask_driver

INSTALL = "pip install 'runner-dataflow[gpu]'"
"""The command that installs the libraries; `pip install '.[gpu]'` in a checkout."""

INSTALL_12 = (
    "pip install 'cupy-cuda12x>=14,<15' nvidia-cublas-cu12 nvidia-cuda-nvrtc-cu12 nvidia-cudnn-cu12 "
    "nvidia-cudnn-frontend==1.28.* 'nvidia-nccl-cu12>=2.27.7'"
)
"""The command that installs the libraries for drivers that do not support CUDA 13."""

CUPY = {"cupy-cuda13x": 13, "cupy-cuda12x": 12}
"""Distribution of CuPy -> its major CUDA version."""

MIN_CUPY, TOO_NEW_CUPY = 14, 15
MIN_CAPABILITY = {13: 75, 12: 70}
"""Major CUDA version -> the lowest compute capability that this version supports."""

BFLOAT16_CAPABILITY = 80
"""The lowest compute capability that supports bfloat16 products."""


@dataclass(frozen=True)
class Library:
    """A library that GPU kernels use.

    version: the version of the distribution, or "" if the library is not installed. lacking: the consequence for a run
    if the library is not installed. fast: whether some ops are slower without the library.
    """

    name: str
    version: str
    lacking: str
    fast: bool = False

    def __str__(self) -> str:
        return self.version or f"not installed, {self.lacking}: {INSTALL}"


@dataclass(frozen=True)
class Found:
    """GPUs and libraries found. obstacle: the reason why no GPU can be used and the remedy, or ""."""

    driver: DriverFacts
    libraries: tuple[Library, ...]
    obstacle: str

    @property
    def gpus(self) -> tuple[GpuFacts, ...]:
        """All GPUs, usable or not."""
        return self.driver.gpus


NO_GPUS = Found(DriverFacts(fault="GPUs were not searched for"), (), "GPUs were not searched for")
"""The result for a run without GPUs."""


def discover(
    ask: Callable[[], DriverFacts] = ask_driver, installed: Callable[[], Mapping[str, str]] | None = None
) -> Found:
    """Find the GPUs and libraries. ask: returns facts from the driver. installed: returns distribution -> version."""
    driver = ask()
    present = (installed or _installed)()
    return Found(driver, _libraries(present), _obstacle(driver, present))


_SLOWER = "convolutions use slower kernels"
_DISTRIBUTIONS = {
    "cuBLAS": (("nvidia-cublas", "nvidia-cublas-cu12"), "the system is searched instead"),
    "NVRTC": (("nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12"), "the system is searched instead"),
    "cuDNN": (("nvidia-cudnn-cu13", "nvidia-cudnn-cu12"), _SLOWER),
    "cuDNN frontend": (("nvidia-cudnn-frontend",), _SLOWER),
    "NCCL": (("nvidia-nccl-cu13", "nvidia-nccl-cu12"), "combine=all_reduce sums without it"),
}
"""Library -> the distributions that provide it, and the consequence for a run if none is installed."""


def _installed() -> dict[str, str]:
    names = [*CUPY, "cupy", *(name for names, _ in _DISTRIBUTIONS.values() for name in names)]
    found = {}
    for name in names:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _libraries(present: Mapping[str, str]) -> tuple[Library, ...]:
    cupy = next((f"{present[name]} ({name})" for name in (*CUPY, "cupy") if name in present), "")
    others = (
        Library(library, next((present[name] for name in names if name in present), ""), lacking, lacking == _SLOWER)
        for library, (names, lacking) in _DISTRIBUTIONS.items()
    )
    return (Library("CuPy", cupy, "no GPU can be used"), *others)


def _obstacle(driver: DriverFacts, present: Mapping[str, str]) -> str:
    if driver.fault:
        return driver.fault
    reason = _unfit_cupy(driver, [name for name in (*CUPY, "cupy") if name in present], present)
    names = ", ".join(gpu.name for gpu in driver.gpus)
    return f"{names} cannot be used: {reason}" if reason else ""


def _unfit_cupy(driver: DriverFacts, names: Sequence[str], present: Mapping[str, str]) -> str:
    """Return the reason why the installed CuPy cannot use the GPUs, or "".

    names: the installed distributions of CuPy.
    """
    if not names:
        return f"CuPy is not installed; {INSTALL}"
    if len(names) > 1:
        return f"{' and '.join(names)} are installed and overwrite each other; keep one of them"
    (name,) = names
    if not MIN_CUPY <= int(present[name].split(".")[0]) < TOO_NEW_CUPY:
        return f"{name} {present[name]} is installed, expected {MIN_CUPY}.*; {INSTALL}"
    # The distribution cupy is compiled on this machine, for the CUDA version of the machine.
    cuda = CUPY.get(name, driver.cuda // 1000)
    if driver.cuda < 1000 * cuda:
        return (
            f"driver {driver}, but {name} needs CUDA {cuda}.0 or newer; update the driver, or "
            f"`{INSTALL_12}` instead of {name}"
        )
    oldest = MIN_CAPABILITY.get(cuda, min(MIN_CAPABILITY.values()))
    old = [str(gpu) for gpu in driver.gpus if gpu.capability < oldest]
    if old:
        return (
            f"{old[0]}: CUDA {cuda} compiles for {oldest / 10:.1f} and newer; set CUDA_VISIBLE_DEVICES to newer "
            "GPUs only, or use cluster.device=cpu"
        )
    return ""
