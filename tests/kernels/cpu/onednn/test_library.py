"""Loading of oneDNN, memory formats and their names, cached arrangements, refused nodes, and the order of calls."""

import gc
import weakref
from dataclasses import replace
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from threadpoolctl import threadpool_limits

from runner.kernels.contract import Arrangement, Layout, NativeCall, Offers, Operand, all_plain, plain
from runner.kernels.cpu.onednn import constants as dnnl
from runner.kernels.cpu.onednn import library as loading
from runner.kernels.cpu.onednn import memory
from runner.kernels.cpu.onednn.library import OneDnnError, OneDnnUnavailable, Unimplemented, load, supported_dtypes
from runner.kernels.cpu.onednn.recipe import Description, Node, answering, bound, format_of, in_turn
from runner.kernels.memory import allocate
from tests.kernels.cpu.onednn.checking import check, floats, layout, library, normal
from tests.kernels.harness import Shaped, filled, holding

Ints = tuple[int, ...]


@pytest.mark.parametrize(
    ("name", "axis", "block"),
    [("aBcd16b", 1, 16), ("aBcd16b", 0, 1), ("ABcd16b16a", 0, 16), ("ABcd8b16a2b", 1, 16), ("acdb", 1, 1), ("", 1, 1)],
)
def test_the_name_of_a_format_gives_the_block_along_an_axis(name: str, axis: int, block: int) -> None:
    assert memory.block_along(name, axis) == block


@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (2, 1, 4, 1), (1, 1, 1, 1), (7,), (1, 5), (2, 3, 4, 5, 6)])
@pytest.mark.parametrize("prefix", ["", "t:"])
def test_c_order_is_plain(shape: Ints, prefix: str) -> None:
    if prefix and len(shape) != 2:
        shape = (shape[0], shape[-1])
    spec = floats(*shape)
    descriptor = memory.described(library(), spec, plain(spec), prefix)
    assert memory.layout_of(library(), descriptor, spec, prefix) == plain(spec)


@pytest.mark.parametrize(
    ("shape", "tag", "found"),
    [
        ((2, 20, 4, 5), "aBcd16b", "aBcd16b"),
        ((2, 20, 4, 5), "acdb", "acdb"),
        ((2, 20, 1, 1), "aBcd16b", "aBcd16b"),
        ((1, 16, 1, 1), "aBcd8b", "aBcd8b"),
        ((2, 20, 1, 5), "acdb", "acdb"),
        ((2, 1, 4, 5), "acdb", ""),  # with one channel, channels first and channels last are equal
        ((2, 20, 1, 1), "acdb", ""),
        ((20, 33, 1, 1), "ABcd16b16a", "ABcd16b16a"),
        ((20, 3, 1, 5), "Acdb16a", "Acdb16a"),
        ((19, 33), "ba", "ba"),
        ((19, 1), "ba", ""),
        ((19, 33), "t:ba", ""),  # ba of the transposed matrix is the C order of the matrix
        ((19, 33), "t:ab", "t:ab"),
        ((19, 33), "t:BA16a16b", "t:BA16a16b"),
        ((12, 33, 3, 2), "g2:aBCde16c16b", "g2:aBCde16c16b"),
        ((12, 33, 3, 2), "g2:abcde", ""),
        ((2, 1, 3, 3), "g2:Abcde16a", "g2:Abcde16a"),
    ],
)
def test_a_format_has_one_name_even_with_extents_of_1(shape: Ints, tag: str, found: str) -> None:
    spec = floats(*shape)
    prefix, name = memory.split_tag(tag)
    descriptor = memory.formatted(library(), memory.viewed(shape, prefix), spec.dtype, name)
    came = memory.layout_of(library(), descriptor, spec, prefix)
    assert came == Layout(found, memory.nbytes(library(), descriptor))
    again = memory.described(library(), spec, came, prefix)
    assert memory.layout_of(library(), again, spec, prefix) == came, "a name leads back to its format"


def test_a_layout_of_bytes_is_never_plain() -> None:
    spec = Shaped((2, 3, 4, 5), "int32")
    descriptor = memory.in_c_order(library(), spec.shape, "uint8")
    assert memory.layout_of(library(), descriptor, spec, "u8:") == Layout("u8:abcd", 120)


