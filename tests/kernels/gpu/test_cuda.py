"""The runtime of real GPUs: its calls to a fake CuPy, and its errors without a GPU."""

import inspect
import sys
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from runner.kernels.gpu import cuda, nvrtc
from runner.kernels.gpu.cuda import CudaRuntime, GpusError, open_gpus
from runner.kernels.gpu.nvrtc import CachingCompiler
from tests.kernels.gpu.fake_cupy import CUDARuntimeError, FakeCudaRuntime, FakeCupy, FakeEvent, FakeStream

SOURCE = 'extern "C" __global__ void nothing() {}'


@pytest.fixture
def cupy() -> FakeCupy:
    """Return a fake CuPy with two GPUs."""
    return FakeCupy()


@pytest.fixture
def runtime(cupy: FakeCupy) -> CudaRuntime:
    """Return a runtime on the fake CuPy."""
    return CudaRuntime(cupy, 2, CachingCompiler(None), tf32=False)


@pytest.mark.parametrize(
    ("cupy", "home", "message"),
    [
        (None, 0, r"CuPy cannot be imported .*: pip install 'runner-dataflow\[gpu\]'"),
        (FakeCupy(-35), 0, "CUDA finds none: cudaError 35; `runner doctor` lists"),
        (FakeCupy(0), 0, "CUDA finds none; check CUDA_VISIBLE_DEV"),
        (FakeCupy(), 2, "GPU 2 was requested; this process has GPUs 0 to 1"),
    ],
)
def test_a_missing_gpu_is_refused_with_advice(
    monkeypatch: pytest.MonkeyPatch, cupy: FakeCupy | None, home: int, message: str
) -> None:
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    with pytest.raises(GpusError, match=message):
        open_gpus(tf32=False, home=home)


def test_the_home_gpu_describes_the_gpus_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """The home GPU is the default GPU of the process; GPU 0 of the machine may be an older model."""
    monkeypatch.setitem(sys.modules, "cupy", FakeCupy(capabilities={0: 75}))
    found = open_gpus(tf32=False, home=1)
    assert (found.name, found.capability, found.multiprocessors) == ("A GPU", 90, 132)


def test_a_missing_gpu_cannot_be_used(runtime: CudaRuntime) -> None:
    runtime.use(1)
    for gpu in (-1, 2):
        with pytest.raises(RuntimeError, match=f"GPU {gpu} was requested; this process has GPUs 0 to 1"):
            runtime.use(gpu)


def test_used_gpus_get_access_to_each_other_if_possible() -> None:
    cupy = FakeCupy(4)
    runtime = CudaRuntime(cupy, 4, CachingCompiler(None), tf32=False)
    for gpu in (0, 1, 2, 1):
        runtime.use(gpu)
        assert cupy.device == gpu
    assert sorted(cupy.log) == [("reach", 0, 1), ("reach", 1, 0), ("reach", 1, 2), ("reach", 2, 1)]


def test_a_thread_without_a_chosen_gpu_uses_the_home_gpu(cupy: FakeCupy, monkeypatch: pytest.MonkeyPatch) -> None:
    """The master process, which plans for its workers, must use memory of its home GPU only."""
    monkeypatch.setattr(nvrtc, "compiled", lambda *_: b"code")
    CudaRuntime(cupy, 2, CachingCompiler(None), tf32=False, home=1).function(SOURCE, "nothing")
    assert cupy.log == [("load", 1, b"code")]


