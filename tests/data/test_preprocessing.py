"""Preprocessing of images: regions, colours and decoding, against colorsys, Pillow and the numbers of the papers."""

import colorsys
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from runner.data import ImageFolder, colour
from runner.data.colour import DISTORTIONS
from runner.data.compiled import can_compile
from runner.data.crops import ImageSize, Region, central_fraction, central_square, random_area, random_square, ten_views
from runner.data.dataset import EncodedImage, UndecodableImageError
from runner.data.decoding import OpenedImage
from runner.data.pipeline import Pipeline
from runner.data.preprocessing import RECIPES, ImagePreprocessing, PreprocessingSettings
from runner.errors import ConfigError
from runner.kernels.cpu import loading
from tests.data.colours import random_pixels

SIZES = st.builds(ImageSize, st.integers(1, 700), st.integers(1, 700))
DRAW = st.floats(0, 1, exclude_max=True)


def draws_of(seed: int, count: int) -> NDArray[np.float64]:
    return np.random.default_rng(seed).random(count)


def assert_inside(region: Region, image: ImageSize) -> None:
    assert region.top >= -1e-9
    assert region.left >= -1e-9
    assert region.top + region.height <= image.height + 1e-9
    assert region.left + region.width <= image.width + 1e-9
    assert region.height > 0
    assert region.width > 0


@given(SIZES, st.integers(0, 999), st.booleans())
def test_a_random_square_has_the_size_of_a_crop(image: ImageSize, seed: int, of_square: bool) -> None:
    draws = draws_of(seed, 3)
    region = random_square(image, (256, 512), 224, draws, of_square=of_square)
    assert_inside(region, image)
    shorter = 256 + int(draws[0] * 257)
    assert region.height == region.width == pytest.approx(224 * image.shorter / shorter)
    if of_square:
        assert abs(region.top + region.height / 2 - image.height / 2) <= image.shorter / 2
        assert abs(region.left + region.width / 2 - image.width / 2) <= image.shorter / 2


def test_a_random_square_reaches_every_corner() -> None:
    image, last = ImageSize(512, 1024), np.nextafter(1, 0)
    top_left = random_square(image, (256, 256), 224, np.array([0, 0, 0.0]))
    bottom_right = random_square(image, (256, 256), 224, np.array([0, last, last]))
    assert top_left == Region(0, 0, 448, 448)
    assert bottom_right == Region(64, 576, 448, 448)
    # Only columns 256 to 768, the central square.
    assert random_square(image, (256, 256), 224, np.zeros(3), of_square=True).left == 256


@given(SIZES, st.integers(0, 999))
def test_a_random_area_keeps_its_bounds(image: ImageSize, seed: int) -> None:
    region = random_area(image, (0.05, 1.0), (3 / 4, 4 / 3), draws_of(seed, 40))
    if region is None:
        # In ten attempts, this happens only if the image is much longer than wide, or tiny.
        assert max(image.height, image.width) > 4 / 3 * image.shorter or image.shorter < 20
        return
    assert_inside(region, image)
    assert 0.05 <= region.height * region.width / (image.height * image.width) <= 1
    # Width is height times the ratio, rounded.
    assert 3 / 4 * region.height - 0.5 <= region.width <= 4 / 3 * region.height + 0.5


@given(st.integers(0, 999))
def test_a_random_area_covers_a_part_of_a_box(seed: int) -> None:
    image, box = ImageSize(100, 200), np.float32([[0.1, 0.6, 0.4, 0.9], [0, 0, 0.01, 0.01], [0.5, 0.5, 0.5, 0.9]])
    region = random_area(image, (0.05, 1.0), (3 / 4, 4 / 3), draws_of(seed, 400), box, covered=0.1)
    assert region is not None

    def shared(top: float, left: float, bottom: float, right: float) -> float:
        height = min(bottom, region.top + region.height) - max(top, region.top)
        width = min(right, region.left + region.width) - max(left, region.left)
        return max(height, 0) * max(width, 0)

    assert shared(10, 120, 40, 180) >= 0.1 * 30 * 60 - 1e-3 or shared(0, 0, 1, 2) >= 0.1 * 2 - 1e-3


