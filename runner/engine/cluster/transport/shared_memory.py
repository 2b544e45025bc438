"""Shared-memory arenas: files through which the tensors of one process reach the other processes of a host.

An arena belongs to one sending process and one plan. Its file has no name: the master keeps a descriptor, and all other
processes, including later replacements, open the file through this descriptor. The kernel frees the memory when the
last descriptor and the last mapping are closed. A doorbell in the arena or a message announces a tensor.

Processes that do not share memory, such as processes on different hosts, hold separate copies of an arena with the same
layout; the bytes of each tensor are sent over the socket and copied into the receiver's copy.

Every tensor has a key and a slot (a range of bytes), which its sender writes only before it announces the tensor.
:class:`~runner.engine.run.rendezvous.Rendezvous` states when slots may be reused and how long views are valid.
"""

import mmap
import os
import re
import secrets
import stat
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import ml_dtypes  # noqa: F401 - registers the dtype bfloat16 with NumPy
import numpy as np
from numpy.typing import NDArray

from runner.errors import ResourceError, SecurityError
from runner.system.schema import Integer, MapOf, Text
from runner.system.text import printable

ALIGNMENT = 64  # alignment of slots in bytes: the size of a cache line and of the widest vector register
FILE_MODE = 0o600
_DESCRIPTOR = re.compile(r"/proc/[0-9]{1,10}/fd/[0-9]{1,10}")


@dataclass(frozen=True, slots=True)
class ArenaSpec:
    """The data with which a process opens an arena.

    name: unique in the run, for error messages. owner: the peer that writes. path: the master's descriptor of the file
    in /proc, or "" if the process does not share the owner's memory and has a separate copy. sizes: key -> bytes;
    :func:`lay_out` derives the offsets.
    """

    name: Annotated[str, Text(128)]
    owner: Annotated[str, Text(32)]
    path: Annotated[str, Text(4096)]
    sizes: Annotated[Mapping[str, int], MapOf(Text(512), Integer(), 2**20)]

    @property
    def is_copy(self) -> bool:
        """Whether the process has a separate copy of the arena, which shares no memory with the owner."""
        return not self.path

    @property
    def copy(self) -> "ArenaSpec":
        """The specification for a process that does not share memory with the owner."""
        return replace(self, path="")


def lay_out(sizes: Mapping[str, int]) -> dict[str, slice]:
    """Return the slot of every key. The slots are aligned and follow one another, sorted by key."""
    slots: dict[str, slice] = {}
    offset = 0
    for key in sorted(sizes):
        slots[key] = slice(offset, offset + sizes[key])
        offset = _aligned(offset + sizes[key])
    return slots


def arena_bytes(sizes: Mapping[str, int]) -> int:
    """Return the file size for ``sizes``; never 0, because an empty file cannot be mapped."""
    return max(ALIGNMENT, sum(_aligned(nbytes) for nbytes in sizes.values()))


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def create_arena(directory: Path, name: str, owner: str, sizes: Mapping[str, int]) -> ArenaSpec:
    """Create an arena in the file system of ``directory``, and reserve its memory. Called by the master.

    Its file has no name and stays open in this process until :func:`close_arena`. Raises ResourceError for lack of
    space. Without the reservation, a full /dev/shm would kill a worker by SIGBUS.
    """
    total = arena_bytes(sizes)
    path = directory / f"arena-{secrets.token_hex(16)}"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, FILE_MODE)
    path.unlink()
    try:
        os.posix_fallocate(descriptor, 0, total)
    except OSError as error:
        os.close(descriptor)
        free = os.statvfs(directory).f_bavail * os.statvfs(directory).f_frsize
        raise ResourceError(
            f"arena {name!r} of {owner} needs {total} bytes of shared memory, {directory} has {free} free "
            f"({error.strerror}): use fewer workers or a smaller batch, or give the machine a larger /dev/shm"
        ) from error
    return ArenaSpec(name, owner, f"/proc/{os.getpid()}/fd/{descriptor}", dict(sizes))


def close_arena(spec: ArenaSpec) -> None:
    """Close the descriptor of an arena that this process has created. Existing mappings remain valid."""
    if not spec.is_copy:
        os.close(int(Path(spec.path).name))


