"""The common base of datasets in the user's files."""

from pathlib import Path

import pytest

from runner.data.arrays import Arrays
from runner.data.dataset import Dataset
from runner.data.image_folder import ImageFolder
from runner.data.own_files import OwnFiles
from tests.data.own_data import small_arrays, write_arrays, write_images


@pytest.fixture(params=["bytes", "floats", "folder"])
def own_files(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[type[OwnFiles], str, int]:
    """Settings, path and number of channels."""
    if request.param == "folder":
        return ImageFolder, str(write_images(tmp_path / "images")), 3
    arrays = small_arrays(dtype="uint8" if request.param == "bytes" else "float32")
    return Arrays, str(write_arrays(tmp_path / "mine.npz", **arrays)), 1


def test_no_image_is_read_for_a_normalisation_that_is_set(
    own_files: tuple[type[OwnFiles], str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, path, channels = own_files
    settings = kind(path=path, mean=[0.5] * channels, std=[0.25] * channels)
    expected = settings.load().normalisation
    assert kind(path=path).normalisation() == kind(path=path).load().normalisation != expected

    def refuse(self: OwnFiles) -> Dataset:
        raise AssertionError("the images were read")

    monkeypatch.setattr(kind, "load", refuse)
    assert settings.normalisation() == expected
