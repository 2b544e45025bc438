"""A shard is one safetensors file. Its variables are returned only after every check has passed."""

import hashlib
from collections.abc import Mapping

import google_crc32c
import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load as load_safetensors
from safetensors.numpy import save as save_safetensors

from runner.checkpoint.manifest import DTYPE, MAX_HEADER_BYTES, SHARD_FILE, VARIABLE_NAME, ShardRecord, VariableRecord
from runner.errors import CheckpointError, NumericError
from runner.system.schema import Violation
from runner.system.text import printable

Array = NDArray[np.generic]


def plain(name: str, value: Array) -> Array:
    """Return ``value``, which may have any byte order and memory layout, as a C-contiguous little-endian array.

    Raises CheckpointError for a name or element type that a checkpoint cannot hold.
    """
    array = np.asarray(value)
    try:
        VARIABLE_NAME.write(name, "checkpoint variable name")
        DTYPE.write(array.dtype.name, f"checkpoint dtype of {name}")
    except Violation as violation:
        raise CheckpointError(str(violation)) from None
    # numpy.ascontiguousarray would turn a 0-d array into an array of shape (1,).
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
    """Return one SHA-256 (64 hex digits) of all variables, to compare two runs bit for bit.

    ``variables`` maps unsharded names to arrays of any memory layout. The hash covers the variables, sorted by name (by
    code point). Each variable contributes the ASCII text ``name newline dtype newline shape newline``, then its
    elements in C order, little endian, a bool as one byte. dtype is NumPy's name, such as ``float32``; shape is the
    sizes in decimal, joined by commas (empty for a scalar). There is no separator between variables: the text
    determines how many bytes follow. Raises CheckpointError for a name or element type that a checkpoint cannot hold.
    """
    digest = hashlib.sha256()
    for name in sorted(variables):
        array = plain(name, variables[name])
        shape = ",".join(map(str, array.shape))
        digest.update(f"{name}\n{array.dtype.name}\n{shape}\n".encode("ascii"))
        digest.update(array.data)
    return digest.hexdigest()


_LENGTH_BYTES = 8  # a safetensors file starts with the length of its header, little endian


def pack(variables: Mapping[str, Array], file: str = SHARD_FILE) -> tuple[ShardRecord, bytes]:
    """Return the manifest's record of a shard that holds ``variables``, and the bytes of the file. file: its name.

    Raises NumericError for a value that is not finite, CheckpointError for names and types that the format cannot hold.
    """
    arrays = {name: plain(name, variables[name]) for name in sorted(variables)}
    for name, array in arrays.items():
        require_finite(name, array)
    payload = save_safetensors(arrays)
    _check_header(payload, file)
    records = tuple(
        VariableRecord(name, array.dtype.name, array.shape, google_crc32c.value(array))
        for name, array in arrays.items()
    )
    return ShardRecord(file, len(payload), hashlib.sha256(payload).hexdigest(), records), payload


def unpack(record: ShardRecord, payload: bytes) -> dict[str, Array]:
    """Return the variables of a shard as writable C-contiguous arrays, in the order of the record.

    Raises CheckpointError unless ``payload`` matches ``record`` byte for byte, NumericError for non-finite values.
    """
    digest = hashlib.sha256(payload).hexdigest()
    if digest != record.sha256:
        raise CheckpointError(f"{record.file} is damaged: its SHA-256 is {digest}, the manifest has {record.sha256}")
    _check_header(payload, record.file)
    try:
        arrays = load_safetensors(payload)
    except (SafetensorError, KeyError, ValueError) as error:
        raise CheckpointError(f"{record.file} is not a safetensors file: {printable(str(error))}") from None
    names = {variable.name for variable in record.variables}
    if arrays.keys() != names:
        differing = printable(str(sorted(arrays.keys() ^ names)[:5]))
        raise CheckpointError(f"{record.file} and the manifest differ in the variables {differing}")
    return {variable.name: _checked(variable, arrays[variable.name]) for variable in record.variables}


def _check_header(payload: bytes, file: str) -> None:
    length = int.from_bytes(payload[:_LENGTH_BYTES], "little")
    if length > MAX_HEADER_BYTES:
        raise CheckpointError(f"{file} has a header of {length} bytes, expected at most {MAX_HEADER_BYTES}")


def _checked(record: VariableRecord, array: Array) -> Array:
    """Return ``array``, made writable; raise CheckpointError unless it matches the record computed before packing."""
    if (array.dtype.name, array.shape) != (record.dtype, record.shape):
        raise CheckpointError(
            f"variable {record.name}: the file holds {array.dtype.name} {array.shape}, "
            f"the manifest has {record.dtype} {record.shape}"
        )
    crc32c = google_crc32c.value(array)
    if crc32c != record.crc32c:
        raise CheckpointError(
            f"variable {record.name} is damaged: its CRC32C is {crc32c:08x}, the manifest has {record.crc32c:08x}"
        )
    require_finite(record.name, array)
    return np.require(array, requirements=["C", "W"])
