"""Targets: readers of input from outside, each with valid seeds, and the errors with which it may refuse an input."""

import hashlib
import io
import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import msgpack
import numpy as np
import yaml
import zmq
from PIL import Image

from runner.checkpoint import load, save
from runner.checkpoint.manifest import decode as decode_manifest
from runner.checkpoint.shard import pack, unpack
from runner.config.conf_dir import conf_dir
from runner.config.configuration import fix_machine_values, load_stored, to_plain
from runner.config.hydra_app import compose
from runner.data.crops import Region
from runner.data.dataset import EncodedImage
from runner.data.decoding import OpenedImage
from runner.data.npz import read_array, read_headers
from runner.data.records.example import decode as decode_example
from runner.data.records.example import encode as encode_example
from runner.engine.cluster.assignment import Assignment
from runner.engine.cluster.transport.admission import Admission
from runner.engine.cluster.transport.encoding import decode_document, decode_header, encode_header
from runner.engine.cluster.transport.messages import Loaded
from runner.engine.cluster.transport.zmq_endpoint import ZmqEndpoint
from runner.engine.cluster.transport.zmq_sockets import Context, open_context
from runner.engine.cluster.worker_setup import WorkerSetup
from runner.engine.run import recording
from runner.engine.run.kernel_table import load_kernels
from runner.errors import ConfigError, RunnerError
from runner.records.data_facts import read_record
from runner.records.endings import read_endings
from runner.records.run_directory import run_and_starts
from runner.records.stored_run import read_plugins
from runner.records.summary import Summary
from runner.system.record_framing import framed, scan
from runner.system.schema import Violation
from runner.tables.table_file import read_table
from runner.tracking.metrics_log import read_metrics
from runner.training.build import build
from tests.checkpoint.conftest import FILES, META, VARIABLES
from tests.engine.cluster.test_worker_setup import SETUP
from tests.engine.cluster.transport.conftest import LIMITS, identity
from tests.engine.cluster.transport.test_admission import hello
from tests.engine.cluster.transport.test_encoding import EXAMPLES
from tests.engine.cluster.virtual_cluster import plans_of, remote_plan, there_and_back
from tests.fuzz.mutation import mutated_bytes, mutated_data
from tests.small_runs import composed_config

Read = Callable[[bytes, Path], object]


@dataclass(frozen=True)
class Target:
    """A reader of input from outside.

    seeds: takes an empty folder and returns valid inputs. read: takes one input, which is read, and a folder for files.
    refusals: the errors that ``read`` may raise. encode: encodes seeds that are plain data, which are then mutated as
    data and as bytes; None if seeds are bytes. share: part of the inputs of a campaign.
    """

    seeds: Callable[[Path], Sequence[Any]]
    read: Read
    refusals: tuple[type[Exception], ...] = (RunnerError,)
    encode: Callable[[Any], bytes] | None = None
    share: float = 0.02

    def input(self, seeds: Sequence[Any], random: Random) -> bytes:
        """Return a mutated input."""
        if self.encode is None:
            return mutated_bytes(random, seeds)
        if random.random() < 0.3:
            return mutated_bytes(random, [self.encode(random.choice(seeds))])
        while True:
            try:
                return self.encode(mutated_data(random, seeds))
            except (ValueError, OverflowError, yaml.YAMLError):
                continue  # The format has no such value.


def _plans(folder: Path) -> list[Any]:
    planned = remote_plan(plans_of(there_and_back(), load_kernels()), "run", folder)
    return [each.to_document() for each in planned.assignments.values()]


def _headers(folder: Path) -> list[Any]:
    """Return headers of worker-0, which has joined, and the hello of worker-1, which may join."""
    headers = [encode_header(identity("worker-0").envelope(1), each) for each in EXAMPLES]
    return list(map(msgpack.unpackb, [*headers, encode_header(identity("worker-1").envelope(0), hello("worker-1"))]))


def _header(data: bytes, folder: Path) -> None:
    """Read a header, and let a peer that was admitted and a stranger send it."""
    master = Admission(identity("master-0"), peers=2)
    master.admit(b"peer", encode_header(identity("worker-0").envelope(0), hello("worker-0")), ())
    with suppress(RunnerError):
        master.admit(b"peer", data, ())
    stranger = master.admit(b"stranger", data, ())
    assert stranger is None or stranger.message.kind == "hello"
    decode_header(data)


def _wire(seeds: Callable[[Path], Sequence[Any]], read: Read, share: float) -> Target:
    return Target(seeds, read, encode=msgpack.packb, share=share)


def _document(read: Callable[[object], object]) -> Read:
    return lambda data, folder: read(decode_document(memoryview(data)))


def _spans(folder: Path) -> list[Any]:
    kinds = enumerate(recording.KINDS)
    return [recording.to_document(recording.RawSpan(0, n, 1, n, kind, 10 * n, 10 * n + 5) for n, kind in kinds)]