def test_the_size_of_a_layout_includes_its_padding() -> None:
    assert layout(floats(2, 20, 3, 3), "aBcd16b").nbytes == 2 * 32 * 3 * 3 * 4


@pytest.mark.parametrize(
    ("strides", "reason"),
    [
        ((5, 10, 1, 30), r"no name for the memory format with strides \[5, 10, 1, 30\] and inner blocks \[\]"),
        ((64, 20, 5, 1), r"the memory format abcd of \(2, 3, 4, 5\) has gaps, which no format name describes"),
    ],
)
def test_a_format_without_a_name_is_not_implemented(strides: Ints, reason: str) -> None:
    spec = floats(2, 3, 4, 5)
    descriptor = memory.strided(library(), spec.shape, spec.dtype, strides)
    with pytest.raises(Unimplemented, match=reason):
        memory.layout_of(library(), descriptor, spec)


def test_a_tensor_cannot_be_read_with_another_prefix_than_its_own() -> None:
    spec = floats(4, 6)
    with pytest.raises(ValueError, match="a tensor in layout 'ba' cannot be read as 't:'"):
        memory.described(library(), spec, Layout("ba", spec.nbytes), "t:")


@pytest.fixture
def fresh() -> Any:
    """Return the function ``load`` without its cache."""
    return load.__wrapped__


