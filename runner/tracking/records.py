"""Tracking records as values that can be queued, passed to another thread and spooled to a file.

Writing a record twice has the same effect as writing it once: a store recognises a repeated metric value by its time,
and a repeated record of any other kind replaces the first one.
"""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args

from runner.system.schema import AnyFloat, MapOf, Text
from runner.system.schema import Record as Schema


@dataclass(frozen=True, slots=True)
class Metrics:
    """Metric values of one step, recorded at ``time_ms`` (milliseconds since 1970)."""

    step: int
    time_ms: int
    values: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Params:
    """Configuration values: dotted key -> value as text."""

    values: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Tags:
    """Facts about the run; a later value of a key replaces an earlier one."""

    values: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Artifact:
    """A file to copy into the folder ``folder`` of the run's record in the store ("" is the root folder)."""

    path: str
    folder: str


@dataclass(frozen=True, slots=True)
class DataSplit:
    """A split of the run's dataset. split: "train", "validation" or "test". source: the files or the settings, as text.

    digest: at most 36 characters; equal digests stand for equal data. shape: of one example, without the batch.
    """

    name: str
    split: str
    digest: str
    source: str
    examples: int
    shape: list[int]


@dataclass(frozen=True, slots=True)
class ExportedModel:
    """A network after ``step`` updates, in a folder. code: name of the file in this folder that loads the network.

    shape: of one example, without the batch. outputs: the number of values that the network returns for an example.
    example: a value for each channel, from which an example input is made. requirement: the Python package that the
    network needs, in the syntax of pip.
    """

    folder: str
    code: str
    step: int
    shape: list[int]
    outputs: int
    example: list[float]
    requirement: str


@dataclass(frozen=True, slots=True)
class End:
    """The end of the run at ``time_ms``. status: one of ``base.STATUSES``."""

    status: str
    time_ms: int


Record = Metrics | Params | Tags | Artifact | DataSplit | ExportedModel | End

_SCHEMAS: dict[str, Schema[Any]] = {cls.__name__.lower(): Schema(cls) for cls in get_args(Record)}
VALUES = MapOf(Text(), AnyFloat())
"""The schema of metric values. JSON has only finite numbers, so other values are stored as "nan", "inf" and "-inf"."""


def now_ms() -> int:
    """Return the current time in milliseconds since 1970."""
    return round(time.time() * 1000)


def to_line(record: Record) -> str:
    """Return a record as one line of strict JSON, with its newline."""
    kind = type(record).__name__.lower()
    return json.dumps({"kind": kind, **_SCHEMAS[kind].write(record)}, allow_nan=False) + "\n"


def from_line(line: str) -> Record:
    """Return the record from a line that :func:`to_line` wrote; raises ValueError for any other text."""
    fields = json.loads(line)
    kind = fields.pop("kind", None) if isinstance(fields, dict) else None
    if kind not in _SCHEMAS:
        raise ValueError(f"not a tracking record: {line[:80]!r}; expected one of the kinds {', '.join(_SCHEMAS)}")
    record: Record = _SCHEMAS[kind].read(fields, kind)
    return record