def test_fixed_regions_are_those_of_the_papers() -> None:
    image = ImageSize(300, 600)
    assert central_fraction(image, 0.875) == Region(18.75, 37.5, 262.5, 525)
    assert central_square(image, 256, 224) == Region(18.75, 168.75, 262.5, 262.5)
    views = ten_views(ImageSize(256, 512), 256, 224)
    assert [(view.top, view.left) for view, _ in views[:5]] == [(0, 128), (0, 160), (32, 128), (32, 160), (16, 144)]
    assert [mirrored for _, mirrored in views] == [False] * 5 + [True] * 5
    assert {(view.height, view.width) for view, _ in views} == {(224, 224)}


def pixels_of(seed: int) -> NDArray[np.float32]:
    found = np.random.default_rng(seed).random((3, 4, 5)).astype(np.float32)
    found[:, 0, 0] = 0.5  # grey has no hue
    found[:, 0, 1] = 0.0
    found[:, 0, 2] = [1, 1, 0]
    return found


def changed(pixels: NDArray[np.float32], name: str, draw: float) -> NDArray[np.float32]:
    change, amounts = colour._amounts(name, draw)
    return colour._CHANGES[change](pixels, *map(np.float32, amounts))


@given(st.integers(0, 99), DRAW)
def test_hue_and_saturation_are_those_of_the_hsv_model(seed: int, draw: float) -> None:
    pixels = pixels_of(seed)
    turned, saturated = (changed(pixels, name, draw) for name in ("hue", "saturation"))
    for place in np.ndindex(pixels.shape[1:]):
        hue, saturation, value = colorsys.rgb_to_hsv(*pixels[:, *place].astype(float))
        shifted = colorsys.hsv_to_rgb((hue - 0.2 + 0.4 * draw) % 1, saturation, value)
        np.testing.assert_allclose(turned[:, *place], shifted, atol=2e-5)
        scaled = colorsys.hsv_to_rgb(hue, min(saturation * (0.5 + draw), 1), value)
        np.testing.assert_allclose(saturated[:, *place], scaled, atol=2e-5)


def test_colours_change_by_the_published_amounts() -> None:
    pixels = pixels_of(0)
    mean = pixels.mean(axis=(1, 2), keepdims=True)
    np.testing.assert_allclose(changed(pixels, "contrast", 0.0), 0.5 * pixels + 0.5 * mean, rtol=1e-5)
    grey = np.full((3, 1, 1), 0.5, np.float32)
    # Draws of 1: brightness 32/255, Cb and Cr 0.1.
    fast = DISTORTIONS["fast"].apply(grey, np.ones(3))[:, 0, 0] - 0.5 - 32 / 255
    np.testing.assert_allclose(fast, [0.1402, -0.1058272, 0.1772], rtol=1e-4)
    draws = np.random.default_rng(0).random((4000, 4))
    shifts = np.array([DISTORTIONS["pca"].apply(grey, own)[:, 0, 0] - 0.5 for own in draws])
    values = np.sort(np.linalg.eigvalsh(np.cov(shifts.T)))[::-1]
    np.testing.assert_allclose(np.sqrt(values), 0.1 * np.array([0.2175, 0.0188, 0.0045]), rtol=0.05)


@given(st.integers(0, 99))
def test_full_distortion_stays_in_range_and_has_four_orders(seed: int) -> None:
    pixels, rest = pixels_of(seed), draws_of(seed, 4)
    found = [DISTORTIONS["full"].apply(pixels, np.array([first, *rest])) for first in (0.0, 0.25, 0.5, 0.75)]
    for one in found:
        assert one.dtype == np.float32
        assert (one >= 0).all()
        assert (one <= 1).all()
    assert any(not np.array_equal(found[0], other) for other in found[1:])


