"""Copies: equal bytes in every dtype and layout, on one thread and on several."""

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from runner.engine.run.kernel_table import load_kernels
from runner.kernels.contract import FLOATS, Layout, plain
from runner.kernels.cpu.machine_code.threads import PARALLEL_BYTES
from tests.kernels.harness import Shaped, arranged, call_bound, filled

KERNEL = load_kernels().find("convert", "cpu", "llvm")
SPECS = [
    *(Shaped((5, 3), dtype) for dtype in (*sorted(FLOATS), "int32", "int64", "bool")),
    *(Shaped(shape, "float32") for shape in ((), (0, 3), (PARALLEL_BYTES // 4 + 5,))),
]


@pytest.mark.parametrize("layout", [None, Layout("aBcd16b", 4096), Layout("bits:ab", 2)], ids=str)
@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_a_copy_has_the_bytes_of_the_tensor(spec: Shaped, layout: Layout | None) -> None:
    held = layout or plain(spec)
    source, result = filled(spec, held), filled(spec, held)
    source.data[:] = np.random.default_rng(0).integers(0, 256, source.data.size, np.uint8)
    arrangement = arranged(KERNEL, {}, [spec], [spec], [held, held])
    assert arrangement == arranged(KERNEL, {}, [spec], [spec], [held]), "a copy keeps the layout"
    assert not arrangement.in_place
    with threadpool_limits(3, user_api="openmp"):
        call_bound(KERNEL, {}, arrangement, [source], [result])
    assert np.array_equal(result.data[: held.nbytes], source.data[: held.nbytes])


@pytest.mark.parametrize("offered", [[None], [None, None], [plain(SPECS[0]), Layout("ba", 60)]], ids=str)
def test_a_change_of_layout_is_refused(offered: list[Layout | None]) -> None:
    assert KERNEL.arrange({}, SPECS[:1], SPECS[:1], offered) is None
