"""What a tracker has to say, as values: they wait in a queue, cross to a thread and may be spooled to a file.

A record written twice leaves the store as if written once: metrics carry the time they were made, which
stores use to recognise a repeated point, and the rest sets a value by its key.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Metrics:
    """Values of one step, made at ``time_ms`` (milliseconds since 1970)."""

    step: int
    time_ms: int
    values: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Params:
    """Flat configuration keys and their values as text."""

    values: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Tags:
    """Facts about the run; the last value of a key holds."""

    values: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Artifact:
    """A file to copy into ``folder`` of the record ("" is its root)."""

    path: str
    folder: str


@dataclass(frozen=True, slots=True)
class End:
    """The run ended at ``time_ms`` with one of ``base.STATUSES``."""

    status: str
    time_ms: int


Record = Metrics | Params | Tags | Artifact | End

_KINDS: dict[str, type[Record]] = {
    "metrics": Metrics,
    "params": Params,
    "tags": Tags,
    "artifact": Artifact,
    "end": End,
}
_KIND_OF = {cls: kind for kind, cls in _KINDS.items()}


def to_line(record: Record) -> str:
    """One line of strict JSON, newline included."""
    fields = asdict(record)
    if isinstance(record, Metrics):
        fields["values"] = encode_values(record.values)
    return json.dumps({"kind": _KIND_OF[type(record)], **fields}, allow_nan=False) + "\n"


def from_line(line: str) -> Record:
    """Read what ``to_line`` wrote; raises ValueError for anything else."""
    fields = json.loads(line)
    cls = _KINDS.get(fields.pop("kind", None)) if isinstance(fields, dict) else None
    if cls is None or set(fields) != set(cls.__dataclass_fields__):
        raise ValueError(f"not a tracking record: {line[:80]!r}; expected one of the kinds {', '.join(_KINDS)}")
    if cls is Metrics:
        fields["values"] = decode_values(fields["values"])
    return cls(**fields)


def encode_values(values: Mapping[str, float]) -> dict[str, float | str]:
    """Metric values for strict JSON, which has none that is not finite: those are "nan", "inf" and "-inf"."""
    return {key: value if math.isfinite(value) else str(value) for key, value in values.items()}


def decode_values(values: Any) -> dict[str, float]:
    """Undo ``encode_values``; raises ValueError if this is not a mapping to numbers."""
    if not isinstance(values, dict) or not all(isinstance(value, (int, float, str)) for value in values.values()):
        raise ValueError(f"metric values {str(values)[:80]}: expected a mapping from name to number")
    return {key: float(value) for key, value in values.items()}
