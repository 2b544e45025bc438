"""``manifest.json``: the record of a checkpoint as bytes, and back.

The file is one JSON document in one canonical spelling: sorted keys, one space of indentation, ASCII, a
newline at the end. Its field ``manifest_sha256`` is the SHA-256 of the same document without that field.
Reading decodes the fields it knows, encodes them again and compares the bytes, so a flipped bit anywhere in
the file shows, and so does a field that this format version does not have.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import TypeVar

from runner.checkpoint import limits
from runner.checkpoint.records import CheckpointMeta, Manifest, ShardRecord, VariableRecord, expect
from runner.errors import CheckpointError

Field = TypeVar("Field")


def encode(manifest: Manifest) -> bytes:
    """Return the content of ``manifest.json``. Raises CheckpointError when it exceeds 1 MB."""
    document = {"format_version": limits.FORMAT_VERSION, **asdict(manifest)}
    checksum = hashlib.sha256(_canonical(document)).hexdigest()
    encoded = _canonical({**document, "manifest_sha256": checksum})
    expect(len(encoded) <= limits.MAX_MANIFEST_BYTES, "manifest", f"{len(encoded)} bytes", "at most 1 MB")
    return encoded


def decode(raw: bytes) -> Manifest:
    """Return the manifest that ``raw`` spells. Raises CheckpointError when it is damaged or newer."""
    document = _parse(raw)
    version = _field(document, "format_version", int)
    if version > limits.FORMAT_VERSION:
        raise CheckpointError(
            f"format version {limits.shown(version)} is newer than {limits.FORMAT_VERSION}, the newest this "
            "runner reads: open the checkpoint with the version of runner that wrote it"
        )
    expect(version == limits.FORMAT_VERSION, "format_version", version, str(limits.FORMAT_VERSION))
    manifest = Manifest(
        step=_field(document, "step", int),
        meta=_meta(_field(document, "meta", dict)),
        shards=tuple(map(_shard, _field(document, "shards", list))),
    )
    if encode(manifest) != raw:
        raise CheckpointError("the manifest is damaged: its content does not match its own checksum")
    return manifest


def _canonical(document: Mapping[str, object]) -> bytes:
    return (json.dumps(document, sort_keys=True, indent=1, allow_nan=False) + "\n").encode("ascii")


def _parse(raw: bytes) -> object:
    """Decode JSON that may be hostile: too long, nested too deep, or no JSON at all."""
    expect(len(raw) <= limits.MAX_MANIFEST_BYTES, "manifest", "more than 1 MB", "at most 1 MB")
    try:
        document: object = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"the manifest is damaged: no JSON ({limits.shown(str(error))})") from None
    return document


def _field(document: object, name: str, kind: type[Field]) -> Field:
    """Return one field of a JSON object, of exactly this type: a bool is no int here."""
    value = document.get(name) if isinstance(document, dict) else None
    if isinstance(value, kind) and not (kind is int and isinstance(value, bool)):
        return value
    raise CheckpointError(
        f"the manifest is malformed: field {name} is {limits.shown(value)}, expected a value of type {kind.__name__}"
    )


def _meta(document: object) -> CheckpointMeta:
    return CheckpointMeta(
        config_hash=_field(document, "config_hash", str),
        run_id=_field(document, "run_id", str),
        epoch=_field(document, "epoch", int),
        examples=_field(document, "examples", int),
        progress=_field(document, "progress", dict),
    )


def _shard(document: object) -> ShardRecord:
    return ShardRecord(
        file=_field(document, "file", str),
        size=_field(document, "size", int),
        sha256=_field(document, "sha256", str),
        variables=tuple(map(_variable, _field(document, "variables", list))),
    )


def _variable(document: object) -> VariableRecord:
    return VariableRecord(
        name=_field(document, "name", str),
        dtype=_field(document, "dtype", str),
        shape=tuple(_field(document, "shape", list)),
        crc32c=_field(document, "crc32c", int),
    )
