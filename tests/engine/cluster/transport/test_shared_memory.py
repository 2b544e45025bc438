"""Arenas: slots, and private files that are removed after use."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.engine.cluster.transport import shared_memory
from runner.engine.cluster.transport.private_directory import private_directory
from runner.engine.cluster.transport.shared_memory import ArenaReader, ArenaSpec, ArenaWriter, create_arena
from runner.errors import ResourceError, SecurityError

SIZES = {"a": 24, "b": 100, "empty": 0}


@pytest.fixture
def spec(directory: Path) -> Iterator[ArenaSpec]:
    spec = create_arena(directory, "worker-0/train", "worker-0", SIZES)
    assert list(directory.iterdir()) == []
    yield spec
    shared_memory.close_arena(spec)


@given(st.dictionaries(st.text(max_size=3), st.integers(0, 300), max_size=8), st.randoms())
def test_slots_are_aligned_disjoint_in_the_arena_and_independent_of_order(sizes: dict[str, int], random: Any) -> None:
    slots = shared_memory.lay_out(sizes)
    ends = 0
    for _, slot in sorted(slots.items()):
        assert slot.start % shared_memory.ALIGNMENT == 0
        assert slot.start >= ends
        ends = slot.stop
    assert ends <= shared_memory.arena_bytes(sizes)
    shuffled = list(sizes.items())
    random.shuffle(shuffled)
    assert shared_memory.lay_out(dict(shuffled)) == slots


def test_reader_sees_the_written_value(spec: ArenaSpec) -> None:
    writer, reader = ArenaWriter(spec), ArenaReader(spec)
    transposed = np.arange(6, dtype=np.float32).reshape(2, 3).T
    writer.put("a", transposed)
    view = reader.read("a", "float32", (3, 2))
    np.testing.assert_array_equal(view, transposed)
    assert not view.flags.writeable
    writer.put("empty", np.zeros((0, 3)))
    assert reader.read("empty", "float64", (0, 3)).shape == (0, 3)
    for value in (1.0, 2.0):
        writer.put("a", np.full(3, value))
        assert reader.read("a", "float64", (3,)).tolist() == [value] * 3


def test_writer_refuses_unknown_keys_and_wrong_sizes(spec: ArenaSpec) -> None:
    writer = ArenaWriter(spec)
    with pytest.raises(ValueError, match="'a': 32 bytes, but its slot in 'worker-0/train' has 24"):
        writer.put("a", np.zeros(4))
    with pytest.raises(KeyError):
        writer.put("c", np.zeros(4))


def test_file_is_private_and_reserved(spec: ArenaSpec) -> None:
    status = Path(spec.path).stat()
    assert status.st_mode & 0o777 == 0o600
    assert status.st_size == shared_memory.arena_bytes(SIZES) == 192
    assert status.st_blocks * 512 >= status.st_size


def test_file_of_another_kind_mode_or_size_is_refused(spec: ArenaSpec) -> None:
    path = Path(spec.path)
    with pytest.raises(SecurityError, match=r"expected .*, 256"):
        ArenaReader(replace(spec, sizes=SIZES | {"more": 1}))
    path.chmod(0o644)
    with pytest.raises(SecurityError, match="kind, mode, user, bytes"):
        ArenaReader(spec)
    path.chmod(0o600)
    for other in ("/etc/passwd", "/proc/self/fd/0", f"{path}/../0", f"/dev/shm{path}"):
        with pytest.raises(SecurityError, match="expected a descriptor in /proc"):
            ArenaWriter(replace(spec, path=other))


def test_full_shared_memory_is_reported_and_leaves_no_file(directory: Path) -> None:
    huge = 2**50
    with pytest.raises(ResourceError, match=f"needs {huge} bytes of shared memory, .* has [0-9]+ free"):
        create_arena(directory, "x", "worker-0", {"a": huge})
    assert list(directory.iterdir()) == []


MASTER_THAT_IS_KILLED = """
import os, signal, sys
from pathlib import Path
import numpy as np
from runner.engine.cluster.transport.private_directory import private_directory
from runner.engine.cluster.transport.shared_memory import ArenaReader, ArenaWriter, create_arena

created = private_directory(Path(sys.argv[1]))
directory = created.__enter__()
spec = create_arena(directory, "arena", "worker-0", {"a": 80})
writer, reader = ArenaWriter(spec), ArenaReader(spec)
writer.put("a", np.zeros(10))
print(directory, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_next_run_removes_the_files_of_a_killed_master(tmp_path: Path) -> None:
    command = [sys.executable, "-c", MASTER_THAT_IS_KILLED, str(tmp_path)]
    killed = subprocess.run(command, capture_output=True, text=True, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    left = Path(killed.stdout.strip())
    assert left.parent == tmp_path
    assert os.listdir(left) == []
    with private_directory(tmp_path) as mine:
        assert list(tmp_path.iterdir()) == [mine]
    assert list(tmp_path.iterdir()) == []


def test_boolean_is_zero_or_one(directory: Path) -> None:
    spec = create_arena(directory, "worker-0/train", "worker-0", {"a": 2})
    writer, reader = ArenaWriter(spec), ArenaReader(spec)
    writer.put("a", np.array([False, True]))
    assert reader.read("a", "bool", (2,)).tolist() == [False, True]
    writer.put("a", np.array([0, 2], np.uint8))
    with pytest.raises(SecurityError, match="'worker-0/train' of worker-0: byte 2 in a, a tensor of booleans"):
        reader.read("a", "bool", (2,))