@cache
def _master_and_worker(folder: Path) -> tuple[ExitStack, Context, str, ZmqEndpoint, ZmqEndpoint]:
    """Return a context and its owner, a master's address, and endpoints of the master and of a worker that joined."""
    owner = ExitStack()
    context = owner.enter_context(open_context(connections=1024))
    master_address, worker_address = (f"ipc://{folder}/{name}" for name in ("master-0", "worker-0"))
    master = ZmqEndpoint(context, identity("master-0"), master_address, LIMITS)
    worker = ZmqEndpoint(context, identity("worker-0"), worker_address, LIMITS)
    worker.connect("master-0", master_address)
    return owner, context, master_address, master, worker


def _sockets(data: bytes, folder: Path) -> None:
    """Send a header from a new connection; the next message of a worker must still arrive."""
    _, context, address, master, worker = _master_and_worker(folder)
    with context.socket(zmq.DEALER) as stranger:
        stranger.connect(address)
        stranger.send_multipart([data])
        worker.send("master-0", Loaded("p"))
        while (found := master.receive(5.0)) is None or found.message != Loaded("p"):
            assert found is not None, "the message of the worker did not arrive"


def _file(name: str, read: Callable[[Path], object]) -> Read:
    """Return a function that writes an input to a file and reads the file."""

    def written_and_read(data: bytes, folder: Path) -> None:
        path = folder / name
        path.write_bytes(data)
        read(path)

    return written_and_read


def _manifests(folder: Path) -> list[Any]:
    path = save(folder / "checkpoints", step=3, variables=VARIABLES, meta=META)
    return [json.loads((path / "manifest.json").read_bytes())]


def _manifest(data: bytes, folder: Path) -> None:
    """Read a manifest after its checksum was corrected, as by an attacker."""
    try:
        document = json.loads(data)
    except ValueError:
        document = None
    if isinstance(document, dict):
        document.pop("manifest_sha256", None)
        text = json.dumps(document, sort_keys=True, indent=1) + "\n"
        document["manifest_sha256"] = hashlib.sha256(text.encode()).hexdigest()
        data = (json.dumps(document, sort_keys=True, indent=1) + "\n").encode()
    decode_manifest(data)


def _shard(data: bytes, folder: Path) -> None:
    """Read the variables of a shard whose record has the size and the checksum of the input, as by an attacker."""
    record, _ = pack(VARIABLES)
    unpack(replace(record, size=len(data), sha256=hashlib.sha256(data).hexdigest()), data)


def _checkpoint(data: bytes, folder: Path) -> None:
    """Load a checkpoint with the input in place of one file; any change must be found."""
    path = folder / "checkpoints" / "step-3"
    valid = _checkpoint_files(folder)
    file = path / FILES[0 if data.startswith(valid[0][:2]) else 1]
    before = file.read_bytes()
    file.write_bytes(data)
    try:
        load(path)
        assert data == before, "a changed checkpoint was loaded"
    finally:
        file.write_bytes(before)


def _checkpoint_files(folder: Path) -> list[bytes]:
    path = folder / "checkpoints" / "step-3"
    if not path.exists():
        save(path.parent, step=3, variables=VARIABLES, meta=META)
    return [(path / file).read_bytes() for file in FILES]


def _npz(folder: Path) -> list[bytes]:
    seeds = []
    for write in (np.savez, np.savez_compressed):
        file = io.BytesIO()
        write(
            file, x=np.arange(24, dtype=np.uint8).reshape(2, 3, 4), y=np.linspace(0, 1, 7), z=np.array(["one", "three"])
        )
        seeds.append(file.getvalue())
    return seeds


def _read_npz(path: Path) -> None:
    for name in read_headers(path):
        read_array(path, name)


EXAMPLE = {"image": [b"\xff\xd8" * 9], "label": np.array([3]), "box": np.array([0.25, -1.0], np.float32)}


def _records(data: bytes, folder: Path) -> None:
    for found in scan(io.BytesIO(data), len(data)):
        str(found)


def _images(folder: Path) -> list[bytes]:
    seeds = []
    pixels = np.random.default_rng(0).integers(0, 256, (24, 32, 3), np.uint8)
    for mode in ("RGB", "L", "CMYK"):
        for form in ("JPEG", "PNG"):
            if (mode, form) != ("CMYK", "PNG"):
                file = io.BytesIO()
                Image.fromarray(pixels).convert(mode).save(file, form)
                seeds.append(file.getvalue())
    return seeds


def _image(data: bytes, folder: Path) -> None:
    opened = OpenedImage(EncodedImage(data, "an image"), 3)
    opened.region(Region(0, 0, opened.size.height, opened.size.width), 16, 16)


_OUTCOME = "0" * 64


