"""Load the libraries of fast CPU kernels, and find the reason why a library is missing.

Modules that need Python packages other than NumPy are imported inside functions, because the packages may be missing.
"""

from collections.abc import Callable
from dataclasses import dataclass

from runner.kernels.registry import Registry

_PACKAGES = ("cffi", "llvmlite")


@dataclass(frozen=True)
class NativeLibrary:
    """A library of fast kernels.

    version: includes the file or CPU. missing: the reason why the library is not used, or "".
    """

    name: str
    version: str
    missing: str = ""


def register(registry: Registry) -> tuple[NativeLibrary, ...]:
    """Add the kernels of every library that can be loaded; return the state of each library."""
    loaders = {"onednn": register_onednn, "llvm": register_machine_code}
    return tuple(NativeLibrary(name, *_loaded(load, registry)) for name, load in loaders.items())


def _loaded(load: Callable[[Registry], tuple[str, str]], registry: Registry) -> tuple[str, str]:
    try:
        return load(registry)
    except ModuleNotFoundError as error:
        if error.name not in _PACKAGES:
            raise
        return "", f"the Python package {error.name} is not installed"


def register_onednn(registry: Registry) -> tuple[str, str]:
    """Add the kernels of oneDNN and return (version and file, ""), or ("", reason) if oneDNN cannot be used."""
    from runner.kernels.cpu.onednn import convert, convolution, linear, normalization, parts, pooling, softmax
    from runner.kernels.cpu.onednn.library import OneDnnUnavailable, load

    try:
        library = load()
    except OneDnnUnavailable as error:
        return "", str(error)
    for family in (convert, convolution, pooling, normalization, parts, linear, softmax):
        family.register(registry, library)
    return f"{library.version} ({library.path})", ""


def register_machine_code(registry: Registry) -> tuple[str, str]:
    """Set ``join`` and ``doorbells``, add the kernels of LLVM, and return the result of :func:`probe_compiler`."""
    from runner.kernels.cpu.dispatch import join_in_python

    version, missing = probe_compiler()
    if missing:
        registry.join = join_in_python
        return "", missing
    from runner.kernels.cpu.machine_code import (
        classification,
        compiler,
        copies,
        doorbells,
        elementwise,
        indexing,
        pooling,
        products,
        recurrent,
        sums,
        winograd,
    )

    registry.join = compiler.join
    registry.doorbells = doorbells.DOORBELLS if doorbells.is_supported() else None
    for family in (elementwise, copies, classification, sums, indexing, pooling, products, recurrent, winograd):
        family.register(registry)
    return version, ""


def probe_compiler() -> tuple[str, str]:
    """Return (compiler and target CPU, ""), or ("", reason) if code cannot be compiled."""
    try:
        import llvmlite.binding  # noqa: F401 - this import loads the shared library
    except (ImportError, OSError) as error:
        return "", f"llvmlite cannot be loaded ({error}); pip install llvmlite"
    from runner.kernels.cpu.machine_code import compiler, threads

    try:
        host = compiler.host()
    except compiler.CompilerUnavailable as error:
        return "", str(error)
    one_thread = "" if threads.load_openmp() else f", on one thread: {threads.LIBRARY} cannot be loaded"
    return f"{host}{one_thread}", ""
