"""Variables in any memory layout are saved and read back, errors name mismatches, and the hash is as documented."""

import hashlib
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from runner.checkpoint import CheckpointMeta, load, newest, save, weights_sha256
from runner.checkpoint.manifest import DTYPE
from runner.errors import CheckpointError, NumericError

META = CheckpointMeta("c0ffee", "0123abcd", epoch=2, examples=640, progress={"best/test": 0.1 + 0.2, "seconds": 3})
GRID = np.arange(24, dtype=np.float32).reshape(4, 6)
LAYOUTS: dict[str, NDArray[Any]] = {
    "contiguous": GRID,
    "transposed": GRID.T,
    "fortran": np.asfortranarray(GRID),
    "strided": GRID[::2, 1::3],
    "reversed": GRID[::-1, ::-1],
    "broadcast": np.broadcast_to(np.float64(3.5), (2, 3)),
    "permuted": np.arange(24, dtype=np.float64).reshape(2, 3, 4).transpose(2, 0, 1),
    "big-endian": GRID.astype(">f4"),
    "scalar": np.array(2.5, np.float64),
    "empty": np.zeros((3, 0, 2), np.float32),
    "bool": np.array([[True, False], [False, True]]).T,
    "int64": np.array([2**62, -(2**62)], np.int64)[::-1],
    "int32": np.array([2**30, -5], np.int32),
    "uint8": np.arange(256, dtype=np.uint8),
    "negative-zero": np.array([-0.0, 0.0]),
}


def test_every_layout_and_type_is_read_back(tmp_path: Path) -> None:
    path = save(tmp_path, step=7, variables=LAYOUTS, meta=META)
    assert path == tmp_path / "step-7"
    assert sorted(file.name for file in path.iterdir()) == ["manifest.json", "variables.safetensors"]
    step, variables, manifest = load(path)
    assert step == manifest.step == 7
    assert manifest.meta == META
    assert variables.keys() == LAYOUTS.keys()
    for name, value in LAYOUTS.items():
        array = np.asarray(value)
        assert variables[name].shape == array.shape
        assert variables[name].dtype == array.dtype.newbyteorder("=")
        assert variables[name].tobytes() == array.astype(array.dtype.newbyteorder("<")).tobytes()
        assert variables[name].flags.c_contiguous
        assert variables[name].flags.writeable
    assert weights_sha256(variables) == weights_sha256(LAYOUTS)


@settings(max_examples=25)
@given(data=st.data())
def test_random_variables_are_read_back(data: st.DataObject) -> None:
    names = data.draw(st.sets(st.from_regex(r"[A-Za-z0-9._/-]{1,11}", fullmatch=True), max_size=4))
    variables: dict[str, NDArray[Any]] = {}
    for name in sorted(names):
        shape = data.draw(hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4))
        finite = {"allow_nan": False, "allow_infinity": False}
        dtype = data.draw(st.sampled_from(DTYPE.options))
        array = data.draw(hnp.arrays(dtype, shape, elements=finite if dtype.startswith("float") else None))
        variables[name] = array.transpose(data.draw(st.permutations(range(array.ndim))))
    with tempfile.TemporaryDirectory() as directory:
        loaded = load(save(directory, step=0, variables=variables, meta=META)).variables
    assert loaded.keys() == variables.keys()
    for name, array in variables.items():
        assert loaded[name].dtype == array.dtype
        assert loaded[name].shape == array.shape
        assert loaded[name].tobytes() == array.tobytes()


def test_writing_to_a_loaded_array_does_not_change_the_checkpoint(tmp_path: Path) -> None:
    path = save(tmp_path, step=1, variables={"w": GRID}, meta=META)
    load(path).variables["w"][:] = 0
    np.testing.assert_array_equal(load(path).variables["w"], GRID)


EXPECTED = {"a": ((4, 6), "float32"), "b": ((3,), "float64")}


