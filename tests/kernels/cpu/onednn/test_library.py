"""Loading oneDNN: the chosen file, and the error without a library."""

from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest

from runner.kernels.cpu.onednn import library as loading
from runner.kernels.cpu.onednn.library import Library, OneDnnError, OneDnnUnavailable, Unimplemented, load


@pytest.fixture
def fresh() -> Any:
    """The loading function without its cache."""
    return load.__wrapped__


def _not_installed(package: str) -> None:
    raise PackageNotFoundError(package)


def test_the_package_is_taken(fresh: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RUNNER_LIBDNNL", raising=False)
    found: Library = fresh()
    assert found.version.startswith("3.")
    assert Path(found.path).name == "libdnnl.so.3"
    assert Path(found.path).is_absolute()


def test_a_machine_may_name_the_library(fresh: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    link = tmp_path / "mine.so"
    link.symlink_to(load().path)
    monkeypatch.setenv("RUNNER_LIBDNNL", str(link))
    assert fresh().path == str(link)


def test_a_named_library_that_is_missing_is_not_replaced_by_another(
    fresh: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    missing = tmp_path / "none.so"
    monkeypatch.setenv("RUNNER_LIBDNNL", str(missing))
    with pytest.raises(OneDnnUnavailable) as refusal:
        fresh()
    assert str(refusal.value).startswith(f"libdnnl.so.3 could not be loaded; tried {missing}: ")
    assert str(refusal.value).endswith("RUNNER_LIBDNNL names a file; let it name another, or unset it")


def test_without_the_library_the_error_says_what_to_install(fresh: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RUNNER_LIBDNNL", raising=False)
    monkeypatch.setattr(loading, "files", _not_installed)
    monkeypatch.setattr(loading, "SYSTEM_LIBRARY", "libdnnl-that-nobody-has.so.3")
    with pytest.raises(OneDnnUnavailable) as refusal:
        fresh()
    assert str(refusal.value).startswith("libdnnl.so.3 could not be loaded; tried libdnnl-that-nobody-has.so.3: ")
    assert str(refusal.value).endswith("; pip install onednn-cpu-gomp")


def test_errors_name_the_function_and_the_reason() -> None:
    library = load()
    with pytest.raises(OneDnnError, match="dnnl_memory_desc_create_with_tag: invalid_arguments"):
        library.create("memory_desc_create_with_tag", -1, library.ints((2,)), 3, 2)
    with pytest.raises(Unimplemented, match="dnnl_convolution: unimplemented"):
        library.check("convolution", 3)
    with pytest.raises(MemoryError, match="dnnl_convolution could not allocate memory"):
        library.check("convolution", 1)
    library.check("anything", 0)


def test_formats_have_one_name_each() -> None:
    tags = load().tags
    assert tags["aBcd16b"] != tags["acdb"]
    assert len(set(tags.values())) == len(tags)
    assert "nchw" not in tags