@pytest.mark.parametrize("name", ["full", "fast"])
@pytest.mark.parametrize("size", [(299, 299), (7, 5)])
def test_distortions_in_machine_code_equal_those_of_numpy(
    name: str, size: tuple[int, int], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    scaled = [random_pixels(seed, *size) for seed in range(24)]
    images: list[colour.Image] = [*scaled, *(np.rint(255 * pixels).astype(np.uint8) for pixels in scaled)]
    cases = [(image, draws_of(seed, DISTORTIONS[name].draws)) for seed, image in enumerate(images)]
    compiled = [DISTORTIONS[name].apply(pixels, draws) for pixels, draws in cases]
    monkeypatch.setattr(loading, "probe_compiler", lambda: ("", "no compiler"))
    can_compile.cache_clear()
    try:
        plain = [DISTORTIONS[name].apply(pixels, draws) for pixels, draws in cases]
    finally:
        can_compile.cache_clear()
    assert caplog.messages == ["images are prepared by NumPy, which is slower than compiled code: no compiler"]
    for found, expected in zip(compiled, plain, strict=True):
        np.testing.assert_array_equal(found, expected, strict=True)
        np.testing.assert_array_equal(np.signbit(found), np.signbit(expected))


def smooth(height: int, width: int) -> NDArray[np.uint8]:
    """Return an image (height, width, 3) whose red grows with the column, and whose green grows with the row."""
    rows, columns = np.mgrid[:height, :width]
    return np.stack([255 * columns / width, 255 * rows / height, np.full((height, width), 90)], -1).astype(np.uint8)


def encoded(pixels: NDArray[np.uint8], kind: str = "jpeg", mode: str = "RGB", **options: object) -> EncodedImage:
    out = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(out, kind, **({"quality": 95} if kind == "jpeg" else {}), **options)
    return EncodedImage(out.getvalue(), "picture")


@pytest.mark.parametrize("kind", ["jpeg", "png"])
@pytest.mark.parametrize("size", [16, 50, 100, 300])
def test_a_region_is_decoded_at_any_scale(kind: str, size: int) -> None:
    opened = OpenedImage(encoded(smooth(400, 600), kind), 3)
    assert opened.size == ImageSize(400, 600)
    found = opened.region(Region(100, 150, 200, 300), size, size)
    assert (found.shape, found.dtype) == ((3, size, size), np.uint8)
    # Red grows from a quarter to three quarters of 255 over the columns, green over the rows.
    ramp = 255 * (0.25 + 0.5 * (np.arange(size) + 0.5) / size)
    np.testing.assert_allclose(found[0].mean(axis=0), ramp, atol=3.5)
    np.testing.assert_allclose(found[1].mean(axis=1), ramp, atol=3.5)


def test_a_whole_jpeg_image_equals_that_of_pillow() -> None:
    image = encoded(np.random.default_rng(0).integers(0, 256, (30, 40, 3), np.uint8))
    found = OpenedImage(image, 3).region(Region(0, 0, 30, 40), 30, 40)
    expected = np.asarray(Image.open(io.BytesIO(image.content))).transpose(2, 0, 1)
    np.testing.assert_allclose(found.astype(int), expected, atol=2)


@pytest.mark.parametrize("mode", ["CMYK", "L", "RGB"])
@pytest.mark.parametrize("channels", [1, 3])
def test_images_of_any_colours_are_converted(mode: str, channels: int) -> None:
    image = encoded(smooth(40, 60), mode=mode)
    found = OpenedImage(image, channels).region(Region(0, 0, 40, 60), 20, 20)
    reference = Image.open(io.BytesIO(image.content)).convert({1: "L", 3: "RGB"}[channels]).resize((20, 20), 2)
    expected = np.asarray(reference).reshape(20, 20, channels).transpose(2, 0, 1)
    assert np.abs(found.astype(int) - expected).mean() < 2


@pytest.mark.parametrize("before", [0, 5000])
def test_images_are_rotated_according_to_their_exif_data(before: int) -> None:
    """Other data of ``before`` bytes may precede the EXIF data."""
    exif = Image.Exif()
    exif[0x0112] = 6  # rotated by 90 degrees
    content = encoded(smooth(40, 60), exif=exif).content
    other = b"\xff\xe2" + (2 + before).to_bytes(2, "big") + bytes(before)
    opened = OpenedImage(EncodedImage(content[:2] + other + content[2:], "picture"), 3)
    assert opened.size == ImageSize(60, 40)
    found = opened.region(Region(0, 0, 60, 40), 60, 40)
    assert found[0, :, 0].astype(int)[-1] - found[0, 0, 0] > 200  # red now grows with the row


@pytest.mark.parametrize("kept", [0, 3, 100, 400])
def test_a_cut_image_is_refused(kept: int) -> None:
    image = encoded(smooth(40, 60))
    with pytest.raises(UndecodableImageError, match="picture cannot be decoded"):
        OpenedImage(EncodedImage(image.content[:kept], "picture"), 3).region(Region(0, 0, 40, 60), 40, 60)


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("channels", [1, 3])
def test_every_recipe_gives_images_of_its_shape_and_pure_draws(name: str, channels: int) -> None:
    settings = PreprocessingSettings(name, colour="none" if channels == 1 else None)
    preprocessing = ImagePreprocessing(settings.recipe(64, channels))
    image = encoded(smooth(120, 150))
    draws = draws_of(0, preprocessing.draws)
    first, again = preprocessing.train(image, draws), preprocessing.train(image, draws)
    np.testing.assert_array_equal(first, again, strict=True)
    for pixels in (first, preprocessing.evaluate(image)):
        assert pixels.shape == preprocessing.shape == (channels, 64, 64)
    assert preprocessing.evaluate(image).dtype == np.uint8
    assert first.dtype == (np.float32 if preprocessing.recipe.colour else np.uint8)
    if name != "fit":
        assert not np.array_equal(first, preprocessing.train(image, draws_of(1, preprocessing.draws)))


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_crops_the_centre_of_a_given_side_in_evaluations(name: str) -> None:
    recipe, vgg = (PreprocessingSettings(each, evaluated_side=100).recipe(64, 3) for each in (name, "vgg"))
    image = encoded(smooth(120, 150))
    expected = ImagePreprocessing(vgg).evaluate(image)
    np.testing.assert_array_equal(ImagePreprocessing(recipe).evaluate(image), expected)


def photographs(folder: Path) -> Path:
    for split in ("train", "test"):
        for label in ("a", "b"):
            (folder / split / label).mkdir(parents=True)
            for number in range(4):
                content = encoded(np.roll(smooth(60 + number, 70), 9 * number, 1)).content
                (folder / split / label / f"{number}.jpg").write_bytes(content)
    return folder


def test_batches_of_distorted_images_depend_on_the_step_alone(tmp_path: Path) -> None:
    recipe = PreprocessingSettings("inception", colour="fast")
    settings = ImageFolder(path=str(photographs(tmp_path)), size=32, stream=True, preprocessing=recipe)
    data = settings.load()
    assert (data.normalisation.mean, data.normalisation.std) == ((0.5,) * 3, (0.5,) * 3)
    one, many = (Pipeline(data, seed=0, batch_size=6, dtype="float32", threads=threads) for threads in (1, 3))
    for step in (0, 5):
        whole = one.read("train", step, 0, 6)
        assert -1 <= whole["x"].min() < -0.5 < 0.5 < whole["x"].max() <= 1
        parts = [many.read("train", step, lo, lo + 2) for lo in (0, 2, 4)]
        np.testing.assert_array_equal(np.concatenate([part["x"] for part in parts]), whole["x"], strict=True)
        np.testing.assert_array_equal(many.read("train", step, 0, 6)["x"], whole["x"], strict=True)
    many.close()
    other = Pipeline(data, seed=1, batch_size=6, dtype="float32")
    assert not np.array_equal(other.read("train", 0, 0, 6)["x"], one.read("train", 0, 0, 6)["x"])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"name": "vgg19"}, r"preprocessing\.name='vgg19': expected one of fit, krizhevsky, vgg, resnet, "),
        ({"name": "vgg", "area": [0.1, 1.0]}, r"area=\[0\.1, 1\.0\]: the recipe vgg has no such step"),
        ({"name": "inception", "sides": [256, 512]}, r"sides=\[256, 512\]: the recipe inception has no such step"),
        ({"name": "vgg", "sides": [512, 256]}, r"sides=\[512, 256\]: expected two numbers, the smaller one first"),
        ({"name": "vgg", "sides": [128, 256]}, r"data\.size=224: expected at most 128, the shorter side"),
        ({"name": "vgg", "colour": "sepia"}, r"colour='sepia': expected full, fast, pca or none"),
        ({"name": "inception", "channels": 1}, r"colour=full: expected data\.channels=3, found 1"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    given = {"channels": 3, **settings}
    channels = given.pop("channels")
    with pytest.raises(ConfigError, match=message):
        PreprocessingSettings(**given).recipe(224, channels)
