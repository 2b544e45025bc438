"""Preprocessing of images by the recipes of papers: random and central regions, mirrors and colours."""

import io
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from runner.bounds import Bounds
from runner.data.colour import DISTORTIONS
from runner.data.crops import (
    DRAWS_PER_ATTEMPT,
    ImageSize,
    Region,
    central_fraction,
    central_square,
    random_area,
    random_square,
    ten_views,
)
from runner.data.dataset import EncodedImage, Normalisation, Preprocessing
from runner.errors import ConfigError, require_one_of

_SCALE = 255.0

VIEWS = 10
"""The number of views of the 10-view test."""


@dataclass(frozen=True)
class Recipe:
    """A recipe of preprocessing. size: side, in pixels, of the square images. channels: 3 for RGB or 1 for grey.

    Training crops a random square or region. sides: bounds of the random length to which the shorter side is resized
    before a square is cropped; None for no square. of_square: whether the square lies in the central square of the
    image. area, aspect: bounds of area and width / height of a region; area=None for no region. covered: smallest
    fraction of a bounding box in the region. attempts: number of draws of a region before the whole image (if
    ``covered`` is set) or the central square is used. flip: whether to mirror with probability 1/2. colour: name of a
    distortion; "" for none. Without ``sides`` and ``area``, images are cropped to the largest centred square.

    Evaluations crop the centre. evaluated_side: length to which the shorter side is resized before a square is cropped.
    evaluated_fraction: fraction of each side that is used if ``evaluated_side`` is None. view: number of the view of
    ``ten_views`` that is used instead of the centre. Keys that are not used are None. mean, std: the normalisation of
    RGB pixels of 0 to 1.
    """

    size: int = 224
    channels: int = 3
    sides: tuple[int, int] | None = None
    of_square: bool = False
    area: tuple[float, float] | None = None
    aspect: tuple[float, float] = (3 / 4, 4 / 3)
    covered: float = 0.0
    attempts: int = 10
    flip: bool = False
    colour: str = ""
    evaluated_side: int | None = None
    evaluated_fraction: float | None = None
    view: int | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None

    @property
    def normalisation(self) -> Normalisation | None:
        """The normalisation of the recipe; None if the recipe has none or images are grey."""
        if self.mean is None or self.std is None or self.channels != len(self.mean):
            return None
        return Normalisation(_SCALE, self.mean, self.std)


_VGG_MEAN = tuple(mean / _SCALE for mean in (123.68, 116.779, 103.939))
_ONE = (1 / _SCALE,) * 3
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

RECIPES: Mapping[str, Recipe] = {
    "fit": Recipe(),
    # Krizhevsky et al. 2012, section 4.1.
    "krizhevsky": Recipe(
        sides=(256, 256), of_square=True, flip=True, colour="pca", evaluated_side=256, mean=_VGG_MEAN, std=_ONE
    ),
    # Simonyan and Zisserman 2015, section 3.1; channel means as in TensorFlow's models.
    "vgg": Recipe(sides=(256, 512), flip=True, evaluated_side=256, mean=_VGG_MEAN, std=_ONE),
    # He et al. 2016, appendix of the ImageNet experiments.
    "resnet": Recipe(
        sides=(256, 480), flip=True, colour="pca", evaluated_side=256, mean=IMAGENET_MEAN, std=IMAGENET_STD
    ),
    # Szegedy et al. 2015, section 6: scale and aspect augmentation.
    "googlenet": Recipe(area=(0.08, 1.0), flip=True, evaluated_side=256, mean=IMAGENET_MEAN, std=IMAGENET_STD),
    # Preprocessing of Inception in TensorFlow's models and in the guide to Inception v3 on Cloud TPU.
    "inception": Recipe(
        area=(0.05, 1.0),
        covered=0.1,
        attempts=100,
        flip=True,
        colour="full",
        evaluated_fraction=0.875,
        mean=(0.5, 0.5, 0.5),
        std=(0.5, 0.5, 0.5),
    ),
}
"""Recipes by their names in the configuration, for images of 224 x 224 pixels."""


