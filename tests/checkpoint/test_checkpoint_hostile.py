"""Foreign and forged checkpoints are refused with the reason. They are never executed and cause no large allocation."""

import gzip
import hashlib
import io
import json
import os
import pickle
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import pytest
from safetensors.numpy import save as save_safetensors

from runner.checkpoint import Manifest, load, newest, save
from runner.checkpoint.manifest import ShardRecord, VariableRecord, decode, encode
from runner.checkpoint.shard import pack
from runner.errors import CheckpointError, NumericError, ResourceError
from tests.checkpoint.conftest import FILES, META, VARIABLES


class Bomb:
    """An object whose unpickling creates a folder in the working directory."""

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, ("unpickled",)


def zipped(content: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("data.pkl", content)
    return buffer.getvalue()


def tarred(content: bytes) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        member = tarfile.TarInfo("pickle")
        member.size = len(content)
        archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def npy() -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, np.ones(3))
    return buffer.getvalue()


FOREIGN = [
    *[(pickle.dumps({"w": [1.0, 2.0]}, protocol=protocol), "a pickle") for protocol in range(6)],
    *[(pickle.dumps([1.0, 2.0], protocol=protocol), "a pickle") for protocol in range(6)],
    *[(pickle.dumps(Bomb(), protocol=protocol), "a pickle") for protocol in range(6)],
    (zipped(b"x"), "a zip archive"),
    (tarred(b"x"), "a tar archive"),
    (gzip.compress(b"x", mtime=0), "a gzip archive"),
    (npy(), r"a NumPy \.npy file"),
    (b"\x89HDF\r\n\x1a\n" + bytes(100), "an HDF5 file"),
]


