"""What a checkpoint says about itself, as values that cannot be built wrong.

The same checks therefore hold for what is about to be written and for what a stranger's file claims.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field

import numpy as np

from runner.checkpoint import limits
from runner.errors import CheckpointError, NumericError

_SHA256 = re.compile(r"[0-9a-f]{64}")
_LARGEST_COUNT = 2**63 - 1

BEST_STEP = "best/step"
"""Of the progress: the step of the checkpoint that is kept as the best so far."""


def expect(holds: bool, what: str, came: object, expected: str) -> None:
    """Raise CheckpointError unless ``holds``; ``came`` may be hostile and is shown escaped and short."""
    if not holds:
        raise CheckpointError(f"checkpoint {what}: came {limits.shown(came)}, expected {expected}")


@dataclass(frozen=True)
class VariableRecord:
    """One unsharded variable: name, element type, shape, CRC32C of its bytes in C order, little endian."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    crc32c: int

    def __post_init__(self) -> None:
        expect(limits.is_variable_name(self.name), "variable name", self.name, limits.VARIABLE_RULE)
        expect(self.dtype in limits.DTYPES, f"dtype of {self.name}", self.dtype, f"one of {limits.DTYPES}")
        is_shape = len(self.shape) <= limits.MAX_DIMENSIONS and all(map(_is_count, self.shape))
        expect(is_shape, f"shape of {self.name}", self.shape, f"at most {limits.MAX_DIMENSIONS} sizes >= 0")
        is_crc = _is_count(self.crc32c) and self.crc32c < 2**32
        expect(is_crc, f"crc32c of {self.name}", self.crc32c, "an unsigned 32-bit number")

    @property
    def nbytes(self) -> int:
        """Size of the variable in bytes, in Python integers, which do not overflow."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


@dataclass(frozen=True)
class ShardRecord:
    """One safetensors file beside the manifest: name, size in bytes, SHA-256 in hex, variables by name."""

    file: str
    size: int
    sha256: str
    variables: tuple[VariableRecord, ...]

    def __post_init__(self) -> None:
        expect(limits.is_file_name(self.file), "shard name", self.file, limits.FILE_RULE)
        expect(bool(_SHA256.fullmatch(self.sha256)), "sha256 of a shard", self.sha256, "64 hex digits")
        payload = sum(variable.nbytes for variable in self.variables)
        is_size = _is_count(self.size) and payload < self.size <= payload + 8 + limits.MAX_HEADER_BYTES
        expect(is_size, f"size of {self.file}", self.size, f"{payload} bytes of variables and one header")


@dataclass(frozen=True)
class CheckpointMeta:
    """What the training loop stores beside the variables and gets back on resume.

    config_hash, run_id: letters, digits and ``. _ -``. epoch: number of this start of the run, from the run
    directory (not an epoch of the data). examples: training examples consumed so far. progress: finite
    numbers the loop continues from, such as the best metric so far or the seconds spent; named like
    variables. Its entry :data:`BEST_STEP` is the step of the checkpoint that is the best so far, this one or an
    earlier one.
    """

    config_hash: str
    run_id: str
    epoch: int
    examples: int
    progress: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        expect(limits.is_file_name(self.config_hash), "config_hash", self.config_hash, limits.FILE_RULE)
        expect(limits.is_file_name(self.run_id), "run_id", self.run_id, limits.FILE_RULE)
        expect(_is_count(self.epoch), "epoch", self.epoch, "a whole number >= 0")
        expect(_is_count(self.examples), "examples", self.examples, "a whole number >= 0")
        for name, value in self.progress.items():
            expect(limits.is_variable_name(name), "name in progress", name, limits.VARIABLE_RULE)
            expect(_is_number(value), f"progress {name}", value, "a float or an int of 64 bits")
            if not math.isfinite(value):
                raise NumericError(f"checkpoint progress {name}: came {value}, expected a finite number")

    @property
    def best_step(self) -> int | None:
        """The step of the best checkpoint so far, None where none is kept as such."""
        step = self.progress.get(BEST_STEP)
        return None if step is None else int(step)


@dataclass(frozen=True)
class Manifest:
    """The whole description of a checkpoint: step, the loop's own record, the shards with their variables."""

    step: int
    meta: CheckpointMeta
    shards: tuple[ShardRecord, ...]

    def __post_init__(self) -> None:
        expect(_is_count(self.step), "step", self.step, "a whole number >= 0")
        names = [variable.name for variable in self.variables]
        expect(len(names) <= limits.MAX_VARIABLES, "variables", len(names), f"at most {limits.MAX_VARIABLES}")
        expect(len(set(names)) == len(names), "variables", "one name twice", "every name once")
        files = [shard.file for shard in self.shards]
        expect(len(set(files)) == len(files), "shards", "one file twice", "every file once")

    @property
    def variables(self) -> tuple[VariableRecord, ...]:
        """The variables of all shards, shard after shard."""
        return tuple(variable for shard in self.shards for variable in shard.variables)


def _is_number(value: object) -> bool:
    return isinstance(value, float) or (type(value) is int and abs(value) <= _LARGEST_COUNT)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _LARGEST_COUNT
