from __future__ import annotations

from pathlib import Path

import psutil

from runner.memory import available_memory, usable_memory


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
