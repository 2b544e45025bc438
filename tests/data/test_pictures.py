"""Images from files: conversions and refused files."""

import os
import struct
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from runner.data.dataset import Normalisation
from runner.data.pictures import Picture, read_pictures
from runner.errors import DataError

GREY, COLOUR = (1, 2, 3), (3, 2, 3)
BYTES = Normalisation(255.0, (0.0,), (1.0,))
INK = Normalisation(16.0, (0.0,), (1.0,))
ANY = Normalisation(1.0, (100.0,), (50.0,))
PIXELS = np.arange(0, 60, 10, dtype=np.uint8).reshape(2, 3)


def read(
    path: Path, shape: tuple[int, int, int] = GREY, scale: Normalisation = BYTES, fit: bool = False
) -> list[Picture]:
    return read_pictures([path], shape, scale, fit=fit)


def saved(path: Path, array: np.ndarray, mode: str | None = None) -> Path:
    """Write an image file with these pixels and return its path."""
    image = Image.fromarray(array)
    (image if mode is None else image.convert(mode)).save(path)
    return path


def array_file(folder: Path, array: np.ndarray) -> Path:
    np.save(folder / "a.npy", array)
    return folder / "a.npy"


@pytest.mark.parametrize("scale", [BYTES, INK])
def test_a_grey_image_is_one_channel_in_the_range_of_the_dataset(tmp_path: Path, scale: Normalisation) -> None:
    (picture,) = read(saved(tmp_path / "a.png", PIXELS), scale=scale)
    assert picture.label == str(tmp_path / "a.png")
    np.testing.assert_allclose(picture.pixels, PIXELS[np.newaxis] * (scale.scale / 255), rtol=1e-12)


def test_channels_are_the_first_axis_and_a_grey_image_fits_a_colour_network(tmp_path: Path) -> None:
    colours = np.stack([PIXELS, PIXELS + 1, PIXELS + 2], axis=-1)
    np.testing.assert_array_equal(read(saved(tmp_path / "a.png", colours), COLOUR)[0].pixels[2], PIXELS + 2)
    np.testing.assert_array_equal(read(saved(tmp_path / "b.PNG", PIXELS), COLOUR)[0].pixels, np.stack([PIXELS] * 3))
    assert read(saved(tmp_path / "c.jpeg", colours), COLOUR)[0].pixels.shape == COLOUR


@pytest.mark.parametrize(
    ("pixels", "mode", "shape", "complaint"),
    [
        (PIXELS.T, None, GREY, "it is 2 x 3 pixels, the network takes 3 x 2. Convert it with --resize"),
        (PIXELS, "RGB", GREY, "its pixels are RGB, the network takes L"),
        (PIXELS, "RGBA", COLOUR, "its pixels are RGBA, the network takes RGB"),
    ],
)
def test_an_image_that_does_not_fit_is_refused_unless_fit_is_set(
    tmp_path: Path, pixels: np.ndarray, mode: str | None, shape: tuple[int, int, int], complaint: str
) -> None:
    path = saved(tmp_path / "a.png", pixels, mode)
    with pytest.raises(DataError) as refusal:
        read(path, shape)
    assert complaint in str(refusal.value)
    assert read(path, shape, fit=True)[0].pixels.shape == shape


