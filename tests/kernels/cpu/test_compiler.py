"""Machine code: the compiler, joined calls, and machines on which code cannot be compiled."""

import subprocess
import sys
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import cffi
import numpy as np
import pytest
from llvmlite import binding

from runner.kernels.contract import Join, NativeCall
from runner.kernels.cpu import loading
from runner.kernels.cpu.dispatch import SIGNATURE, join_in_python
from runner.kernels.cpu.machine_code import compiler, threads
from runner.kernels.cpu.machine_code.compiler import CompilerUnavailable, MachineCode, join
from runner.kernels.cpu.machine_code.loops import slice_module
from runner.kernels.registry import Registry
from runner.system.code_cache import CodeCache
from tests.kernels.cpu.onednn.checking import library

ANSWER = "define i32 @answer() {\n ret i32 42\n}"


def test_the_kernels_are_registered_and_calls_joined_in_machine_code() -> None:
    registry = Registry()
    version, missing = loading.register_machine_code(registry)
    assert missing == ""
    assert "llvmlite" in version
    assert "vectors of" in version
    assert registry.join is compiler.join
    assert registry.find("elementwise", "cpu", "llvm").priority == 10


def test_without_llvmlite_calls_are_joined_in_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llvmlite", None)
    registry = Registry()
    version, missing = loading.register_machine_code(registry)
    assert version == ""
    assert missing.startswith("llvmlite cannot be loaded (")
    assert missing.endswith("; pip install llvmlite")
    assert registry.join is join_in_python
    assert registry.device_types("elementwise") == frozenset()


def test_the_package_is_imported_without_llvmlite() -> None:
    program = (
        "import sys; sys.modules['llvmlite'] = None; from runner.kernels.cpu import loading\n"
        "print(loading.probe_compiler())"
    )
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert "llvmlite cannot be loaded" in answer.stdout


@pytest.fixture
def forgetful() -> Iterator[None]:
    """Clear the caches of the functions that probe the machine, before and after a test."""
    probes = (compiler.host, threads.load_openmp)
    for each in probes:
        each.cache_clear()
    yield
    for each in probes:
        each.cache_clear()


@pytest.mark.usefixtures("forgetful")
def test_a_machine_that_forbids_new_code_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise OSError(13, "cannot allocate executable memory")

    monkeypatch.setattr(binding, "check_jit_execution", refuse)
    with pytest.raises(CompilerUnavailable, match=r"cannot generate code for this machine: .*executable memory"):
        compiler.host()
    registry = Registry()
    assert "executable memory" in loading.register_machine_code(registry)[1]
    assert registry.join is join_in_python


@pytest.mark.usefixtures("forgetful")
def test_without_openmp_loops_run_on_one_thread_and_this_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    code = MachineCode(slice_module("nothing", 0, lambda builder, bases, begin, end: None))
    on_all, on_one = (partial(threads.call, code, (), 3, 4, None, parallel=each) for each in (True, False))
    assert on_all().function != on_one().function
    monkeypatch.setattr(threads, "LIBRARY", "libnothing.so.1")
    threads.load_openmp.cache_clear()
    assert on_all().function == on_one().function
    assert "on one thread: libnothing.so.1 cannot be loaded" in loading.probe_compiler()[0]


@pytest.mark.parametrize(
    ("features", "width"),
    [({"avx512f": True, "avx": True}, 64), ({"avx512f": False, "avx": True}, 32), ({"sse2": True}, 16), ({}, 16)],
)
@pytest.mark.usefixtures("forgetful")
def test_vectors_are_as_wide_as_the_registers(
    monkeypatch: pytest.MonkeyPatch, features: dict[str, bool], width: int
) -> None:
    found = binding.targets.FeatureMap(features)
    monkeypatch.setattr(binding, "get_host_cpu_features", lambda: found)
    assert compiler.host().vector_bytes == width


def test_the_option_avx2_hides_wider_instructions(request: pytest.FixtureRequest) -> None:
    if not request.config.getoption("--avx2"):
        pytest.skip("run with --avx2, as `make test-all` does")
    assert compiler.host().vector_bytes == 32
    assert "+avx2" in compiler.host().features.split(",")
    assert "+avx512f" not in compiler.host().features.split(",")
    assert "bfloat16" not in library().dtypes


def test_the_error_for_an_unknown_function_names_it() -> None:
    with pytest.raises(KeyError, match=r"no function 'question' in the module; it has \['answer'\]"):
        MachineCode(ANSWER).address("question")


class Recorder(CodeCache):
    """A cache that records the names of code that was compiled."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.compiled: list[str] = []

    def write(self, name: str, code: bytes) -> None:
        self.compiled.append(name)
        super().write(name, code)


@pytest.fixture
def recorder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recorder:
    """Return the cache that the test uses instead of the user's."""
    recorder = Recorder(tmp_path)
    monkeypatch.setattr(compiler, "code_cache", lambda: recorder)
    return recorder


def call(code: MachineCode, name: str) -> int:
    """Return the result of a function without arguments."""
    return int(cffi.FFI().cast("int32_t (*)()", code.address(name))())