def test_a_library_plans_for_the_home_gpu(cupy: FakeCupy, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    for library in (cuda.cudnn, cuda.cublas):
        monkeypatch.setattr(library, "open_library", lambda gpu, *_, **__: asked.append(gpu))
    runtime = CudaRuntime(cupy, 2, CachingCompiler(None), tf32=False, home=1)
    runtime.library("cudnn"), runtime.library("cublas")
    with ThreadPoolExecutor(1) as fresh:
        assert [fresh.submit(gpu).result() for gpu in asked] == [1, 1]
    runtime.use(0)
    assert [gpu() for gpu in asked] == [0, 0]


def test_a_source_is_compiled_once_for_each_capability_and_loaded_once_on_each_gpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(nvrtc, "compiled", lambda source, sm: asked.append(sm) or f"{source} for {sm}".encode())
    cupy = FakeCupy(3, capabilities={1: 80})
    runtime = CudaRuntime(cupy, 3, CachingCompiler(None), tf32=False)
    for gpu in (0, 1, 2, 1, 0):
        runtime.use(gpu)
        runtime.function("a", "nothing")
    assert asked == [90, 80]
    loaded = [each[1:] for each in cupy.log if each[0] == "load"]
    assert loaded == [(0, b"a for 90"), (1, b"a for 80"), (2, b"a for 90")]


def test_a_launch_passes_grid_block_arguments_and_stream(
    runtime: CudaRuntime, cupy: FakeCupy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvrtc, "compiled", lambda *_: b"code")
    stream, arguments = runtime.stream(), [np.uintp(16), np.int64(3)]
    runtime.function(SOURCE, "nothing")(stream, (5, 1, 1), (256, 1, 1), arguments)
    assert cupy.log[-1] == ("launch", "nothing", (5, 1, 1), (256, 1, 1), tuple(arguments), stream.handle)


def test_streams_do_not_block_and_memory_has_the_requested_size(runtime: CudaRuntime) -> None:
    assert runtime.stream().native.non_blocking
    assert runtime.event().disable_timing
    assert [runtime.allocate(nbytes).nbytes for nbytes in (0, 1, 1000)] == [0, 1, 1000]
    assert [runtime.pinned(nbytes).nbytes for nbytes in (0, 1, 1000)] == [0, 1, 1000]
    runtime.pinned(8)[:] = 1
    assert runtime.free_bytes() == (1 << 20, 2 << 20)


def test_failed_allocations_raise_memory_error_and_other_faults_are_passed_on(runtime: CudaRuntime) -> None:
    for allocate, what in ((runtime.allocate, "GPU memory"), (runtime.pinned, "pinned memory")):
        with pytest.raises(MemoryError, match=rf"2,000,000 bytes of {what}: cudaError 2"):
            allocate(2_000_000)
    with pytest.raises(CUDARuntimeError, match="700"):
        runtime.allocate(1 << 40)


def test_copies_are_between_addresses_and_empty_ones_are_omitted(runtime: CudaRuntime, cupy: FakeCupy) -> None:
    stream = runtime.stream()
    runtime.copy(1, 2, 3, stream)
    runtime.copy(1, 2, 0, stream)
    assert cupy.log == [("copy", 1, 2, 3, 4, stream.handle)]


def test_events_make_streams_and_the_host_wait(runtime: CudaRuntime, cupy: FakeCupy) -> None:
    first, second, event = runtime.stream(), runtime.stream(), runtime.event()
    runtime.record(event, first)
    runtime.wait(second, event)
    runtime.wait_on_host(event)
    runtime.synchronize(second)
    handles = first.handle, second.handle
    assert cupy.log == [("record", handles[0]), ("wait", handles[1]), ("wait on host",), ("synchronize", handles[1])]


def test_captured_work_is_launched_on_the_given_stream(runtime: CudaRuntime, cupy: FakeCupy) -> None:
    stream, other = runtime.stream(), runtime.stream()
    runtime.capture(stream, lambda: cupy.log.append(("work",))).launch(other)
    ptr = stream.handle
    assert cupy.log == [("begin capture", ptr), ("work",), ("end capture", ptr), ("graph", other.handle)]


@pytest.mark.parametrize("fails", [False, True])
def test_a_capture_whose_work_fails_is_ended(runtime: CudaRuntime, cupy: FakeCupy, fails: bool) -> None:
    def work() -> None:
        raise ValueError("first")

    cupy.fails_at_end_of_capture = fails
    with pytest.raises(ValueError, match="first"):
        runtime.capture(runtime.stream(), work)
    assert cupy.log[-1][0] == "end capture"


def test_during_a_capture_no_other_thread_calls_a_library(
    runtime: CudaRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cuDNN handle has internal streams, so work that another thread enqueued meanwhile would be captured."""
    locks: list[Any] = []
    for library in (cuda.cudnn, cuda.cublas):
        monkeypatch.setattr(library, "open_library", lambda *_, lock, **__: locks.append(lock))
    runtime.library("cudnn"), runtime.library("cublas")

    def free() -> list[bool]:
        return [lock.acquire(blocking=False) and lock.release() is None for lock in locks]

    with ThreadPoolExecutor(1) as other:
        seen: list[list[bool]] = []
        runtime.capture(runtime.stream(), lambda: seen.extend((free(), other.submit(free).result())))
        assert [*seen, other.submit(free).result()] == [[True, True], [False, False], [True, True]]


def test_libraries_that_are_not_installed_are_none(runtime: CudaRuntime, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("cudnn", "cupy_backends"):
        monkeypatch.setitem(sys.modules, name, None)
    assert [runtime.library(name) for name in ("cudnn", "cublas")] == [None, None]


def test_a_front_end_without_cudnn_counts_as_missing(runtime: CudaRuntime, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise RuntimeError("Unable to find symbol cudnnGetVersion")

    monkeypatch.setitem(sys.modules, "cudnn", SimpleNamespace(backend_version=missing))
    assert runtime.library("cudnn") is None


@pytest.mark.parametrize("compared", [False, True])
def test_a_library_is_opened_once_and_compares_plans_if_requested(
    cupy: FakeCupy, monkeypatch: pytest.MonkeyPatch, compared: bool
) -> None:
    opened: list[object] = []
    monkeypatch.setattr(cuda.cudnn, "open_library", lambda gpu, lock, **options: opened.append(options) or object())
    runtime = CudaRuntime(cupy, 1, CachingCompiler(None), tf32=compared, compare_plans=compared)
    assert runtime.library("cudnn") is runtime.library("cudnn")
    assert opened == [{"tf32": compared, "bench": runtime if compared else None}]


def test_work_is_timed_on_the_gpu_after_one_warm_up(runtime: CudaRuntime, cupy: FakeCupy) -> None:
    assert runtime.seconds(lambda stream: cupy.log.append(("work", stream.handle))) == pytest.approx(0.003)
    assert [each[0] for each in cupy.log] == ["work", "record", *["work"] * 4, "record", "wait on host"]


def test_fused_multiply_add_is_allowed_in_marked_sources_only() -> None:
    assert nvrtc.options("float x;\n", 90) == ("-arch=sm_90", "-std=c++17", "-fmad=false")
    assert nvrtc.options("float x;\n// fmad\nfloat y;", 80)[-1] == "-fmad=true"
    assert nvrtc.options("// fmad or not", 80)[-1] == "-fmad=false"


def names(thing: type) -> set[str]:
    """Return the names in a fake class that CuPy must have; a name with two leading underscores is not one of them."""
    return {name for name in vars(thing) if not name.startswith("__") and name != "cupy"}


def test_the_fake_has_the_names_and_signatures_of_cupy() -> None:
    real_cupy = pytest.importorskip("cupy", reason="needs the extra gpu")
    real = real_cupy.cuda.runtime
    assert [name for name in names(FakeCudaRuntime) if not hasattr(real, name)] == []
    constants = ("memcpyDefault", "hostAllocPortable", "hostAllocMapped")
    assert [getattr(real, name) for name in constants] == [getattr(FakeCudaRuntime, name) for name in constants]
    assert issubclass(real.CUDARuntimeError, RuntimeError)
    assert [name for name in vars(FakeCupy().cuda) if not hasattr(real_cupy.cuda, name)] == []
    for fake, name in ((FakeStream, "Stream"), (FakeEvent, "Event")):
        for method in names(fake) - {"non_blocking", "disable_timing"}:
            parameters: Any = inspect.signature(getattr(fake, method)).parameters
            inspect.signature(getattr(getattr(real_cupy.cuda, name), method)).bind(*parameters)
    inspect.signature(real_cupy.cuda.Stream.__init__).bind(None, non_blocking=True)
    inspect.signature(real_cupy.cuda.Event.__init__).bind(None, disable_timing=True)
    inspect.signature(real_cupy.cuda.PinnedMemory.__init__).bind(None, 4096, 3)
