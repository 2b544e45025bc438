"""Registration of the machine-code kernels."""

from runner.kernels.cpu.dispatch import join_in_python
from runner.kernels.registry import Registry


def register(registry: Registry) -> tuple[str, str]:
    """Return (version, "") after adding the kernels, or ("", reason). Sets how calls are joined in both cases."""
    version, missing = probe()
    if missing:
        registry.join = join_in_python
        return "", missing
    # After the probe, because these modules import llvmlite.
    from runner.kernels.cpu.machine_code import (
        classification,
        dispatch,
        elementwise,
        pooling,
        products,
        sums,
    )

    registry.join = dispatch.join
    elementwise.register(registry)
    classification.register(registry)
    sums.register(registry)
    pooling.register(registry)
    products.register(registry)
    return version, ""


def probe() -> tuple[str, str]:
    """Return (compiler and target CPU, ""), or ("", why code cannot be compiled)."""
    try:
        import llvmlite.binding  # noqa: F401 - the library itself is loaded here
    except (ImportError, OSError) as error:
        return "", f"llvmlite cannot be loaded ({error}); pip install llvmlite"
    from runner.kernels.cpu.machine_code import compiler, openmp

    try:
        host = compiler.host()
    except compiler.CompilerUnavailable as error:
        return "", str(error)
    one_thread = "" if openmp.load() else f", on one thread: {openmp.LIBRARY} cannot be loaded"
    return f"{host}{one_thread}", ""