@dataclass
class PreprocessingSettings:
    """Settings of the conversion of encoded images to arrays of one size.

    name: "fit" (the largest centred square, resized), "krizhevsky", "vgg", "resnet", "googlenet" or "inception". The
    other keys replace a part of the recipe; null keeps it. sides: shortest and longest random length of the shorter
    side. area: smallest and largest random fraction of the area. aspect: smallest and largest width / height. flip:
    whether to mirror images at random. colour: "full", "fast", "pca" or "none". evaluated_side: length of the shorter
    side in evaluations, in pixels: at least the size of the images.
    """

    name: str = "fit"
    sides: list[Annotated[int, Bounds(1, 65_536)]] | None = None
    area: list[Annotated[float, Bounds(0, 1, above=True)]] | None = None
    aspect: list[Annotated[float, Bounds(0, 100, above=True)]] | None = None
    flip: bool | None = None
    colour: str | None = None
    evaluated_side: Annotated[int, Bounds(1, 65_536)] | None = None

    def recipe(self, size: int, channels: int) -> Recipe:
        """Return the recipe for square images of ``size`` pixels. Raises ConfigError for invalid settings."""
        require_one_of("data.preprocessing.name", self.name, RECIPES)
        recipe = replace(RECIPES[self.name], size=size, channels=channels)
        recipe = replace(recipe, **{key: value for key, value in self._changes(recipe).items() if value is not None})
        if recipe.colour and channels != 3:
            raise ConfigError(f"data.preprocessing.colour={recipe.colour}: expected data.channels=3, found {channels}")
        smallest = min(filter(None, (*(recipe.sides or ()), recipe.evaluated_side)), default=size)
        if smallest < size:
            expected = f"at most {smallest}, the shorter side of the images after data.preprocessing {self.name}"
            raise ConfigError(f"data.size={size}: expected {expected}; set data.preprocessing.sides and evaluated_side")
        return recipe

    def _changes(self, recipe: Recipe) -> dict[str, Any]:
        changes: dict[str, Any] = {"flip": self.flip, "evaluated_side": self.evaluated_side}
        for key, changed in (("sides", recipe.sides), ("area", recipe.area), ("aspect", recipe.area)):
            given = getattr(self, key)
            if given is None:
                continue
            if changed is None:
                raise ConfigError(f"data.preprocessing.{key}={given}: the recipe {self.name} has no such step")
            if len(given) != 2 or given[0] > given[1]:
                raise ConfigError(f"data.preprocessing.{key}={given}: expected two numbers, the smaller one first")
            changes[key] = tuple(given)
        if self.colour not in (None, "none", *DISTORTIONS):
            raise ConfigError(f"data.preprocessing.colour={self.colour!r}: expected {', '.join(DISTORTIONS)} or none")
        return changes | {"colour": "" if self.colour == "none" else self.colour}


class ImagePreprocessing(Preprocessing):
    """The preprocessing of a recipe."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.recipe.channels, self.recipe.size, self.recipe.size

    @property
    def draws(self) -> int:
        """The number of draws for the mirror, for the colours, and for a square or all attempts of a region."""
        recipe = self.recipe
        place = 3 if recipe.sides else recipe.attempts * DRAWS_PER_ATTEMPT if recipe.area else 0
        return 1 + (DISTORTIONS[recipe.colour].draws if recipe.colour else 0) + place

    def train(self, image: EncodedImage, draws: NDArray[np.float64]) -> NDArray[Any]:
        """Return a randomly distorted image (C, H, W): float32 if colours are distorted, else uint8."""
        recipe = self.recipe
        colours = DISTORTIONS[recipe.colour].draws if recipe.colour else 0
        mirrored = recipe.flip and bool(draws[0] < 0.5)
        if recipe.sides or recipe.area:
            opened = self._opened(image)
            region = self._random_region(opened.size, draws[1 + colours :], image.boxes)
            pixels: NDArray[Any] = opened.region(region, recipe.size, recipe.size, mirrored=mirrored)
        else:
            pixels = self._fitted(image)
            pixels = pixels[:, :, ::-1] if mirrored else pixels
        if recipe.colour:
            pixels = DISTORTIONS[recipe.colour].apply(pixels, draws[1 : 1 + colours])
            pixels *= np.float32(_SCALE)
        return pixels

    def evaluate(self, image: EncodedImage) -> NDArray[Any]:
        """Return the centre of an image or the ``view`` of the recipe, (C, H, W) uint8."""
        recipe = self.recipe
        if recipe.evaluated_fraction is None and recipe.evaluated_side is None:
            return self._fitted(image)
        opened, side, mirrored = self._opened(image), recipe.evaluated_side or recipe.size, False
        if recipe.view is not None:
            region, mirrored = ten_views(opened.size, side, recipe.size)[recipe.view]
        elif recipe.evaluated_side is None and recipe.evaluated_fraction is not None:
            region = central_fraction(opened.size, recipe.evaluated_fraction)
        else:
            region = central_square(opened.size, side, recipe.size)
        pixels: NDArray[Any] = opened.region(region, recipe.size, recipe.size, mirrored=mirrored)
        return pixels

    def ten_views(self) -> list["ImagePreprocessing"]:
        """Return a preprocessing for each view of the 10-view test.

        Raises ConfigError if the recipe has no ``evaluated_side``.
        """
        if self.recipe.evaluated_side is None:
            views = "the views are corners and the centre of a square of this side"
            raise ConfigError(f"10 views: expected data.preprocessing.evaluated_side: {views}")
        return [ImagePreprocessing(replace(self.recipe, view=view)) for view in range(VIEWS)]

    def _random_region(self, size: ImageSize, draws: NDArray[np.float64], boxes: NDArray[np.float32] | None) -> Region:
        recipe = self.recipe
        if recipe.sides:
            return random_square(size, recipe.sides, recipe.size, draws, of_square=recipe.of_square)
        assert recipe.area is not None, "a recipe with a random region has sides or an area"
        found = random_area(size, recipe.area, recipe.aspect, draws, boxes, recipe.covered)
        if found is not None:
            return found
        return central_fraction(size, 1.0) if recipe.covered else central_square(size, recipe.size, recipe.size)

    def _fitted(self, image: EncodedImage) -> NDArray[np.uint8]:
        # Imported here, because most runs decode no images and need no Pillow.
        from runner.data.pictures import fitted_image

        return fitted_image(io.BytesIO(image.content), image.where, self.shape, inks=True)

    def _opened(self, image: EncodedImage) -> Any:
        from runner.data.decoding import OpenedImage

        return OpenedImage(image, self.recipe.channels)