class ArenaWriter:
    """An arena of this process, mapped for writing."""

    def __init__(self, spec: ArenaSpec) -> None:
        """Map the file; raises SecurityError if its kind, mode, owner or size is wrong."""
        self.spec = spec
        self._slots = lay_out(spec.sizes)
        self._memory = np.frombuffer(_map_file(spec, mmap.PROT_READ | mmap.PROT_WRITE), np.uint8)

    def memory(self, key: str) -> NDArray[np.uint8]:
        """Return the writable bytes of a slot; raises KeyError for an unknown key."""
        return self._memory[self._slots[key]]

    def array(self, key: str, dtype: str, shape: tuple[int, ...]) -> NDArray[Any]:
        """Return a slot as a writable array of the slot's size; raises KeyError for an unknown key."""
        return self.memory(key).view(dtype).reshape(shape)

    def put(self, key: str, array: NDArray[Any]) -> None:
        """Copy ``array``, of any memory order, into the slot of ``key``, in C order.

        An array computed in the slot is not copied. Raises KeyError for an unknown key, ValueError for a wrong size.
        """
        slot = self.memory(key)
        if array.nbytes != slot.nbytes:
            raise ValueError(f"{key!r}: {array.nbytes} bytes, but its slot in {self.spec.name!r} has {slot.nbytes}")
        target = slot.view(array.dtype).reshape(array.shape)
        if not (array.flags.c_contiguous and array.ctypes.data == target.ctypes.data):
            np.copyto(target, array)


class ArenaReader:
    """The arena of another process, mapped read-only, or a copy of the arena, written through :meth:`target`."""

    def __init__(self, spec: ArenaSpec) -> None:
        """Map the file or allocate a copy; raises SecurityError if the file's kind, mode, owner or size is wrong."""
        self.spec = spec
        self._slots = lay_out(spec.sizes)
        self._mapped = _map_file(spec, mmap.PROT_READ)
        self._memory = np.frombuffer(memoryview(self._mapped).toreadonly(), np.uint8)

    def target(self, key: str) -> memoryview:
        """Return the writable bytes of a slot in a copy of the arena, for bytes that the owner has sent.

        Raises KeyError for an unknown key, SecurityError if the arena is in shared memory.
        """
        slot = self._slots[key]
        if not self.spec.is_copy:
            raise SecurityError(
                f"{self.spec.owner} sent bytes of {printable(key)}, which is in shared memory: expected no bytes"
            )
        return memoryview(self._mapped)[slot]

    def memory(self, key: str) -> NDArray[np.uint8]:
        """Return a slot's read-only bytes, valid once the tensor is announced; raises KeyError for an unknown key."""
        return self._memory[self._slots[key]]

    def read(self, key: str, dtype: str, shape: tuple[int, ...]) -> NDArray[Any]:
        """Return a read-only view of the tensor of ``key``; ``Rendezvous`` states how long the view is valid.

        Raises SecurityError for a boolean other than 0 and 1, KeyError for an unknown key.
        """
        raw = self.memory(key)
        if dtype == "bool" and raw.size and raw.max() > 1:
            raise SecurityError(
                f"arena {self.spec.name!r} of {self.spec.owner}: byte {raw.max()} in {printable(key)}, a tensor of "
                "booleans; expected 0 or 1"
            )
        return raw.view(dtype).reshape(shape)


def _map_file(spec: ArenaSpec, protection: int) -> mmap.mmap:
    """Map the whole file after checking its kind, mode, owner and size; for a copy, return private memory."""
    if spec.is_copy:
        return mmap.mmap(-1, arena_bytes(spec.sizes), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    writable = bool(protection & mmap.PROT_WRITE)
    if not _DESCRIPTOR.fullmatch(spec.path):
        raise SecurityError(f"arena {spec.name!r}: path {printable(spec.path)}, expected a descriptor in /proc")
    try:
        descriptor = os.open(spec.path, os.O_RDWR if writable else os.O_RDONLY)
    except OSError as error:
        raise SecurityError(f"arena {spec.name!r}: cannot open {spec.path}: {error.strerror}") from error
    try:
        status = os.fstat(descriptor)
        actual = (stat.S_IFMT(status.st_mode), stat.S_IMODE(status.st_mode), status.st_uid, status.st_size)
        expected = (stat.S_IFREG, FILE_MODE, os.geteuid(), arena_bytes(spec.sizes))
        if actual != expected:
            raise SecurityError(
                f"arena {spec.name!r}: {spec.path} has (kind, mode, user, bytes) {actual}, expected {expected}"
            )
        # MAP_POPULATE: map all pages now, so that no step has page faults.
        return mmap.mmap(descriptor, status.st_size, mmap.MAP_SHARED | mmap.MAP_POPULATE, protection)
    finally:
        os.close(descriptor)