@pytest.mark.parametrize(("content", "description"), FOREIGN)
@pytest.mark.parametrize("file", [*FILES, "model.pt"])
def test_foreign_formats_are_recognised_by_content(
    checkpoint: Path, file: str, content: bytes, description: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (checkpoint / file).write_bytes(content)
    path = checkpoint / file if file == "model.pt" else checkpoint
    with pytest.raises(CheckpointError, match=f"is {description}.*expected a checkpoint of runner"):
        load(path)
    assert not Path("unpickled").exists(), "a pickle was run"


def test_a_header_length_that_looks_like_a_pickle_is_accepted(tmp_path: Path) -> None:
    """If the header has 0x0280 bytes, the file begins with the same two bytes as a pickle of protocol 2."""
    for padding in range(300):
        variables = {"x" * (1 + padding): np.ones(1), "y" * 280: np.ones(1)}
        record, payload = pack(variables)
        if payload.startswith(b"\x80\x02"):
            assert load(write(tmp_path / "step-1", record, payload)).variables.keys() == variables.keys()
            return
    pytest.fail("no header has the required length")


def write(path: Path, record: Any, payload: bytes) -> Path:
    path.mkdir()
    (path / record.file).write_bytes(payload)
    (path / "manifest.json").write_bytes(encode(Manifest(1, META, (record,))))
    return path


def forge(checkpoint: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the manifest and its checksum, as an attacker would, so that they match."""
    path = checkpoint / "manifest.json"
    document = json.loads(path.read_bytes())
    del document["manifest_sha256"]
    change(document)
    text = json.dumps(document, sort_keys=True, indent=1) + "\n"
    document["manifest_sha256"] = hashlib.sha256(text.encode()).hexdigest()
    path.write_text(json.dumps(document, sort_keys=True, indent=1) + "\n")


def shard_of(document: dict[str, Any]) -> dict[str, Any]:
    shard: dict[str, Any] = document["shards"][0]
    return shard


def variable_of(document: dict[str, Any]) -> dict[str, Any]:
    variable: dict[str, Any] = shard_of(document)["variables"][0]
    return variable


def test_a_manifest_rewritten_without_changes_is_identical(checkpoint: Path) -> None:
    before = (checkpoint / "manifest.json").read_bytes()
    forge(checkpoint, lambda document: None)
    assert (checkpoint / "manifest.json").read_bytes() == before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.update(format_version=2), "format version 2 is newer than 1"),
        (lambda d: d.update(format_version=0), "format_version: 0, expected 1"),
        (lambda d: d.update(format_version=True), "format_version: True, expected 1"),
        (lambda d: d.update(config={"_target_": "os.system"}), r"unknown \['config'\], expected the fields step"),
        (lambda d: d.pop("meta"), r"missing \['meta'\]"),
        (lambda d: d.update(step="3"), "step: '3', expected a whole number"),
        (lambda d: d.update(step=2**63), "step: 9223372036854775808, expected"),
        (lambda d: d["meta"].update(run_id="a\nb"), r"meta\.run_id: 'a"),
        (lambda d: d["meta"].update(progress={"x": 10**400}), r"meta\.progress\[x\]: 1000"),
        (lambda d: d["meta"].update(progress={"x": "1"}), r"meta\.progress\[x\]: '1'"),
        (lambda d: d.update(shards=[None]), r"shards\[0\]: None, expected a map of file"),
        (lambda d: shard_of(d).update(file="../../etc/passwd"), r"shards\[0\]\.file: '\.\./\.\./etc/passwd'"),
        (lambda d: shard_of(d).update(file=".."), r"shards\[0\]\.file: '\.\.'"),
        (lambda d: shard_of(d).update(file="manifest.json"), r"shards\[0\]\.file: 'manifest\.json'"),
        (lambda d: shard_of(d).update(size=10**12), "size of variables.safetensors: 1000000000000"),
        (lambda d: shard_of(d).update(sha256="x"), r"sha256: 'x', expected 64 hex digits"),
        (lambda d: variable_of(d).update(name="__metadata__"), r"variables\[0\]\.name: '__metadata__'"),
        (lambda d: variable_of(d).update(dtype="object"), r"variables\[0\]\.dtype: 'object', expected one of"),
        (lambda d: variable_of(d).update(shape=[-1, 2]), r"variables\[0\]\.shape\[0\]: -1"),
        (lambda d: variable_of(d).update(shape=[1] * 9), "expected a list of at most 8"),
        (lambda d: variable_of(d).update(shape=["2"]), r"shape\[0\]: '2'"),
        (lambda d: variable_of(d).update(shape=[2**62] * 8), "size of variables.safetensors"),
        (lambda d: variable_of(d).update(shape=[3, 2]), r"the manifest has float32 \(3, 2\)"),
        (lambda d: variable_of(d).update(dtype="int32"), r"the manifest has int32 \(2, 3\)"),
        (lambda d: variable_of(d).update(crc32c=1), "conv/w is damaged: its CRC32C"),
        (lambda d: variable_of(d).update(crc32c=2**32), r"variables\[0\]\.crc32c: 4294967296"),
        (lambda d: variable_of(d).update(name="other"), "differ in the variables"),
        (lambda d: shard_of(d)["variables"].pop(), "differ in the variables"),
        (lambda d: shard_of(d)["variables"].append(shard_of(d)["variables"][0]), "a variable appears twice"),
        (lambda d: d["shards"].append({**shard_of(d), "variables": []}), "a file appears twice"),
    ],
)
def test_forged_manifest_is_refused(checkpoint: Path, change: Callable[[dict[str, Any]], object], message: str) -> None:
    forge(checkpoint, change)
    with pytest.raises(CheckpointError, match=message):
        load(checkpoint)


BF16 = b'{"conv/w":{"dtype":"BF16","shape":[30],"data_offsets":[0,60]}}'
"""The header of a shard with a dtype that NumPy does not have."""


def replace_shard(checkpoint: Path, payload: bytes) -> None:
    """Replace the shard, and update its size and checksum in the manifest."""
    (checkpoint / "variables.safetensors").write_bytes(payload)
    digest = hashlib.sha256(payload).hexdigest()
    forge(checkpoint, lambda document: shard_of(document).update(size=len(payload), sha256=digest))


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        ((8_000_001).to_bytes(8, "little") + bytes(200), "a header of 8000001 bytes, expected at most 8000000"),
        ((2**63).to_bytes(8, "little") + bytes(200), "a header of 9223372036854775808 bytes"),
        ((100).to_bytes(8, "little") + b"{" * 200, "is not a safetensors file"),
        (save_safetensors({"w": np.ones(20, np.float16)}), "differ in the variables"),
        (len(BF16).to_bytes(8, "little") + BF16 + bytes(60), r"is not a safetensors file: .*BF16"),
    ],
)
def test_forged_shard_is_refused(checkpoint: Path, payload: bytes, message: str) -> None:
    replace_shard(checkpoint, payload)
    with pytest.raises(CheckpointError, match=message):
        load(checkpoint)


def test_value_that_is_not_finite_is_not_loaded(checkpoint: Path) -> None:
    weights = np.array([[0, 1, 2], [3, -np.inf, 5]], np.float32)
    payload = save_safetensors({**VARIABLES, "conv/w": weights})
    replace_shard(checkpoint, payload)
    crc32c = google_crc32c.value(weights.tobytes())
    forge(checkpoint, lambda document: variable_of(document).update(crc32c=crc32c))
    with pytest.raises(NumericError, match=r"step-3: variable conv/w: 1 of 6 .* -inf at index \(1, 1\)"):
        load(checkpoint)
    assert newest(checkpoint.parent) is None


def test_checkpoint_larger_than_the_memory_is_refused(checkpoint: Path) -> None:
    def enlarge(document: dict[str, Any]) -> None:
        variable_of(document).update(dtype="uint8", shape=[2**55])
        shard_of(document).update(size=2**55 + 1000)

    forge(checkpoint, enlarge)
    with pytest.raises(ResourceError, match=r"needs \d+ bytes of memory, and this machine has \d+"):
        load(checkpoint)


def test_checkpoint_of_several_shards_loads(tmp_path: Path) -> None:
    parts = [pack({name: value}, file=f"part-{name[0]}.safetensors") for name, value in VARIABLES.items()]
    path = tmp_path / "step-3"
    path.mkdir()
    for record, payload in parts:
        (path / record.file).write_bytes(payload)
    records = tuple(record for record, _ in parts)
    (path / "manifest.json").write_bytes(encode(Manifest(3, META, records)))
    variables = load(path).variables
    assert variables.keys() == VARIABLES.keys()
    for name, value in VARIABLES.items():
        np.testing.assert_array_equal(variables[name], value)


def test_the_variables_of_the_deepest_network_fit_into_a_manifest() -> None:
    """ResNet-1001 with RMSProp and averaged weights has 14,020 variables."""
    names = [f"group{k % 3}_unit{k}_conv2/weights/mean_square" for k in range(14_020)]
    records = tuple(VariableRecord(name, "float32", (3, 3, 64, 64), 2**32 - 1) for name in names)
    size = sum(each.nbytes for each in records) + 1000
    manifest = Manifest(3, META, (ShardRecord("variables.safetensors", size, "0" * 64, records),))
    assert decode(encode(manifest)) == manifest


def test_a_manifest_larger_than_its_limit_is_not_written(tmp_path: Path) -> None:
    variables = {f"{'v' * 500}{k}": np.zeros(1) for k in range(14_000)}
    with pytest.raises(CheckpointError, match=r"manifest: \d+ bytes, expected at most 8000000"):
        save(tmp_path, step=1, variables=variables, meta=META)
    assert list(tmp_path.iterdir()) == []