def test_the_library_of_the_package_is_loaded(fresh: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RUNNER_LIBDNNL", raising=False)
    found = fresh()
    assert found.version.startswith("3.")
    assert Path(found.path).name == "libdnnl.so.3"
    assert Path(found.path).is_absolute()


def test_only_the_named_library_is_tried(fresh: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    named = tmp_path / "mine.so"
    monkeypatch.setenv("RUNNER_LIBDNNL", str(named))
    with pytest.raises(OneDnnUnavailable) as refusal:
        fresh()
    assert str(refusal.value).startswith(f"libdnnl.so.3 could not be loaded; tried {named}: ")
    assert str(refusal.value).endswith("set RUNNER_LIBDNNL to another file, or unset it")
    named.symlink_to(load().path)
    assert fresh().path == str(named)


def test_without_the_library_the_error_names_the_package(fresh: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def not_installed(package: str) -> None:
        raise PackageNotFoundError(package)

    monkeypatch.delenv("RUNNER_LIBDNNL", raising=False)
    monkeypatch.setattr(loading, "files", not_installed)
    monkeypatch.setattr(loading, "SYSTEM_LIBRARY", "libdnnl-absent.so.3")
    with pytest.raises(OneDnnUnavailable, match=r"tried libdnnl-absent.so.3: .*; pip install onednn-cpu-gomp$"):
        fresh()


def test_errors_name_the_function_and_the_reason() -> None:
    library = load()
    with pytest.raises(OneDnnError, match="dnnl_memory_desc_create_with_tag: invalid_arguments"):
        library.create("memory_desc_create_with_tag", -1, library.ints((2,)), 3, 2)
    with pytest.raises(Unimplemented, match="dnnl_convolution: unimplemented"):
        library.check("convolution", 3)
    with pytest.raises(MemoryError, match="dnnl_convolution could not allocate memory"):
        library.check("convolution", 1)
    library.check("anything", 0)


def test_every_format_has_one_name() -> None:
    tags = load().tags
    assert tags["aBcd16b"] != tags["acdb"]
    assert len(set(tags.values())) == len(tags)
    assert "nchw" not in tags


def _arrange(node: Node, offered: Offers) -> Arrangement:
    if node.attributes.get("unknown"):
        raise Unimplemented("no such thing")
    return all_plain(node.inputs, node.outputs)


@pytest.fixture
def asked() -> Mock:
    """Return an arrange function that counts its calls."""
    return Mock(side_effect=_arrange)


def test_an_arrangement_is_cached_for_the_same_node_and_offer(asked: Mock) -> None:
    arrange = answering(library(), asked)
    x, y = floats(2, 3), floats(3, 2)
    first = arrange({"size": 1}, [x], [x], [plain(x)])
    assert arrange({"size": 1}, [x], [x], [plain(x)]) is first
    assert asked.call_count == 1
    for other in (({"size": 2}, [x], [x], [plain(x)]), ({"size": 1}, [y], [x], [None]), ({}, [x], [x], [None])):
        arrange(*other)
    assert asked.call_count == 4
    assert arrange({"unknown": True}, [x], [x], [None]) is None


def test_arrangements_are_cached_for_each_number_of_threads(asked: Mock) -> None:
    arrange = answering(library(), asked)
    x = floats(2, 3)
    for threads, questions in ((1, 1), (2, 2), (1, 2), (3, 3)):
        with threadpool_limits(threads, user_api="openmp"):
            arrange({}, [x], [x], [plain(x)])
        assert asked.call_count == questions


def test_additional_threads_have_scratch_memory() -> None:
    """``check`` detects writes past the scratch memory, which oneDNN needs for this product only with AVX-512."""
    attributes = {"transpose_a": False, "transpose_b": False, "bias": False, "relu": False, "dtype": "float32"}
    for threads in (1, 2, 7):
        with threadpool_limits(threads, user_api="openmp"):
            check("matmul_fused", attributes, [normal(1, 32, 64), normal(2, 64, 8)])


@pytest.mark.parametrize("spec", [floats(), floats(2, 0), Shaped((2,), "int64"), Shaped((2,), "float64")])
def test_tensors_that_onednn_does_not_support_cause_no_query(asked: Mock, spec: Shaped) -> None:
    good = floats(2, 3)
    assert answering(library(), asked)({}, [good, spec], [good], [None, None]) is None
    assert answering(library(), asked)({}, [good], [spec], [None]) is None
    asked.assert_not_called()


@pytest.mark.parametrize(("isa", "asks"), [(0x7, 0), (0x1F, 0), (0x27, 1)], ids=["AVX2", "AVX2_VNNI_2", "AVX512_CORE"])
def test_bfloat16_is_refused_without_avx512(asked: Mock, isa: int, asks: int) -> None:
    spec = Shaped((2, 3), "bfloat16")
    cpu = replace(library(), dtypes=supported_dtypes(SimpleNamespace(dnnl_get_effective_cpu_isa=lambda: isa)))
    answering(cpu, asked)({}, [spec], [spec], [None])
    answering(cpu, asked)({}, [floats(2, 3)], [floats(2, 3)], [None])
    assert asked.call_count == asks + 1


def test_the_format_comes_from_the_first_layout_that_has_one() -> None:
    assert format_of(None, Layout("", 8), Layout("aBcd16b", 8), Layout("acdb", 8)) == "aBcd16b"
    assert format_of(Layout("u8:acdb", 8)) == "acdb"
    assert format_of(Layout("bits:aBcd16b", 8)) == "aBcd16b"
    assert format_of(Layout("t:ab", 8), Layout("g2:abcde", 8), None) == ""
    assert format_of() == ""


LINEAR = 0x26
"""dnnl_eltwise_linear."""


def _doubling() -> tuple[Description, dict[int, tuple[Any, Operand]]]:
    """Return the description of y = 2 x for vectors, and arguments x and y."""
    spec = floats(4)
    vector = memory.in_c_order(library(), spec.shape, spec.dtype)
    made = Description(library(), "eltwise_forward", dnnl.FORWARD_INFERENCE, LINEAR, vector, vector, 2.0, 0.0)
    return made, {dnnl.SRC: (vector, holding(normal(1, 4))), dnnl.DST: (vector, filled(spec, plain(spec)))}


def test_too_little_scratch_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Description, "scratch_bytes", 128)
    made, arguments = _doubling()
    expected = "a call on 1 threads needs 128 bytes of scratch memory, got 64: planned for another thread count"
    with pytest.raises(ValueError, match=expected):
        bound(made, arguments, allocate(64))


def test_calls_run_in_order() -> None:
    made, first = _doubling()
    _, second = _doubling()
    second[dnnl.SRC] = first[dnnl.DST]
    in_turn(library(), [bound(made, arguments, allocate(made.scratch_bytes)) for arguments in (first, second)])()
    assert second[dnnl.DST][1].array.tolist() == (4 * normal(1, 4)).tolist()


def test_a_failed_call_reports_the_reason() -> None:
    failing = library().ffi.callback("int(intptr_t, intptr_t, intptr_t, intptr_t)", lambda *_: 2)
    call = NativeCall(library().address(failing), (0, 0, 0, 0), failing)
    with pytest.raises(OneDnnError, match="dnnl_primitive_execute: invalid_arguments"):
        in_turn(library(), [call])()


def test_a_bound_call_keeps_its_scratch_memory_alive() -> None:
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
