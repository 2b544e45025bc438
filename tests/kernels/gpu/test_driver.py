"""What the driver is asked, against a library with the driver's functions that the test compiles."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from runner.kernels.gpu.driver import CardFacts, DriverFacts, ask_driver

COMPILER = shutil.which("gcc") or shutil.which("cc")

DRIVER = r"""
#include <string.h>
int cuInit(unsigned flags) { return flags ? 1 : INIT; }
int cuDriverGetVersion(int *version) { *version = 13010; return 0; }
int cuDeviceGetCount(int *count) { *count = CARDS; return 0; }
int cuDeviceGet(int *device, int ordinal) { *device = 40 + ordinal; return 0; }
int cuDeviceGetName(char *name, int length, int device) {
    strncpy(name, device == 40 ? "First" : "Second", length); return 0; }
int cuDeviceTotalMem_v2(size_t *bytes, int device) { *bytes = (size_t)(device - 39) << 33; return 0; }
int cuDeviceGetAttribute(int *value, int which, int device) {
    *value = which == 75 ? 9 : which == 76 ? device - 40 : -1; return MEMORY; }
"""

pytestmark = pytest.mark.skipif(COMPILER is None, reason="there is no C compiler")


def driver(folder: Path, init: int = 0, cards: int = 2, memory: int = 0) -> str:
    """A library of the driver's functions. init, memory: what two of them answer."""
    assert COMPILER is not None
    (folder / "driver.c").write_text(DRIVER)
    defined = [f"-DINIT={init}", f"-DCARDS={cards}", f"-DMEMORY={memory}"]
    command = [COMPILER, "-shared", "-fPIC", *defined, "-o", str(folder / "driver.so"), str(folder / "driver.c")]
    subprocess.run(command, check=True, capture_output=True)
    return str(folder / "driver.so")


def test_cards_have_number_name_capability_and_memory(tmp_path: Path) -> None:
    (tmp_path / "version").write_text("580.65.06\n")
    found = ask_driver(driver(tmp_path), tmp_path / "version")
    assert found == DriverFacts(
        "580.65.06", 13010, (CardFacts(0, "First", 90, 1 << 33), CardFacts(1, "Second", 91, 2 << 33))
    )
    assert str(found) == "580.65.06 for CUDA up to 13.1"
    assert str(found.cards[1]) == "Second, compute capability 9.1, 16.0 GiB"


@pytest.mark.parametrize(
    ("settings", "fault"),
    [
        ({"init": 100}, "the driver sees no card (CUDA_VISIBLE_DEVICES may hide them)"),
        ({"init": 803}, "cuInit of the driver fails with CUDA error 803; `nvidia-smi` should list the cards"),
        ({"memory": 999}, "cuDeviceGetAttribute of the driver fails with CUDA error 999; `nvidia-smi` should list"),
        ({"cards": 0}, "the driver sees no card"),
    ],
)
def test_a_driver_without_a_card_says_why(settings: dict[str, int], fault: str, tmp_path: Path) -> None:
    found = ask_driver(driver(tmp_path, **settings), tmp_path / "absent")
    assert found.fault.startswith(fault)
    assert found.cards == ()


def test_a_machine_without_a_driver_has_no_card(tmp_path: Path) -> None:
    found = ask_driver(str(tmp_path / "absent.so"), tmp_path / "absent")
    assert found.fault.startswith("there is no NVIDIA driver: ")
    assert (found.release, found.cuda, found.cards) == ("", 0, ())
