"""Damaged, foreign and hostile checkpoints: refused with the reason, never returned, never executed."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import pickle
import shutil
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from safetensors.numpy import save as save_safetensors

from runner.checkpoint import CheckpointMeta, Manifest, load, newest, save
from runner.checkpoint.manifest import encode
from runner.checkpoint.shard import pack
from runner.errors import CheckpointError, NumericError, ResourceError, SecurityError

VARIABLES: dict[str, NDArray[Any]] = {
    "conv/w": np.arange(6, dtype=np.float32).reshape(2, 3),
    "step": np.array(3, np.int64),
}
META = CheckpointMeta(config_hash="c0ffee", run_id="0123abcd", epoch=1, examples=64, progress={"best": 0.5})
FILES = ("manifest.json", "variables.safetensors")


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return save(tmp_path / "checkpoints", step=3, variables=VARIABLES, meta=META)


@pytest.fixture(scope="module")
def shared_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One checkpoint for the tests that damage it a hundred times and mend it each time."""
    return save(tmp_path_factory.mktemp("checkpoints"), step=3, variables=VARIABLES, meta=META)


@pytest.mark.parametrize("file", FILES)
@given(position=st.integers(0, 10**6), bit=st.integers(0, 7))
def test_any_flipped_bit_is_found(shared_checkpoint: Path, file: str, position: int, bit: int) -> None:
    path = shared_checkpoint / file
    original = path.read_bytes()
    flipped = bytearray(original)
    flipped[position % len(flipped)] ^= 1 << bit
    path.write_bytes(flipped)
    try:
        with pytest.raises(CheckpointError):
            load(shared_checkpoint)
    finally:
        path.write_bytes(original)


@pytest.mark.parametrize("file", FILES)
@given(length=st.integers(0, 10**6))
def test_any_truncation_is_found(shared_checkpoint: Path, file: str, length: int) -> None:
    path = shared_checkpoint / file
    original = path.read_bytes()
    path.write_bytes(original[: length % len(original)])
    try:
        with pytest.raises(CheckpointError):
            load(shared_checkpoint)
    finally:
        path.write_bytes(original)


@pytest.mark.parametrize(
    ("file", "damage", "message"),
    [
        ("manifest.json", lambda raw: raw + b"\n", "the manifest is damaged: its content does not match"),
        ("manifest.json", lambda raw: raw.replace(b"64", b"65", 1), "does not match its own checksum"),
        ("manifest.json", lambda raw: raw[:-20], "the manifest is damaged: no JSON"),
        ("manifest.json", lambda raw: b"[" * 100_000, "the manifest is damaged: no JSON"),
        ("manifest.json", lambda raw: b"[]", "the manifest is malformed: field format_version"),
        (
            "manifest.json",
            lambda raw: b" " * 1_000_001,
            "manifest: came 'more than 1 MB', expected at most 1 MB",
        ),
        ("variables.safetensors", lambda raw: raw + b"x", "is longer than the 1"),
        ("variables.safetensors", lambda raw: raw[:-1], "is shorter than the 1"),
        ("variables.safetensors", lambda raw: raw[:-1] + b"x", "its SHA-256 is .*, the manifest says"),
    ],
)
def test_damage_is_named(checkpoint: Path, file: str, damage: Callable[[bytes], bytes], message: str) -> None:
    path = checkpoint / file
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(CheckpointError, match=f"checkpoints/step-3: .*{message}"):
        load(checkpoint)


@pytest.mark.parametrize("file", FILES)
def test_missing_file_is_named(checkpoint: Path, file: str) -> None:
    (checkpoint / file).unlink()
    with pytest.raises(CheckpointError, match=f"step-3: cannot be read: No such file or directory .{file}"):
        load(checkpoint)