def test_an_image_is_turned_upright_before_its_size_is_checked(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # viewers turn the image by 90 degrees to the right
    Image.fromarray(np.rot90(PIXELS)).save(tmp_path / "a.png", exif=exif)
    np.testing.assert_array_equal(read(tmp_path / "a.png")[0].pixels, PIXELS[np.newaxis])


@pytest.mark.parametrize(
    ("array", "shape", "scale", "numbers"),
    [
        *((PIXELS.reshape(shape), GREY, BYTES, [""]) for shape in ((2, 3), (1, 2, 3), (1, 1, 2, 3))),
        (np.stack([np.full(COLOUR, 0.5), np.full(COLOUR, 16.0)]), COLOUR, INK, ["[0]", "[1]"]),
        # Grey images need no channel axis.
        (np.stack([PIXELS, PIXELS + 1]), GREY, BYTES, ["[0]", "[1]"]),
        (np.array([[-1e9, -0.5, 0], [1, 300, 1e9]]), GREY, ANY, [""]),
    ],
)
def test_an_array_holds_images_with_the_pixel_range_of_the_dataset(
    tmp_path: Path, array: np.ndarray, shape: tuple[int, int, int], scale: Normalisation, numbers: list[str]
) -> None:
    pictures = read(array_file(tmp_path, array), shape, scale)
    assert [each.label for each in pictures] == [f"{tmp_path}/a.npy{number}" for number in numbers]
    found = np.stack([each.pixels for each in pictures])
    np.testing.assert_array_equal(found, array.reshape(-1, *shape), strict=True)


def test_a_network_for_any_range_accepts_finite_arrays_only(tmp_path: Path) -> None:
    for value in (np.inf, np.nan):
        with pytest.raises(DataError, match="expected pixels as in the dataset, finite, not normalised"):
            read(array_file(tmp_path, np.full((2, 3), value)), scale=ANY)
    for fit in (False, True):
        with pytest.raises(DataError, match=r"an image has pixels of 0 to 255, the network was trained on numbers of"):
            read(saved(tmp_path / "a.png", PIXELS), scale=ANY, fit=fit)


@pytest.mark.parametrize(
    ("array", "complaint"),
    [
        (np.zeros((3, 2)), r"its shape is \(3, 2\), expected \(1, 2, 3\), or \(N, 1, 2, 3\)"),
        (np.zeros((0, 1, 2, 3)), r"its shape is \(0, 1, 2, 3\)"),
        (np.zeros((0, 2, 3)), r"its shape is \(0, 2, 3\)"),
        (np.zeros((5, 3, 2)), r"its shape is \(5, 3, 2\)"),
        (np.full((2, 3), -0.4), "values are -0.4 to -0.4; expected pixels as in the dataset, 0 to 255, not norm"),
        (np.full((2, 3), 256), "its values are 256 to 256"),
        (np.full((2, 3), np.nan), "its values are nan to nan"),
        (np.array([["a"]]), "expected one array of numbers, found <U1"),
        (np.array([print], dtype=object), "cannot be read as a NumPy array: Object arrays cannot be loaded"),
    ],
)
def test_an_array_that_does_not_fit_is_refused(tmp_path: Path, array: np.ndarray, complaint: str) -> None:
    with pytest.raises(DataError, match=complaint):
        read(array_file(tmp_path, array))


@pytest.mark.parametrize(
    ("name", "reason"),
    [("a.png", "cannot be decoded: cannot identify image file"), ("a.npy", "a NumPy array"), ("a.gif", "ends in")],
)
def test_a_file_that_is_not_an_image_is_refused(tmp_path: Path, name: str, reason: str) -> None:
    (tmp_path / name).write_text("text")
    with pytest.raises(DataError, match=reason):
        read(tmp_path / name)
    absent = r"expected a file that ends in|a\.npy.*No such file or directory|absent/a\.png: no such file$"
    with pytest.raises(DataError, match=absent):
        read(tmp_path / "absent" / name)
    if name != "a.gif":
        (tmp_path / name).unlink()
        os.mkfifo(tmp_path / name)
        with pytest.raises(DataError, match=rf"{name} is a FIFO: expected a regular file"):
            read(tmp_path / name)


def test_several_arrays_in_one_file_and_an_image_of_two_channels_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", a=PIXELS)
    with pytest.raises(DataError, match="expected one array of numbers, found several arrays"):
        read((tmp_path / "a.npz").rename(tmp_path / "a.npy"))
    with pytest.raises(DataError, match="the network takes 2 channels, an image has 1 or 3; use arrays"):
        read(saved(tmp_path / "a.png", PIXELS), (2, 2, 3))


IMPOSSIBLY_LARGE = str({"descr": "<f8", "fortran_order": False, "shape": (2**50,)})


@pytest.mark.parametrize("header", ["[" * 5000, "-" * 5000 + "1", IMPOSSIBLY_LARGE], ids=["brackets", "signs", "size"])
def test_an_invalid_array_header_is_refused(tmp_path: Path, header: str) -> None:
    (tmp_path / "a.npy").write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode())
    with pytest.raises(DataError, match=r"a\.npy: cannot be read as a NumPy array"):
        read(tmp_path / "a.npy")
