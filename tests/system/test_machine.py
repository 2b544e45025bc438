"""The cores, the CPU and the memory of this machine."""

import resource
from pathlib import Path

import psutil
import pytest

from runner.system.machine import available_memory, bfloat16_flags, cpu_facts, process_room, usable_memory


def test_the_lines_of_the_first_cpu_are_read(tmp_path: Path):
    info = tmp_path / "cpuinfo"
    info.write_text("model name\t: A CPU\nflags\t\t: avx2 amx_bf16\n\nmodel name\t: another\n")
    assert cpu_facts(info) == {"model name": "A CPU", "flags": "avx2 amx_bf16"}
    assert cpu_facts(tmp_path / "absent") == {}


@pytest.mark.parametrize("flag", ["avx512_bf16", "amx_bf16"])
def test_one_of_the_instructions_for_bfloat16_is_enough(flag: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("runner.system.machine.cpu_flags", lambda: frozenset({"avx2", flag}))
    assert bfloat16_flags() == [flag]


def test_a_container_has_no_more_than_its_limit_and_without_one_the_memory_of_the_machine(tmp_path: Path) -> None:
    limit = tmp_path / "memory.max"
    limit.write_text("1048576\n")
    assert usable_memory((tmp_path / "absent", limit)) == 1 << 20
    limit.write_text("max\n")
    assert usable_memory((limit,)) == psutil.virtual_memory().total
    assert 0 < available_memory() <= usable_memory()


@pytest.mark.parametrize("limited", [resource.RLIMIT_AS, resource.RLIMIT_DATA])
def test_resource_limits_leave_the_unused_part(limited: int, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = {resource.RLIMIT_AS: resource.RLIM_INFINITY, resource.RLIMIT_DATA: resource.RLIM_INFINITY}
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (limits[kind], resource.RLIM_INFINITY))
    assert process_room() is None
    limits[limited] = 1 << 50
    room = process_room()
    assert room is not None
    assert (1 << 50) - (1 << 45) < room < (1 << 50) - (1 << 20)
    limits[limited] = 1 << 20
    assert process_room() == 0
