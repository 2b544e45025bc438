"""Arenas: slots, references, and files that are private and freed."""

import os
import signal
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.engine.cluster.transport.private_directory import PrivateDirectory
from runner.engine.cluster.transport.shared_memory import (
    ALIGNMENT,
    ArenaReader,
    ArenaSpec,
    ArenaWriter,
    arena_bytes,
    create_arena,
    lay_out,
    unlink_arena,
)
from runner.errors import ResourceError, SecurityError

SIZES = {"a": 24, "b": 100, "empty": 0}


@pytest.fixture
def spec(private_directory: PrivateDirectory) -> ArenaSpec:
    return create_arena(private_directory.path, "worker-0/train", "worker-0", epoch=3, sizes=SIZES)


@given(st.dictionaries(st.text(max_size=3), st.integers(0, 300), max_size=8), st.randoms())
def test_slots_are_aligned_disjoint_inside_and_independent_of_order(sizes: dict[str, int], random: Any) -> None:
    slots = lay_out(sizes)
    ends = 0
    for _, slot in sorted(slots.items()):
        assert slot.offset % ALIGNMENT == 0
        assert slot.offset >= ends
        ends = slot.offset + slot.nbytes
    assert ends <= arena_bytes(sizes)
    shuffled = list(sizes.items())
    random.shuffle(shuffled)
    assert lay_out(dict(shuffled)) == slots


def test_reader_sees_the_written_value(spec: ArenaSpec) -> None:
    writer, reader = ArenaWriter(spec), ArenaReader(spec)
    transposed = np.arange(6, dtype=np.float32).reshape(2, 3).T
    reference = writer.put("a", transposed)
    view = reader.view("a", reference)
    np.testing.assert_array_equal(view, transposed)
    assert not view.flags.writeable
    assert reader.view("empty", writer.put("empty", np.zeros((0, 3)))).shape == (0, 3)


def test_slot_is_reused_in_the_next_step(spec: ArenaSpec) -> None:
    writer, reader = ArenaWriter(spec), ArenaReader(spec)
    first = writer.put("a", np.full(3, 1.0))
    assert reader.view("a", first).tolist() == [1.0] * 3
    assert writer.put("a", np.full(3, 2.0)) == first
    assert reader.view("a", first).tolist() == [2.0] * 3


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"offset": 128}, "a"),
        ({"offset": 2**62}, "a"),
        ({"shape": (4,), "length": 32}, "a"),
        ({"shape": (2**60,), "length": 2**63}, "a"),
        ({"shape": (0,), "length": 0}, "a"),
        ({"epoch": 2}, "a"),
        ({"arena": "worker-1/train"}, "a"),
        ({}, "b"),
        ({}, "no such key"),
    ],
)
def test_reference_to_another_slot_is_refused(spec: ArenaSpec, changes: dict[str, Any], key: str) -> None:
    reference = ArenaWriter(spec).put("a", np.zeros(3))
    with pytest.raises(SecurityError, match=r"of worker-0: reference to \(arena, epoch, offset, length\)"):
        ArenaReader(spec).view(key, replace(reference, **changes))


def test_writer_refuses_unknown_keys_and_wrong_sizes(spec: ArenaSpec) -> None:
    writer = ArenaWriter(spec)
    with pytest.raises(ValueError, match="'a': 32 bytes, but its slot in 'worker-0/train' has 24"):
        writer.put("a", np.zeros(4))
    with pytest.raises(KeyError):
        writer.put("c", np.zeros(4))


def test_file_is_private_and_reserved(spec: ArenaSpec) -> None:
    status = Path(spec.path).stat()
    assert status.st_mode & 0o777 == 0o600
    assert status.st_size == arena_bytes(SIZES) == 192
    assert status.st_blocks * 512 >= status.st_size


def test_file_of_another_kind_mode_or_size_is_refused(spec: ArenaSpec) -> None:
    path = Path(spec.path)
    with pytest.raises(SecurityError, match=r"expected .*, 256"):
        ArenaReader(replace(spec, sizes=SIZES | {"more": 1}))
    path.chmod(0o644)
    with pytest.raises(SecurityError, match="kind, mode, user, bytes"):
        ArenaReader(spec)
    path.chmod(0o600)
    link = path.with_name("link")
    link.symlink_to(path)
    with pytest.raises(SecurityError, match="cannot open"):
        ArenaWriter(replace(spec, path=str(link)))


def test_memory_outlives_its_file(spec: ArenaSpec) -> None:
    writer, reader = ArenaWriter(spec), ArenaReader(spec)
    unlink_arena(spec)
    assert not Path(spec.path).exists()
    reference = writer.put("a", np.arange(3.0))
    assert reader.view("a", reference).tolist() == [0.0, 1.0, 2.0]


def test_full_shared_memory_is_reported_and_leaves_no_file(private_directory: PrivateDirectory) -> None:
    huge = 2**50
    with pytest.raises(ResourceError, match=f"needs {huge} bytes of shared memory, .* has [0-9]+ free"):
        create_arena(private_directory.path, "x", "worker-0", 0, {"a": huge})
    assert list(private_directory.path.iterdir()) == []


MASTER_THAT_IS_KILLED = """
import os, signal, sys
from pathlib import Path
import numpy as np
from runner.engine.cluster.transport.private_directory import PrivateDirectory
from runner.engine.cluster.transport.shared_memory import ArenaReader, ArenaWriter, create_arena, unlink_arena

directory = PrivateDirectory.create(Path(sys.argv[1]))
spec = create_arena(directory.path, "arena", "worker-0", 0, {"a": 80})
writer, reader = ArenaWriter(spec), ArenaReader(spec)
unlink_arena(spec)
writer.put("a", np.zeros(10))
print(directory.path, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_next_run_removes_the_files_of_a_killed_master(tmp_path: Path) -> None:
    script = textwrap.dedent(MASTER_THAT_IS_KILLED)
    killed = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    left = Path(killed.stdout.strip())
    assert left.parent == tmp_path
    assert os.listdir(left) == []
    with PrivateDirectory.create(tmp_path) as mine:
        assert list(tmp_path.iterdir()) == [mine.path]
    assert list(tmp_path.iterdir()) == []
