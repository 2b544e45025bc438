"""``runner doctor``: list the usable hardware, the installed libraries and the missing ones."""

import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
import tempfile
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement

from runner.config.conf_dir import conf_dir
from runner.errors import ConfigError, ResourceError
from runner.kernels.gpu.discovery import discover
from runner.system import machine
from runner.system.console import verb_parser

DISTRIBUTION = "runner-dataflow"
CPU_FLAGS = ("avx2", "fma", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8")
"""Instruction sets that determine the speed of the kernel libraries."""

SHARED_MEMORY = Path("/dev/shm")
MIN_SHARED_MEMORY = 64 * 2**20
"""Free bytes that are enough for the tensors in flight between the workers of a small run."""

MIN_DISK = 1 << 30
"""Free bytes that are enough for three checkpoints of a network with some tens of millions of parameters."""

MIN_LIBZMQ = (4, 3, 5)
_GIB = 2**30
_DESCRIPTION = "List the usable hardware, the installed libraries and the missing ones."


@dataclass(frozen=True)
class Finding:
    """One line of the report. trouble: the reason why this finding makes runs fail; "" if runs do not fail."""

    topic: str
    found: str
    trouble: str = ""


def main(arguments: Sequence[str]) -> int:
    """Print the report; return the exit code of ResourceError if a finding would make a run fail."""
    parser = verb_parser("doctor", _DESCRIPTION, "example:  runner doctor")
    parser.parse_args(arguments)
    findings = [finding for examine in EXAMINATIONS for finding in examine()]
    for finding in findings:
        print(f"{finding.topic:16} {finding.found}")
    troubles = [f"{finding.topic}: {finding.trouble}" for finding in findings if finding.trouble]
    print()
    for trouble in troubles:
        print(f"trouble: {trouble}")
    if not troubles:
        print("no problems found")
    return ResourceError.exit_code if troubles else 0


def _system() -> Iterator[Finding]:
    yield Finding("python", f"{platform.python_version()} ({platform.python_implementation()})")
    yield Finding("system", f"{platform.system()} {platform.release()} {platform.machine()}")


def _cpu() -> Iterator[Finding]:
    present = [flag for flag in CPU_FLAGS if flag in machine.cpu_flags()]
    yield Finding("cpu", machine.cpu_facts().get("model name", platform.processor() or "unknown"))
    yield Finding("cpu flags", " ".join(present) or "none of " + " ".join(CPU_FLAGS))
    native = ", ".join(machine.bfloat16_flags())
    lacking = f"not native (none of {', '.join(machine.BFLOAT16_FLAGS)}); precision=bfloat16 is refused"
    yield Finding("bfloat16", f"native ({native})" if native else lacking)
    yield Finding("cores", f"{machine.usable_cores()} usable of {os.cpu_count()}")
    available, usable = machine.available_memory() / _GIB, machine.usable_memory() / _GIB
    yield Finding("memory", f"{available:.1f} GiB available of {usable:.1f} GiB")


def _gpus() -> Iterator[Finding]:
    """Yield findings on GPUs and their libraries. Both are optional: without them, runs are only slower."""
    found = discover()
    verdict = f"not used: {found.obstacle}" if found.obstacle else "used by cluster.device=auto"
    yield Finding("gpu", f"{len(found.gpus)} gpu(s), {verdict}")
    yield Finding("gpu driver", str(found.driver) if found.driver.cuda else "none")
    for gpu in found.gpus:
        free = "" if gpu.free_bytes is None else f", {gpu.free_bytes / _GIB:.1f} GiB free"
        yield Finding(f"gpu {gpu.number}", f"{gpu}{free}")
    for library in found.libraries:
        yield Finding(f"gpu {library.name}", str(library))


def _shared_memory() -> Iterator[Finding]:
    if not SHARED_MEMORY.is_dir():
        yield Finding("shared memory", "none", f"{SHARED_MEMORY} is missing: workers exchange tensors there")
        return
    free = shutil.disk_usage(SHARED_MEMORY).free
    lacking = f"{SHARED_MEMORY} has less than {MIN_SHARED_MEMORY // 2**20} MiB free: workers exchange tensors there"
    trouble = lacking if free < MIN_SHARED_MEMORY else _why_not_writable(SHARED_MEMORY)
    yield Finding("shared memory", f"{free / _GIB:.2f} GiB free in {SHARED_MEMORY}", trouble)


def _directories() -> Iterator[Finding]:
    here, temporary = Path.cwd(), Path(tempfile.gettempdir())
    yield Finding("configuration", str(conf_dir()))
    for topic, directory in (("run outputs", here), ("temporary files", temporary)):
        free = shutil.disk_usage(directory).free
        little = f"{directory} has less than 1 GiB free: checkpoints and plots need space" if free < MIN_DISK else ""
        trouble = _why_not_writable(directory) or little
        yield Finding(topic, f"below {directory}, {free / _GIB:.1f} GiB free", trouble)


def _why_not_writable(directory: Path) -> str:
    try:
        with tempfile.TemporaryFile(dir=directory):
            return ""
    except OSError as error:
        return f"{directory} is not writable: {error.strerror}"


def _dependencies() -> Iterator[Finding]:
    for requirement in _requirements():
        try:
            version = importlib.metadata.version(requirement.name)
        except importlib.metadata.PackageNotFoundError:
            yield Finding(requirement.name, "missing", f"not installed; expected {requirement}")
            continue
        fits = requirement.specifier.contains(version, prereleases=True)
        yield Finding(requirement.name, version, "" if fits else f"version {version}; expected {requirement}")


def _requirements() -> list[Requirement]:
    """Return the requirements of the installed distribution or, if none is installed, of pyproject.toml."""
    try:
        lines = importlib.metadata.requires(DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        project = Path(__file__).resolve().parents[2] / "pyproject.toml"
        lines = tomllib.loads(project.read_text(encoding="utf-8"))["project"]["dependencies"]
    found = [Requirement(line) for line in lines]
    return [each for each in found if each.marker is None or each.marker.evaluate({"extra": ""})]


def _libraries() -> Iterator[Finding]:
    import numpy as np
    import threadpoolctl
    import zmq

    from runner.engine.run.kernel_table import native_libraries

    pools = [pool for pool in threadpoolctl.threadpool_info() if pool["user_api"] == "blas"]
    named = [f"{pool['internal_api']} {pool['version']}, {pool['num_threads']} threads" for pool in pools]
    yield Finding("blas", "; ".join(named) or "not found by threadpoolctl")
    yield Finding("kernels", f"reference (numpy {np.__version__})")
    for library in native_libraries():
        # These libraries are optional: if one is missing, runs are only slower.
        yield Finding(f"kernels of {library.name}", library.version or f"none: {library.missing}")
    old = zmq.zmq_version_info() < MIN_LIBZMQ
    needed = ".".join(map(str, MIN_LIBZMQ))
    ciphers = _cipher_library() if zmq.has("curve") else ""
    yield Finding("ciphers between hosts", ciphers or "none: libzmq has no CURVE, which runs over several hosts need")
    yield Finding("libzmq", zmq.zmq_version(), f"older than {needed}, which fixes known vulnerabilities" if old else "")


def _cipher_library() -> str:
    """Return the library that encrypts connections: the libsodium that libzmq has loaded, or its built-in code."""
    maps = Path("/proc/self/maps")
    found = re.search(r"/(libsodium[^\s/]*)", maps.read_text(encoding="utf-8")) if maps.exists() else None
    return found[1] if found else "those built into libzmq, which may be slow"


def _datasets() -> Iterator[Finding]:
    from runner.data import DATASETS
    from runner.data.origins import ORIGINS
    from runner.data.published import cache_root, is_cached

    root = cache_root(None)
    fetched = [name for name in DATASETS if name in ORIGINS and is_cached(ORIGINS[name][0], root)]
    yield Finding("datasets", f"{', '.join(fetched) or 'none fetched'} in {root}")


def _tracking_store() -> Iterator[Finding]:
    from runner.commands.ui import store_answer, store_state

    try:
        yield Finding("tracking store", f"{store_state()}, {store_answer()}")
    except ConfigError as error:
        yield Finding("tracking store", "address cannot be used", str(error))


def _launchers() -> Iterator[Finding]:
    """Yield findings on the optional Hydra plugins that run jobs of a sweep in parallel."""
    for option in ("joblib", "submitit_slurm", "ray"):
        name = option.partition("_")[0]
        try:
            version = importlib.metadata.version(f"hydra-{name}-launcher")
        except importlib.metadata.PackageNotFoundError:
            version = f"not installed; hydra/launcher={option} needs it: pip install hydra-{name}-launcher"
        yield Finding(f"hydra {name}", version)


def _git() -> Iterator[Finding]:
    command = shutil.which("git")
    if command is None:
        yield Finding("git", "not found; runs are recorded without a commit")
        return
    try:
        answer = subprocess.run([command, "--version"], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        yield Finding("git", f"does not answer: {error}; runs are recorded without a commit")
        return
    yield Finding("git", answer.stdout.strip().removeprefix("git version "))


EXAMINATIONS: tuple[Callable[[], Iterator[Finding]], ...] = (
    _system,
    _cpu,
    _gpus,
    _shared_memory,
    _directories,
    _dependencies,
    _libraries,
    _tracking_store,
    _launchers,
    _datasets,
    _git,
)
