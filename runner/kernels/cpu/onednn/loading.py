"""Registration of all oneDNN kernels."""

from runner.kernels.cpu.onednn import (
    batch_normalization,
    convert,
    convolution,
    linear,
    local_response_normalization,
    parts,
    pooling,
    softmax,
)
from runner.kernels.cpu.onednn.library import OneDnnUnavailable, load
from runner.kernels.registry import Registry

FAMILIES = (
    convert,
    convolution,
    pooling,
    batch_normalization,
    local_response_normalization,
    parts,
    linear,
    softmax,
)


def register(registry: Registry) -> tuple[str, str]:
    """Return (version and file, "") after adding the kernels, or ("", why the library is not available)."""
    try:
        library = load()
    except OneDnnUnavailable as error:
        return "", str(error)
    for family in FAMILIES:
        family.register(registry, library)
    return f"{library.version} ({library.path})", ""
