"""The common part of oneDNN kernels: cached answers, refused nodes, calls in order."""

import gc
import weakref
from dataclasses import replace
from types import SimpleNamespace

import pytest
from threadpoolctl import threadpool_limits

from runner.kernels.contract import Arrangement, Layout, NativeCall, Offers, plain
from runner.kernels.cpu.onednn import constants as dnnl
from runner.kernels.cpu.onednn.library import OneDnnError, Unimplemented, supported_dtypes
from runner.kernels.cpu.onednn.memory import in_c_order
from runner.kernels.cpu.onednn.recipe import Description, Node, answering, bound, format_of, in_turn
from runner.kernels.memory import allocate
from tests.kernels.cpu.onednn.checking import check, floats, library, normal
from tests.kernels.harness import Shaped, filled, holding


class _Asked:
    """An arrange function that records its calls."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []

    def __call__(self, node: Node, offered: Offers) -> Arrangement | None:
        self.nodes.append(node)
        if node.attributes.get("unknown"):
            raise Unimplemented("no such thing")
        return Arrangement(tuple(map(plain, node.inputs)), tuple(map(plain, node.outputs)))


def test_an_answer_is_remembered_for_the_same_node_and_offer() -> None:
    asked = _Asked()
    arrange = answering(library(), asked)
    x, y = floats(2, 3), floats(3, 2)
    first = arrange({"size": 1}, [x], [x], [plain(x)])
    assert arrange({"size": 1}, [x], [x], [plain(x)]) is first
    assert len(asked.nodes) == 1
    for other in (({"size": 2}, [x], [x], [plain(x)]), ({"size": 1}, [y], [x], [None]), ({}, [x], [x], [None])):
        arrange(*other)
    assert len(asked.nodes) == 4
    assert arrange({"unknown": True}, [x], [x], [None]) is None


def test_answers_are_cached_per_number_of_threads() -> None:
    asked = _Asked()
    arrange = answering(library(), asked)
    x = floats(2, 3)
    for threads, questions in ((1, 1), (2, 2), (1, 2), (3, 3)):
        with threadpool_limits(threads, user_api="openmp"):
            arrange({}, [x], [x], [plain(x)])
        assert len(asked.nodes) == questions


def test_threads_that_are_added_have_memory_to_work_in() -> None:
    """The guard bytes of ``check`` reveal writes past the end. oneDNN needs scratch memory here with AVX-512 only."""
    attributes = {"transpose_a": False, "transpose_b": False, "bias": False, "relu": False, "dtype": "float32"}
    for threads in (1, 2, 7):
        with threadpool_limits(threads, user_api="openmp"):
            check("matmul_fused", attributes, [normal(1, 32, 64), normal(2, 64, 8)])


@pytest.mark.parametrize("spec", [floats(), floats(2, 0), Shaped((2,), "int64"), Shaped((2,), "float64")])
def test_tensors_that_onednn_does_not_support_cause_no_query(spec: Shaped) -> None:
    asked = _Asked()
    good = floats(2, 3)
    assert answering(library(), asked)({}, [good, spec], [good], [None, None]) is None
    assert answering(library(), asked)({}, [good], [spec], [None]) is None
    assert not asked.nodes


@pytest.mark.parametrize(("isa", "asks"), [(0x7, 0), (0x1F, 0), (0x27, 1)], ids=["AVX2", "AVX2_VNNI_2", "AVX512_CORE"])
def test_bfloat16_is_refused_without_avx512(isa: int, asks: int) -> None:
    asked, spec = _Asked(), Shaped((2, 3), "bfloat16")
    cpu = replace(library(), dtypes=supported_dtypes(SimpleNamespace(dnnl_get_effective_cpu_isa=lambda: isa)))
    answering(cpu, asked)({}, [spec], [spec], [None])
    answering(cpu, asked)({}, [floats(2, 3)], [floats(2, 3)], [None])
    assert len(asked.nodes) == asks + 1


def test_the_format_of_the_first_that_has_one() -> None:
    assert format_of(None, Layout("", 8), Layout("aBcd16b", 8), Layout("acdb", 8)) == "aBcd16b"
    assert format_of(Layout("u8:acdb", 8)) == "acdb"
    assert format_of(Layout("bits:aBcd16b", 8)) == "aBcd16b"
    assert format_of(Layout("t:ab", 8), Layout("g2:abcde", 8), None) == ""
    assert format_of() == ""


def _doubling() -> tuple[Description, dict[int, object]]:
    """A sum of a tensor with itself, 1 to 4 doubled."""
    spec = floats(4)
    descriptor = in_c_order(library(), spec.shape, spec.dtype)
    ffi = library().ffi
    what = (descriptor, 2, ffi.new("float[]", [1.0, 1.0]), ffi.new("object[]", [descriptor] * 2))
    made = Description(library(), "sum", *what)
    x, y = holding(normal(1, 4)), filled(spec, plain(spec))
    places = {dnnl.MULTIPLE_SRC: x, dnnl.MULTIPLE_SRC + 1: x, dnnl.DST: y}
    return made, {number: (descriptor, operand) for number, operand in places.items()}


def test_too_little_memory_to_work_in_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Description, "scratch_bytes", 128)
    made, arguments = _doubling()
    expected = "a primitive for 1 threads needs 128 bytes of scratch memory, came 64: it was planned for other threads"
    with pytest.raises(ValueError, match=expected):
        bound(made, arguments, allocate(64))


def test_calls_run_in_turn() -> None:
    made, first = _doubling()
    (descriptor, y), second = first[dnnl.DST], dict(first)
    z = filled(floats(4), plain(floats(4)))
    second.update({dnnl.MULTIPLE_SRC: (descriptor, y), dnnl.DST: (descriptor, z)})
    calls = [bound(made, arguments, allocate(made.scratch_bytes)) for arguments in (first, second)]
    in_turn(library(), calls)()
    assert z.array.tolist() == (3 * normal(1, 4)).tolist()


def test_a_failed_call_reports_the_reason() -> None:
    failing = library().ffi.callback("int(intptr_t, intptr_t, intptr_t, intptr_t)", lambda *_: 2)
    call = NativeCall(library().address(failing), (0, 0, 0, 0), failing)
    with pytest.raises(OneDnnError, match="dnnl_primitive_execute: invalid_arguments"):
        in_turn(library(), [call])()


def test_a_bound_call_keeps_its_memory() -> None:
    made, arguments = _doubling()
    scratch = allocate(64)
    alive = weakref.ref(scratch)
    call = bound(made, arguments, scratch)
    del scratch
    gc.collect()
    assert alive() is not None
    del call
    gc.collect()
    assert alive() is None
