"""Variables as plain bytes, C order and little endian: what files, checksums and hashes are made of."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from runner.checkpoint import limits
from runner.checkpoint.records import expect
from runner.errors import NumericError

Array = NDArray[np.generic]


def plain(name: str, value: Array) -> Array:
    """Return ``value``, of any byte order and memory layout, C-contiguous and little endian.

    Raises CheckpointError when the name or the element type is not one a checkpoint can hold.
    """
    expect(limits.is_variable_name(name), "variable name", name, limits.VARIABLE_RULE)
    array = np.asarray(value)
    expect(array.dtype.name in limits.DTYPES, f"dtype of {name}", array.dtype.name, f"one of {limits.DTYPES}")
    # Not ascontiguousarray: it turns a 0-d array into one of shape (1,).
    return np.asarray(array, dtype=array.dtype.newbyteorder("<"), order="C")


def require_finite(name: str, array: Array) -> None:
    """Raise NumericError, naming the variable and its first bad element, unless all elements are finite."""
    if array.dtype.kind != "f" or np.isfinite(array).all():
        return
    bad = np.argwhere(~np.isfinite(array))
    first = tuple(int(position) for position in bad[0])
    raise NumericError(
        f"variable {name}: {len(bad)} of {array.size} values are not finite, the first is {array[first]} at "
        f"index {first}; a checkpoint with such values is neither written nor loaded"
    )


def weights_sha256(variables: Mapping[str, Array]) -> str:
    """Return one SHA-256 (64 hex digits) of the values of all variables, to compare two runs bit for bit.

    ``variables`` maps unsharded names to arrays of any layout. The hash is over, for each variable in the
    order of its name (by code point): the ASCII text ``name newline dtype newline shape newline``, where
    dtype is NumPy's name such as ``float32`` and shape the sizes in decimal joined by commas (nothing for a
    scalar); then the elements in C order, little endian, a bool as one byte. Nothing separates one variable
    from the next: the text says how many bytes follow. Raises CheckpointError for a name or element type
    that a checkpoint cannot hold.
    """
    digest = hashlib.sha256()
    for name in sorted(variables):
        array = plain(name, variables[name])
        shape = ",".join(map(str, array.shape))
        digest.update(f"{name}\n{array.dtype.name}\n{shape}\n".encode("ascii"))
        digest.update(array.data)
    return digest.hexdigest()