def test_newest_skips_damaged_checkpoints_and_says_so(
    checkpoint: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory = checkpoint.parent
    for step in (4, 5, 6, 7):
        save(directory, step=step, variables=VARIABLES, meta=META, keep=9)
    (directory / "step-7" / "variables.safetensors").write_bytes(b"")
    (directory / "step-6" / "manifest.json").unlink()
    shutil.rmtree(directory / "step-5")
    (directory / "step-5").symlink_to(directory / "step-4")
    assert newest(directory) == directory / "step-4"
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == 3
    assert "step-7: variables.safetensors is damaged: it is shorter" in warnings[0]
    assert "step-6: cannot be read: No such file" in warnings[1]
    assert "step-5: is a symbolic link" in warnings[2]


def test_newest_returns_none_when_all_are_damaged(checkpoint: Path) -> None:
    (checkpoint / "manifest.json").write_bytes(b"{}")
    assert newest(checkpoint.parent) is None


def test_renamed_checkpoint_is_refused(checkpoint: Path) -> None:
    with pytest.raises(CheckpointError, match="the manifest says step 3, the name of the directory another"):
        load(checkpoint.rename(checkpoint.with_name("step-9")))


def test_checkpoint_under_a_name_of_its_own_loads(checkpoint: Path) -> None:
    assert load(checkpoint.rename(checkpoint.with_name("best"))).step == 3


@pytest.mark.parametrize("file", FILES)
def test_symbolic_link_inside_is_refused(checkpoint: Path, file: str) -> None:
    target = checkpoint.parent / "elsewhere"
    (checkpoint / file).rename(target)
    (checkpoint / file).symlink_to(target)
    with pytest.raises(SecurityError, match=f"step-3: {file} is a symbolic link"):
        load(checkpoint)


def test_symbolic_link_to_a_checkpoint_is_refused(checkpoint: Path) -> None:
    link = checkpoint.with_name("step-9")
    link.symlink_to(checkpoint)
    with pytest.raises(SecurityError, match="step-9: is a symbolic link; expected a real directory"):
        load(link)


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
@pytest.mark.parametrize("file", FILES)
def test_special_file_is_refused_without_waiting(
    checkpoint: Path, file: str, make: Callable[[Path], None]
) -> None:
    (checkpoint / file).unlink()
    make(checkpoint / file)
    with pytest.raises(SecurityError, match=f"{file} is not a regular file"):
        load(checkpoint)


def test_missing_checkpoint_and_file_in_its_place(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="there is no such checkpoint; expected a directory step-N"):
        load(tmp_path / "step-1")
    (tmp_path / "step-1").write_bytes(save_safetensors(VARIABLES))
    with pytest.raises(CheckpointError, match=r"is a file; expected a directory with manifest\.json"):
        load(tmp_path / "step-1")


class Bomb:
    """Unpickling this creates the file it names."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self.path),)


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
    (zipped(b"x"), "a zip archive"),
    (tarred(b"x"), "a tar archive"),
    (gzip.compress(b"x"), "a gzip archive"),
    (npy(), r"a NumPy \.npy file"),
    (b"\x89HDF\r\n\x1a\n" + bytes(100), "an HDF5 file"),
]


@pytest.mark.parametrize(("content", "description"), FOREIGN)
@pytest.mark.parametrize("file", [*FILES, "model.pt"])
def test_foreign_formats_are_recognised_by_content(
    checkpoint: Path, file: str, content: bytes, description: str
) -> None:
    (checkpoint / file).write_bytes(content)
    path = checkpoint / file if file == "model.pt" else checkpoint
    with pytest.raises(CheckpointError, match=f"is {description}.*expected a checkpoint of runner"):
        load(path)


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("file", FILES)
def test_pickles_are_never_run(checkpoint: Path, file: str, protocol: int, tmp_path: Path) -> None:
    marker = tmp_path / "executed"
    (checkpoint / file).write_bytes(pickle.dumps(Bomb(marker), protocol=protocol))
    with pytest.raises(CheckpointError, match="is a pickle"):
        load(checkpoint)
    assert not marker.exists()


def test_header_length_like_a_pickle_is_no_pickle(tmp_path: Path) -> None:
    """A header of 0x0280 bytes begins with the two bytes of a pickle of protocol 2."""
    for padding in range(300):
        variables = {"x" * (1 + padding): np.ones(1), "y" * 280: np.ones(1)}
        record, payload = pack(variables)
        if payload.startswith(b"\x80\x02"):
            assert load(write(tmp_path / "step-1", record, payload)).variables.keys() == variables.keys()
            return
    pytest.fail("no header of the length looked for")


def write(path: Path, record: Any, payload: bytes) -> Path:
    path.mkdir()
    (path / record.file).write_bytes(payload)
    (path / "manifest.json").write_bytes(encode(Manifest(1, META, (record,))))
    return path


def forge(checkpoint: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the manifest as an attacker would: with the checksum that goes with it."""
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


def test_forging_nothing_changes_nothing(checkpoint: Path) -> None:
    before = (checkpoint / "manifest.json").read_bytes()
    forge(checkpoint, lambda document: None)
    assert (checkpoint / "manifest.json").read_bytes() == before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.update(format_version=2), "format version 2 is newer than 1"),
        (lambda d: d.update(format_version=0), "format_version: came 0, expected 1"),
        (lambda d: d.update(format_version=True), "field format_version is True"),
        (lambda d: d.update(config={"_target_": "os.system"}), "does not match its own checksum"),
        (lambda d: d.pop("meta"), "field meta is None"),
        (lambda d: d.update(step="3"), "field step is '3', expected a value of type int"),
        (lambda d: d.update(step=2**63), "step: came 9223372036854775808"),
        (lambda d: d["meta"].update(run_id="a\nb"), "run_id: came 'a"),
        (lambda d: d["meta"].update(progress={"x": 10**400}), "progress x: came 1000"),
        (lambda d: d["meta"].update(progress={"x": "1"}), "progress x: came '1'"),
        (lambda d: d.update(shards=[None]), "field file is None"),
        (lambda d: shard_of(d).update(file="../../etc/passwd"), "shard name: came '../../etc/passwd'"),
        (lambda d: shard_of(d).update(file=".."), r"shard name: came '\.\.'"),
        (lambda d: shard_of(d).update(file="manifest.json"), "shard name: came 'manifest.json'"),
        (lambda d: shard_of(d).update(size=10**12), "size of variables.safetensors: came 1000000000000"),
        (lambda d: shard_of(d).update(sha256="x"), "sha256 of a shard: came 'x'"),
        (
            lambda d: shard_of(d)["variables"][0].update(name="__metadata__"),
            "variable name: came '__metadata__'",
        ),
        (lambda d: shard_of(d)["variables"][0].update(dtype="object"), "dtype of conv/w: came 'object'"),
        (lambda d: shard_of(d)["variables"][0].update(shape=[-1, 2]), "shape of conv/w"),
        (lambda d: shard_of(d)["variables"][0].update(shape=[1] * 9), "expected at most 8 sizes"),
        (lambda d: shard_of(d)["variables"][0].update(shape=["2"]), "shape of conv/w"),
        (lambda d: shard_of(d)["variables"][0].update(shape=[2**62] * 8), "size of variables.safetensors"),
        (lambda d: shard_of(d)["variables"][0].update(shape=[3, 2]), r"the manifest says float32 \(3, 2\)"),
        (lambda d: shard_of(d)["variables"][0].update(dtype="int32"), r"the manifest says int32 \(2, 3\)"),
        (lambda d: shard_of(d)["variables"][0].update(crc32c=1), "conv/w is damaged: its CRC32C"),
        (lambda d: shard_of(d)["variables"][0].update(crc32c=2**32), "crc32c of conv/w"),
        (lambda d: shard_of(d)["variables"][0].update(name="other"), "disagree about the variables"),
        (lambda d: shard_of(d)["variables"].pop(), "disagree about the variables"),
        (lambda d: shard_of(d)["variables"].append(shard_of(d)["variables"][0]), "one name twice"),
        (lambda d: d["shards"].append({**shard_of(d), "variables": []}), "one file twice"),
    ],
)
def test_forged_manifest_is_refused(
    checkpoint: Path, change: Callable[[dict[str, Any]], object], message: str
) -> None:
    forge(checkpoint, change)
    with pytest.raises(CheckpointError, match=message):
        load(checkpoint)