@pytest.mark.parametrize(
    ("expected", "message"),
    [
        ({**EXPECTED, "c": ((2,), "float32")}, r"step-1: does not fit the network: 1 missing: c\."),
        ({**EXPECTED, "a": ((6, 4), "float32")}, r"1 mismatched: a is float32 \(4, 6\), expected float32 \(6, 4\)"),
        ({**EXPECTED, "b": ((3,), "float32")}, r"1 mismatched: b is float64 \(3,\), expected float32 \(3,\)"),
        ({**EXPECTED, **{f"c{k}": ((), "int64") for k in range(8)}}, r"8 missing: c0, c1, c2, c3, c4 and 3 more\."),
        ({"z": ((), "int64"), "b": ((4,), "float64")}, r"1 missing: z; 1 unexpected: a; 1 mismatched: b is "),
    ],
)
def test_mismatches_are_named(expected: dict[str, tuple[tuple[int, ...], str]], message: str, tmp_path: Path) -> None:
    path = save(tmp_path, step=1, variables={"a": GRID, "b": np.ones(3)}, meta=META)
    assert load(path, EXPECTED).step == 1
    with pytest.raises(CheckpointError, match=message):
        load(path, expected)


@pytest.mark.parametrize(
    ("step", "variables", "change", "message"),
    [
        *(
            (1, {name: GRID}, {}, r"checkpoint variable name: '.*expected 1 to 512 letters")
            for name in ("", "a b", "a\n", "ä", "__metadata__", "x" * 513, "a:0")
        ),
        *(
            (1, {"w": np.zeros(2, dtype)}, {}, r"dtype of w: .* expected one of")
            for dtype in ("float16", "complex64", "object", "U3", "datetime64[s]")
        ),
        (1, {}, {"run_id": "../x"}, r"checkpoint meta\.run_id: '\.\./x', expected 1 to 128 letters"),
        (1, {}, {"examples": -1}, r"checkpoint meta\.examples: -1, expected a whole number from 0"),
        (1, {}, {"progress": {"loss": True}}, r"checkpoint meta\.progress\[loss\]: True, expected a finite number"),
        (-1, {}, {}, "checkpoint step: -1, expected a whole number from 0"),
    ],
)
def test_values_that_no_checkpoint_can_hold_are_refused_before_writing(
    step: int, variables: dict[str, NDArray[Any]], change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match=message):
        save(tmp_path, step=step, variables=variables, meta=replace(META, **change))
    assert list(tmp_path.iterdir()) == []


def test_progress_that_is_not_finite_is_a_numeric_error() -> None:
    with pytest.raises(NumericError, match="progress loss=nan: expected a finite number"):
        CheckpointMeta(config_hash="c", run_id="r", epoch=1, examples=0, progress={"loss": float("nan")})


def test_newest_is_the_highest_step_not_the_last_in_text_order(tmp_path: Path) -> None:
    assert newest(tmp_path) is None
    assert newest(tmp_path / "missing") is None
    for step in (9, 10, 100):
        save(tmp_path, step=step, variables={"w": GRID}, meta=META)
    (tmp_path / "step-200.tmp-1").mkdir()
    (tmp_path / "step-0300").mkdir()
    assert newest(tmp_path) == tmp_path / "step-100"


def test_the_hash_is_as_documented() -> None:
    variables = {"b": np.array([True, False]), "a/w": np.array([[1.0, 2.0]], np.float32), "c": np.array(5)}
    document = b"a/w\nfloat32\n1,2\n" + b"\x00\x00\x80?\x00\x00\x00@"
    document += b"b\nbool\n2\n" + b"\x01\x00"
    document += b"c\nint64\n\n" + b"\x05" + b"\x00" * 7
    assert weights_sha256(variables) == hashlib.sha256(document).hexdigest()


@given(name=st.sampled_from(sorted(set(LAYOUTS) - {"empty"})), position=st.integers(0, 10**6), bit=st.integers(0, 7))
def test_hash_changes_with_any_bit(name: str, position: int, bit: int) -> None:
    array = np.asarray(LAYOUTS[name])
    raw = bytearray(array.astype(array.dtype.newbyteorder("<")).tobytes())
    raw[position % len(raw)] ^= 1 << bit
    flipped = np.frombuffer(bytes(raw), array.dtype.newbyteorder("<")).reshape(array.shape)
    assert weights_sha256({**LAYOUTS, name: flipped}) != weights_sha256(LAYOUTS)