@cache
def _run() -> Mapping[str, bytes]:
    """Return name -> content of the files of a run of four steps on two asynchronous workers."""
    options = ["model=mlp", "data=digits", "train.steps=4", "tracking=none", "parallelism=async_data"]
    with TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "runner", *options, "parallelism.workers=2", f"hydra.run.dir={folder}/run"]
        subprocess.run(command, check=True, capture_output=True)
        found = {path.name: path.read_bytes() for path in Path(folder, "run").iterdir() if path.is_file()}
    outcome = json.loads(found["endings-1.jsonl"].splitlines()[0])["outcome"]
    return found | {"endings-1.jsonl": found["endings-1.jsonl"].replace(outcome.encode(), _OUTCOME.encode())}


def _of_run(name: str, read: Callable[[Path], object], encode: Callable[[Any], bytes]) -> Target:
    """Return the target for a file of a run's directory. encode: its format."""
    parse = {
        _json: json.loads,
        _json_lines: lambda text: list(map(json.loads, text.splitlines())),
        _yaml: yaml.safe_load,
    }[encode]
    return Target(lambda folder: [parse(_run()[name])], _file(name, read), encode=encode)


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()


def _json_lines(value: Any) -> bytes:
    lines = value if isinstance(value, list) else [value]
    return "".join(json.dumps(each) + "\n" for each in lines).encode()


def _yaml(value: Any) -> bytes:
    return yaml.safe_dump(value, sort_keys=False).encode()


def _endings(path: Path) -> None:
    read_endings(path, _OUTCOME)


def _tables(folder: Path) -> list[Any]:
    return [yaml.safe_load((conf_dir() / "table" / "whitepaper_batch.yaml").read_text())]


def _overrides(folder: Path) -> list[Any]:
    """Return command lines as key -> value: an option of a group, and the value of a key in its configuration."""
    seeds = []
    for group in ("model", "optimizer", "parallelism", "schedule", "task", "data"):
        for option in sorted(path.stem for path in (conf_dir() / group).glob("*.yaml")):
            with suppress(ConfigError):  # of options that do not fit the default configuration
                config = composed_config(f"{group}={option}")
                build(fix_machine_values(config, 2))
                found = to_plain(config)
                keys = [key for key in found[group] if key != "name"]
                seeds += [{group: option, f"{group}.{key}": found[group][key]} for key in keys]
    return seeds + [{f"{name}.{key}": found[name][key]} for name in ("train", "cluster") for key in found[name]]


def _override_text(value: Any) -> str:
    """Return a value in the grammar of overrides, which has unquoted keys."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{_override_text(inner)}" for key, inner in value.items()) + "}"
    return f"[{','.join(map(_override_text, value))}]" if isinstance(value, list) else json.dumps(value)


def _composed(data: bytes, folder: Path) -> None:
    try:
        overrides = json.loads(data)
    except ValueError:
        return
    if isinstance(overrides, dict):
        config = compose([f"{key}={_override_text(value)}" for key, value in overrides.items()]).config()
        build(fix_machine_values(config, 2))


TARGETS: Mapping[str, Target] = {
    "message header": _wire(_headers, _header, 0.5),
    "message over a socket": _wire(_headers, _sockets, 0.01),
    "setup document": _wire(lambda folder: [SETUP.to_document()], _document(WorkerSetup.from_document), 0.2),
    "plan document": _wire(_plans, _document(lambda found: Assignment.from_document(found, load_kernels())), 0.1),
    "trace document": _wire(_spans, _document(lambda found: recording.from_document(found, "worker-0")), 0.2),
    "checkpoint manifest": Target(_manifests, _manifest, encode=_json, share=0.6),
    "checkpoint shard": Target(lambda folder: [pack(VARIABLES)[1]], _shard, (RunnerError, Violation), share=0.4),
    "checkpoint": Target(_checkpoint_files, _checkpoint),
    "npz file": Target(_npz, _file("data.npz", _read_npz), share=0.05),
    "records": Target(lambda folder: [framed(b"one") + framed(b"x" * 99)], _records, share=0.05),
    "record of an example": Target(
        lambda folder: [encode_example(EXAMPLE)], lambda data, folder: decode_example(data), (ValueError,), share=0.05
    ),
    "image": Target(_images, _image, share=0.05),
    "run.json": _of_run("run.json", lambda path: run_and_starts(path.parent), _json),
    "config.yaml": _of_run("config.yaml", load_stored, _yaml),
    "summary.json": _of_run("summary.json", Summary.read, _json),
    "data.json": _of_run("data.json", lambda path: read_record(path.parent), _json),
    "plugins.json": _of_run("plugins.json", lambda path: read_plugins(path.parent), _json),
    "metrics.jsonl": replace(
        _of_run("metrics.jsonl", lambda path: list(read_metrics(path)), _json_lines), refusals=(ValueError,)
    ),
    "endings-1.jsonl": _of_run("endings-1.jsonl", _endings, _json_lines),
    "command line": Target(_overrides, _composed, encode=_json, share=0.01),
    "table file": Target(_tables, _file("table.yaml", read_table), encode=_yaml),
}