def replace_shard(checkpoint: Path, payload: bytes) -> None:
    """Put another shard beside a manifest that vouches for it."""
    (checkpoint / "variables.safetensors").write_bytes(payload)
    digest = hashlib.sha256(payload).hexdigest()
    forge(checkpoint, lambda document: shard_of(document).update(size=len(payload), sha256=digest))


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        (
            (8_000_001).to_bytes(8, "little") + bytes(200),
            "a header of 8000001 bytes, expected at most 8000000",
        ),
        ((2**63).to_bytes(8, "little") + bytes(200), "a header of 9223372036854775808 bytes"),
        ((100).to_bytes(8, "little") + b"{" * 200, "is not a safetensors file"),
        (save_safetensors({"w": np.ones(20, np.float16)}), "disagree about the variables"),
    ],
)
def test_forged_shard_is_refused(checkpoint: Path, payload: bytes, message: str) -> None:
    replace_shard(checkpoint, payload)
    with pytest.raises(CheckpointError, match=message):
        load(checkpoint)


def test_shard_of_a_type_without_numpy_equivalent_is_refused(checkpoint: Path) -> None:
    header = b'{"conv/w":{"dtype":"BF16","shape":[30],"data_offsets":[0,60]}}'
    replace_shard(checkpoint, len(header).to_bytes(8, "little") + header + bytes(60))
    with pytest.raises(CheckpointError, match=r"variables\.safetensors is not a safetensors file: .*BF16"):
        load(checkpoint)


def test_value_that_is_not_finite_is_not_loaded(checkpoint: Path) -> None:
    weights = np.array([[0, 1, 2], [3, -np.inf, 5]], np.float32)
    payload = save_safetensors({**VARIABLES, "conv/w": weights})
    replace_shard(checkpoint, payload)
    crc32c = google_crc32c.value(weights.tobytes())
    forge(checkpoint, lambda document: shard_of(document)["variables"][0].update(crc32c=crc32c))
    with pytest.raises(NumericError, match=r"step-3: variable conv/w: 1 of 6 .* -inf at index \(1, 1\)"):
        load(checkpoint)
    assert newest(checkpoint.parent) is None


def test_checkpoint_larger_than_the_memory_is_refused(checkpoint: Path) -> None:
    def enlarge(document: dict[str, Any]) -> None:
        shard_of(document)["variables"][0].update(dtype="uint8", shape=[2**55])
        shard_of(document).update(size=2**55 + 1000)

    forge(checkpoint, enlarge)
    with pytest.raises(ResourceError, match=r"holds \d+ bytes, the memory of this machine \d+"):
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


def test_manifest_that_grows_over_its_limit_is_not_written(tmp_path: Path) -> None:
    variables = {f"{'v' * 500}{k}": np.zeros(1) for k in range(2000)}
    with pytest.raises(CheckpointError, match=r"manifest: came '\d+ bytes', expected at most 1 MB"):
        save(tmp_path, step=1, variables=variables, meta=META)
    assert list(tmp_path.iterdir()) == []
