"""The description of a checkpoint, ``manifest.json``: its schema, its limits, and its conversion to bytes and back.

The file is one JSON document in canonical form: sorted keys, one space of indentation, ASCII, a newline at the
end. Its field ``manifest_sha256`` is the SHA-256 of the same document without that field. ``decode`` checks the fields,
encodes them again and compares the bytes, so that a flipped bit anywhere in the file is detected.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np

from runner.errors import CheckpointError, NumericError
from runner.system.json_file import parse_json
from runner.system.schema import Integer, ListOf, MapOf, Number, OneOf, Record, Text, Violation

FORMAT_VERSION = 1
MANIFEST_FILE = "manifest.json"
SHARD_FILE = "variables.safetensors"
MAX_MANIFEST_BYTES = 8_000_000
MAX_HEADER_BYTES = 8_000_000
MAX_VARIABLES = 100_000
MAX_DIMENSIONS = 8
MINIMUM_KEEP = 3

BEST_STEP = "best/step"
"""The key in :attr:`CheckpointMeta.progress` whose value is the step of the best checkpoint so far."""

DTYPE = OneOf(("float32", "float64", "int32", "int64", "uint8", "bool"))
VARIABLE_NAME = Text(
    512,
    r"(?!__metadata__$)[A-Za-z0-9._/-]+",  # safetensors reserves the excluded name for its metadata
    "1 to 512 letters, digits and the characters _ . / -, not __metadata__",
)
_FILE_NAME = Text(
    128,
    r"(?!(\.|\.\.|manifest\.json)$)[A-Za-z0-9._-]+",
    "1 to 128 letters, digits and the characters _ . -, not . or .. or manifest.json",
)
_FileName = Annotated[str, _FILE_NAME]
_Count = Annotated[int, Integer()]


@dataclass(frozen=True)
class VariableRecord:
    """One unsharded variable: name, element type, shape, and CRC32C of its elements (C order, little endian)."""

    name: Annotated[str, VARIABLE_NAME]
    dtype: Annotated[str, DTYPE]
    shape: Annotated[tuple[int, ...], ListOf(Integer(), MAX_DIMENSIONS)]
    crc32c: Annotated[int, Integer(0, 2**32 - 1)]

    @property
    def nbytes(self) -> int:
        """Size of the variable in bytes, computed with Python integers, which do not overflow."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


@dataclass(frozen=True)
class ShardRecord:
    """One safetensors file next to the manifest: name, size in bytes, SHA-256 in hex, and the variables in it."""

    file: _FileName
    size: _Count
    sha256: Annotated[str, Text(64, "[0-9a-f]{64}", "64 hex digits")]
    variables: Annotated[tuple[VariableRecord, ...], ListOf(Record(VariableRecord), MAX_VARIABLES)]

    def __post_init__(self) -> None:
        payload = sum(variable.nbytes for variable in self.variables)
        if not payload < self.size <= payload + 8 + MAX_HEADER_BYTES:
            raise Violation(f"size of {self.file}: {self.size}, expected {payload} bytes of variables and one header")


@dataclass(frozen=True)
class CheckpointMeta:
    """The state of the training loop that is stored with the variables and returned on resume.

    config_hash, run_id: identify the configuration and the run, in letters, digits and ``. _ -``. epoch: the start of
    the run that wrote the checkpoint, numbered from 1 (not an epoch of the data). examples: training examples consumed
    so far. progress: finite numbers from which the loop continues, such as the best metric so far or the seconds spent.
    Its keys are valid variable names; entry :data:`BEST_STEP` is the step of this or an earlier checkpoint.
    Raises NumericError if a number in ``progress`` is not finite.
    """

    config_hash: _FileName
    run_id: _FileName
    epoch: _Count
    examples: _Count
    progress: Annotated[dict[str, float], MapOf(VARIABLE_NAME, Number())] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, value in self.progress.items():
            if isinstance(value, float) and not math.isfinite(value):
                raise NumericError(f"checkpoint progress {name}={value}: expected a finite number")

    @property
    def best_step(self) -> int | None:
        """The step of the best checkpoint so far; None if the run keeps no best checkpoint."""
        step = self.progress.get(BEST_STEP)
        return None if step is None else int(step)


@dataclass(frozen=True)
class Manifest:
    """The description of a checkpoint: step, state of the training loop, and shards with their variables."""

    step: _Count
    meta: CheckpointMeta
    shards: tuple[ShardRecord, ...]

    def __post_init__(self) -> None:
        variables = [variable.name for variable in self.variables]
        if len(variables) > MAX_VARIABLES:
            raise Violation(f"variables: {len(variables)}, expected at most {MAX_VARIABLES}")
        for what, names in (("variable", variables), ("file", [shard.file for shard in self.shards])):
            if len(set(names)) != len(names):
                raise Violation(f"shards: a {what} appears twice, expected every {what} once")

    @property
    def variables(self) -> tuple[VariableRecord, ...]:
        return tuple(variable for shard in self.shards for variable in shard.variables)


_SCHEMA = Record(Manifest)


def encode(manifest: Manifest) -> bytes:
    """Return the content of ``manifest.json``. Raises CheckpointError if it exceeds 8 MB or a value is invalid."""
    try:
        document = {"format_version": FORMAT_VERSION, **_SCHEMA.write(manifest)}
    except Violation as violation:
        raise CheckpointError(f"checkpoint {violation}") from None
    checksum = hashlib.sha256(_canonical(document)).hexdigest()
    encoded = _canonical({**document, "manifest_sha256": checksum})
    if len(encoded) > MAX_MANIFEST_BYTES:
        raise CheckpointError(f"checkpoint manifest: {len(encoded)} bytes, expected at most {MAX_MANIFEST_BYTES}")
    return encoded


def decode(raw: bytes) -> Manifest:
    """Return the manifest that ``raw`` encodes. Raises CheckpointError if it is damaged or of a newer format."""
    try:
        document = parse_json(raw, MAX_MANIFEST_BYTES)
        version = document.pop("format_version", None) if isinstance(document, dict) else None
        if type(version) is not int or version < FORMAT_VERSION:
            raise Violation(f"format_version: {version!r}, expected {FORMAT_VERSION}")
        if version > FORMAT_VERSION:
            raise CheckpointError(
                f"format version {version} is newer than {FORMAT_VERSION}, the newest this runner reads: open the "
                "checkpoint with the version of runner that wrote it"
            )
        document.pop("manifest_sha256", None)
        manifest = _SCHEMA.read(document)
    except Violation as violation:
        raise CheckpointError(f"the manifest is damaged: {violation}") from None
    if encode(manifest) != raw:
        raise CheckpointError("the manifest is damaged: its content does not match its own checksum")
    return manifest


def _canonical(document: Mapping[str, Any]) -> bytes:
    return (json.dumps(document, sort_keys=True, indent=1, allow_nan=False) + "\n").encode("ascii")
