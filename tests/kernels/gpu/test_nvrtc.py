"""NVRTC compiles all sources of our kernels; skipped if it is missing. No GPU is needed."""

from itertools import product
from pathlib import Path
from typing import Any

import pytest

from runner.kernels.contract import Buffers, Layout, Operand, Spec
from runner.kernels.gpu import nvrtc
from runner.kernels.gpu.layouts import CHANNELS_LAST
from runner.kernels.gpu.loading import MODULES
from runner.kernels.registry import Registry
from tests.kernels.gpu.emulation import EmulatedRuntime
from tests.kernels.gpu.running import DTYPES, chosen, drawn_for, node_of, offers_for, registry_of
from tests.kernels.harness import Shaped
from tests.op_cases import CASES
from tests.samples import Case

pytest.importorskip("cupy", reason="needs the extra gpu")


class CollectingRuntime(EmulatedRuntime):
    """A GPU that collects sources and launches nothing."""

    def __init__(self) -> None:
        super().__init__(Path())
        self.sources: dict[str, None] = {}

    def function(self, source: str, name: str) -> Any:
        self.sources[source] = None
        return None


@pytest.fixture(scope="module")
def sources() -> list[str]:
    """Sources of all kernels, for all cases of the table, in all dtypes and layouts."""
    runtime = CollectingRuntime()
    registry = registry_of(runtime, *MODULES)
    for (op, cases), dtype, layouts in product(CASES.items(), DTYPES, (None, CHANNELS_LAST)):
        for case in cases if registry.of(op, "gpu") else ():
            bind(runtime, registry, op, case, dtype, layouts)
    return list(runtime.sources)


def bind(runtime: EmulatedRuntime, registry: Registry, op: str, case: Case, dtype: str, layouts: str | None) -> None:
    """Bind a kernel, so that it requests its sources."""
    inputs, attributes = drawn_for(op, case, dtype)
    specs = [Shaped.of(array) for array in inputs]
    node = node_of(op, inputs, attributes)
    choice = chosen(registry, node, specs, offers_for(specs, layouts), None)

    def operand(spec: Spec, layout: Layout) -> Operand:
        return Operand(spec, layout, runtime.allocate(layout.nbytes))

    sources = tuple(map(operand, specs, choice.arrangement.inputs))
    targets = tuple(map(operand, node.outputs, choice.arrangement.outputs))
    scratch = runtime.allocate(choice.arrangement.scratch_bytes)
    choice.kernel.bind(node.attributes, choice.arrangement, Buffers(sources, targets, scratch))


@pytest.mark.timeout(600)
@pytest.mark.parametrize("capability", [80, 90])
def test_our_sources_compile(sources: list[str], capability: int) -> None:
    assert len(sources) > 1
    for source in sources:
        assert nvrtc.compiled(source, capability)[:4] == b"\x7fELF"


def test_a_source_that_does_not_compile_raises_the_log_of_the_compiler() -> None:
    with pytest.raises(nvrtc.CompileError, match=r'(?s)does not compile with -arch=sm_90 .* "nobody" is undefined'):
        nvrtc.compiled('extern "C" __global__ void wrong() { nobody = 1; }', 90)


def test_a_gpu_that_is_too_new_is_named() -> None:
    with pytest.raises(nvrtc.CompileError, match=r"NVRTC \d+\.\d+ compiles for .*, the GPU has 999"):
        nvrtc.compiled("", 999)
