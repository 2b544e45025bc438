from __future__ import annotations

import resource
from pathlib import Path

import psutil
import pytest

from runner.system.memory import available_memory, process_room, usable_memory


def test_a_container_has_no_more_than_its_limit(tmp_path: Path) -> None:
    limit = tmp_path / "memory.max"
    limit.write_text("1048576\n")
    assert usable_memory((tmp_path / "absent", limit)) == 1 << 20


def test_without_a_limit_it_is_the_machines(tmp_path: Path) -> None:
    limit = tmp_path / "memory.max"
    limit.write_text("max\n")
    assert usable_memory((limit,)) == psutil.virtual_memory().total


def test_what_is_available_is_part_of_what_is_usable() -> None:
    assert 0 < available_memory() <= usable_memory()


@pytest.mark.parametrize("limited", [resource.RLIMIT_AS, resource.RLIMIT_DATA])
def test_resource_limits_leave_a_process_what_it_does_not_use_yet(
    limited: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = {resource.RLIMIT_AS: resource.RLIM_INFINITY, resource.RLIMIT_DATA: resource.RLIM_INFINITY}
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (limits[kind], resource.RLIM_INFINITY))
    assert process_room() is None
    limits[limited] = 1 << 50
    room = process_room()
    assert room is not None
    assert (1 << 50) - (1 << 45) < room < (1 << 50) - (1 << 20)
    limits[limited] = 1 << 20
    assert process_room() == 0
