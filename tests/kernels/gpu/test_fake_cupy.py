"""The names of the fake CuPy exist in the real one; skipped if CuPy is missing. No GPU is needed."""

import inspect
from typing import Any

import pytest

from tests.kernels.gpu.fake_cupy import FakeCudaRuntime, FakeCupy, FakeEvent, FakeStream

cupy = pytest.importorskip("cupy", reason="needs the extra gpu")


def names(thing: type) -> set[str]:
    """Return the names of a fake class. Those with one leading underscore are CuPy's, those with two are Python's."""
    return {name for name in vars(thing) if not name.startswith("__") and name != "cupy"}


def test_functions_and_constants_of_the_runtime_are_there() -> None:
    real = cupy.cuda.runtime
    assert [name for name in names(FakeCudaRuntime) if not hasattr(real, name)] == []
    constants = ("memcpyDefault", "hostAllocPortable", "hostAllocMapped")
    assert [getattr(real, name) for name in constants] == [getattr(FakeCudaRuntime, name) for name in constants]
    assert issubclass(real.CUDARuntimeError, RuntimeError)


def test_classes_are_there() -> None:
    assert [name for name in vars(FakeCupy().cuda) if not hasattr(cupy.cuda, name)] == []


@pytest.mark.parametrize(("fake", "name"), [(FakeStream, "Stream"), (FakeEvent, "Event")])
def test_methods_have_the_signatures_of_cupy(fake: type, name: str) -> None:
    real = getattr(cupy.cuda, name)
    for method in names(fake) - {"non_blocking", "disable_timing"}:
        told: Any = inspect.signature(getattr(fake, method)).parameters
        inspect.signature(getattr(real, method)).bind(*told)


def test_streams_events_and_pinned_memory_are_made_as_we_make_them() -> None:
    inspect.signature(cupy.cuda.Stream.__init__).bind(None, non_blocking=True)
    inspect.signature(cupy.cuda.Event.__init__).bind(None, disable_timing=True)
    inspect.signature(cupy.cuda.PinnedMemory.__init__).bind(None, 4096, 3)