def test_equal_text_is_compiled_once_and_loaded_with_other_externals(recorder: Recorder) -> None:
    inner = [MachineCode(ANSWER.replace("42", str(number))) for number in (5, 6)]
    text = (
        "declare i32 @elsewhere()\n"
        "define i32 @outer() {\n %x = call i32 @elsewhere()\n %y = mul i32 %x, 7\n ret i32 %y\n}"
    )
    outer = [MachineCode(text, {"elsewhere": each.address("answer")}) for each in inner]
    assert [call(each, "outer") for each in outer] == [35, 42]
    assert len(recorder.compiled) == 3
    with pytest.raises(KeyError, match="no function 'question'"):
        outer[1].address("question")


def test_a_damaged_file_is_compiled_again(recorder: Recorder, tmp_path: Path) -> None:
    for _ in range(2):
        assert call(MachineCode(ANSWER), "answer") == 42
        (path,) = tmp_path.iterdir()
        path.write_bytes(path.read_bytes()[:100])
    assert len(recorder.compiled) == 2


@pytest.mark.parametrize(
    ("place", "name", "value"),
    [
        (binding, "get_host_cpu_name", lambda: "x86-64-v2"),
        (binding, "get_host_cpu_features", lambda: binding.targets.FeatureMap({"sse2": True})),
        (binding, "llvm_version_info", (1, 2, 3)),
        (compiler.llvmlite, "__version__", "1.2.3"),
        (compiler, "_LEVEL", 1),
        (compiler, "_FORMAT", "none"),
    ],
)
@pytest.mark.usefixtures("forgetful")
def test_code_for_another_cpu_or_of_another_compiler_is_not_loaded(
    place: object, name: str, value: object, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    MachineCode(ANSWER)
    monkeypatch.setattr(place, name, value)
    compiler.host.cache_clear()
    MachineCode(ANSWER)
    assert len(set(recorder.compiled)) == 2


def test_without_a_home_code_is_compiled_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(compiler, "user_cache_folder", refuse)
    monkeypatch.setattr(compiler, "code_cache", compiler.code_cache.__wrapped__)
    assert call(MachineCode(ANSWER), "answer") == 42


class Log:
    """A log, and a method that returns native calls, each of which appends a number to the log."""

    def __init__(self) -> None:
        self.notes: list[int] = []
        self._ffi = cffi.FFI()
        self._note = self._ffi.callback(SIGNATURE.replace("(*)", ""), self._noted)

    def _noted(self, value: int, status: int, *others: int) -> int:
        assert others == (30, 40)
        self.notes.append(value)
        return status

    def call(self, value: int, status: int = 0, keep: object = None) -> NativeCall:
        return NativeCall(int(self._ffi.cast("intptr_t", self._note)), (value, status, 30, 40), (self._note, keep))


@pytest.fixture
def log() -> Log:
    return Log()


both = pytest.mark.parametrize("join", [join, join_in_python], ids=["machine code", "python"])


@both
def test_calls_are_made_in_order_every_time(join: Join, log: Log) -> None:
    joined = join([log.call(value) for value in range(1000)])
    assert (joined(), joined()) == (0, 0)
    assert log.notes == list(range(1000)) * 2


@both
@pytest.mark.parametrize("failing", [0, 1, 4])
def test_the_first_failure_ends_the_call_and_is_returned(join: Join, log: Log, failing: int) -> None:
    statuses = [3 if position >= failing else 0 for position in range(5)]
    joined = join([log.call(position, status) for position, status in enumerate(statuses)])
    assert divmod(joined(), 1 << 16) == (failing + 1, 3)
    assert log.notes == list(range(failing + 1))


@both
@pytest.mark.parametrize(("status", "lower"), [(-1, 0xFFFF), (0x10000, 0), (0x20005, 5), (-(2**31), 0)])
def test_any_status_that_is_not_zero_is_a_failure(join: Join, log: Log, status: int, lower: int) -> None:
    assert join([log.call(0), log.call(1, status)])() == 2 << 16 | lower


@both
def test_joining_no_calls_gives_a_call_that_succeeds(join: Join) -> None:
    assert join([])() == 0


class _Kept:
    """An object that can be weakly referenced."""


@both
def test_a_joined_call_keeps_the_objects_of_its_calls_alive(join: Join, log: Log) -> None:
    kept = _Kept()
    seen = weakref.ref(kept)
    joined: Callable[[], int] | None = join([log.call(1, keep=kept)])
    del kept
    assert seen() is not None
    joined = None
    assert joined is seen() is None


@both
def test_other_threads_run_during_a_call(join: Join) -> None:
    ffi = cffi.FFI()
    ffi.cdef("int sem_init(void *, int, unsigned); int sem_post(void *); int sem_timedwait(void *, void *);")
    c, semaphore, end = ffi.dlopen(None), np.zeros(8, np.int64), np.array([int(time.time()) + 60, 0])
    place = ffi.cast("void *", semaphore.ctypes.data)
    c.sem_init(place, 0, 0)
    wait = int(ffi.cast("intptr_t", ffi.addressof(c, "sem_timedwait")))
    joined = join([NativeCall(wait, (semaphore.ctypes.data, end.ctypes.data, 0, 0), (c, semaphore, end))])
    with ThreadPoolExecutor(1) as other:
        waiting = other.submit(joined)
        c.sem_post(place)
        assert waiting.result() == 0, "the call held the GIL while it waited"
