"""NVRTC, if it is installed, compiles the sources of all kernels; the cache keeps the machine code.

No GPU is needed.
"""

from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from runner.kernels.gpu import nvrtc
from runner.kernels.gpu.layouts import CHANNELS_LAST
from runner.kernels.gpu.loading import MODULES
from runner.kernels.gpu.nvrtc import CachingCompiler
from runner.kernels.registry import Registry
from tests.kernels.gpu.emulation import EmulatedRuntime
from tests.kernels.gpu.running import DTYPES, bound_to, chosen, drawn_for, offers_for, registry_of
from tests.kernels.harness import Shaped, node_of
from tests.op_cases import CASES
from tests.samples import Case

needs_nvrtc = pytest.mark.skipif(find_spec("cupy") is None, reason="needs the extra gpu")

Asked = list[tuple[str, int]]


class CollectingRuntime(EmulatedRuntime):
    """A GPU runtime that collects sources and launches nothing."""

    def __init__(self) -> None:
        super().__init__(Path())
        self.sources: dict[str, None] = {}

    def function(self, source: str, name: str) -> Any:
        self.sources[source] = None
        return None


@pytest.fixture(scope="module")
def sources() -> list[str]:
    """Return the sources of all kernels for all cases of ``tests/op_cases.py``, in all dtypes and layouts."""
    runtime = CollectingRuntime()
    registry = registry_of(runtime, *MODULES)
    for (op, cases), dtype, layouts in product(CASES.items(), DTYPES, (None, CHANNELS_LAST)):
        for case in cases if registry.of(op, "gpu") else ():
            bind(runtime, registry, op, case, dtype, layouts)
    return list(runtime.sources)


def bind(runtime: EmulatedRuntime, registry: Registry, op: str, case: Case, dtype: str, layouts: str | None) -> None:
    """Bind the kernel that is chosen for a case, so that it requests its sources from ``runtime``."""
    inputs, attributes = drawn_for(op, case, dtype)
    node, specs = node_of(op, inputs, attributes), [Shaped.of(array) for array in inputs]
    bound_to(runtime, node, chosen(registry, node, specs, offers_for(specs, layouts), None), specs)


@needs_nvrtc
@pytest.mark.timeout(600)
@pytest.mark.parametrize("capability", [80, 90])
def test_our_sources_compile(sources: list[str], capability: int) -> None:
    assert len(sources) > 1
    for source in sources:
        assert nvrtc.compiled(source, capability)[:4] == b"\x7fELF"


@needs_nvrtc
def test_a_source_that_does_not_compile_raises_the_log_of_the_compiler() -> None:
    with pytest.raises(nvrtc.CompileError, match=r'(?s)does not compile with -arch=sm_90 .* "nobody" is undefined'):
        nvrtc.compiled('extern "C" __global__ void wrong() { nobody = 1; }', 90)


@needs_nvrtc
def test_the_error_names_a_gpu_that_is_too_new() -> None:
    with pytest.raises(nvrtc.CompileError, match=r"NVRTC \d+\.\d+ compiles for .*, the GPU has 999"):
        nvrtc.compiled("", 999)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    """Replace the compiler by a fake, whose code depends on its arguments; return the list of its calls."""
    asked: Asked = []

    def compiled(source: str, capability: int) -> bytes:
        asked.append((source, capability))
        return f"{source} for {capability} by {nvrtc.version()}".encode()

    monkeypatch.setattr(nvrtc, "compiled", compiled)
    monkeypatch.setattr(nvrtc, "version", lambda: "13.5")
    return asked


def test_another_process_uses_the_cached_code(tmp_path: Path, asked: Asked) -> None:
    folder = tmp_path / "not" / "there"
    found = [CachingCompiler(folder).compiled(source, 90) for source in ("a", "b", "a")]
    assert found == [b"a for 90 by 13.5", b"b for 90 by 13.5", b"a for 90 by 13.5"]
    assert asked == [("a", 90), ("b", 90)]
    assert len(list(folder.iterdir())) == 2
    assert folder.stat().st_mode & 0o077 == 0


def test_the_cache_key_contains_capability_compiler_version_and_options(
    tmp_path: Path, asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = CachingCompiler(tmp_path)
    assert code.compiled("a", 90) != code.compiled("a", 80)
    monkeypatch.setattr(nvrtc, "version", lambda: "13.6")
    assert code.compiled("a", 90) == b"a for 90 by 13.6"
    monkeypatch.setattr(nvrtc, "options", lambda source, capability: ("-O0",))
    code.compiled("a", 90)
    assert len(asked) == 4


def test_damage_and_an_unusable_folder_are_warnings(
    tmp_path: Path, asked: Asked, caplog: pytest.LogCaptureFixture
) -> None:
    code = CachingCompiler(tmp_path)
    good = code.compiled("a", 90)
    (path,) = tmp_path.iterdir()
    path.write_bytes(b"")
    assert code.compiled("a", 90) == good
    tmp_path.chmod(0o777)
    assert code.compiled("a", 90) == good
    assert asked == [("a", 90)] * 3
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 2


def test_without_a_folder_sources_are_compiled_each_time(asked: Asked) -> None:
    code = CachingCompiler(None)
    assert code.compiled("a", 90) == code.compiled("a", 90)
    assert len(asked) == 2
