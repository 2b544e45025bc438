"""Time PyTorch's DataLoader: ``python -m benchmarks.peers.torch_input DECODER FOLDER``; see :mod:`benchmarks.input`.

DECODER is "pillow" or "simplejpeg". The transforms are those of torchvision for Pillow images, written out with the
same calls of Pillow, because torchvision has to match the build of torch.
"""

import math
import random
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import PIL
import simplejpeg
import torch
from PIL import Image, ImageEnhance
from torch.utils.data import DataLoader, Dataset

from benchmarks.protocol import Run, serve

BATCH = 32
MEANS = torch.tensor([123.68, 116.779, 103.939])[:, None, None]
_BILINEAR = Image.Resampling.BILINEAR


def vgg(image: Image.Image) -> torch.Tensor:
    """Return a random 224x224 crop of the image with a random shorter side, minus the channel means."""
    scale = random.randint(256, 512) / min(image.size)
    image = image.resize((round(image.width * scale), round(image.height * scale)), _BILINEAR)
    left, top = random.randint(0, image.width - 224), random.randint(0, image.height - 224)
    return _tensor(_mirrored(image.crop((left, top, left + 224, top + 224)))) - MEANS


def inception(image: Image.Image) -> torch.Tensor:
    """Return a random region of 299x299 with distorted colours, from -1 to 1."""
    image = _mirrored(image.resize((299, 299), _BILINEAR, _region(image.width, image.height)))
    changes = [
        lambda image: ImageEnhance.Brightness(image).enhance(random.uniform(1 - 32 / 255, 1 + 32 / 255)),
        lambda image: ImageEnhance.Contrast(image).enhance(random.uniform(0.5, 1.5)),
        lambda image: ImageEnhance.Color(image).enhance(random.uniform(0.5, 1.5)),
        _hue,
    ]
    random.shuffle(changes)
    for change in changes:
        image = change(image)
    return _tensor(image) / 127.5 - 1


def _region(width: int, height: int) -> tuple[int, int, int, int]:
    """Return a random region as torchvision's RandomResizedCrop draws it."""
    for _ in range(10):
        area = width * height * random.uniform(0.05, 1.0)
        ratio = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            left, top = random.randint(0, width - w), random.randint(0, height - h)
            return left, top, left + w, top + h
    return 0, 0, width, height


def _hue(image: Image.Image) -> Image.Image:
    hue, saturation, value = image.convert("HSV").split()
    shifted = np.asarray(hue) + np.uint8(int(random.uniform(-0.2, 0.2) * 255) % 256)
    return Image.merge("HSV", (Image.fromarray(shifted), saturation, value)).convert("RGB")


def _mirrored(image: Image.Image) -> Image.Image:
    return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if random.random() < 0.5 else image


def _tensor(image: Image.Image) -> torch.Tensor:
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous().float()


PHASES: Mapping[str, Callable[[Image.Image], Any]] = {"vgg": vgg, "inception": inception}


class Photographs(Dataset[Any]):
    """Decoded and distorted photographs from files."""

    def __init__(self, files: list[Path], phase: str, decoder: str) -> None:
        self._files, self._phase, self._decoder = files, phase, decoder

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> Any:
        if self._decoder == "pillow":
            image: Any = Image.open(self._files[index]).convert("RGB")
        else:
            image = simplejpeg.decode_jpeg(self._files[index].read_bytes())
        if self._phase == "decode":
            return image
        return PHASES[self._phase](image if self._decoder == "pillow" else Image.fromarray(image))


class Loader:
    """PyTorch's DataLoader in this process."""

    versions: Mapping[str, str] = {"torch": torch.__version__, "pillow": PIL.__version__}

    def __init__(self, decoder: str, folder: Path) -> None:
        if decoder not in ("pillow", "simplejpeg"):
            raise ValueError(f"decoder {decoder!r}: expected pillow or simplejpeg")
        self._decoder = decoder
        self._files = sorted((folder / "images" / "train").glob("*/*.jpg"))

    def load(self) -> None:
        torch.set_num_threads(1)

    def phase(self, name: str) -> Run:
        """Return a function that prepares the next batch of a phase and returns one of its numbers."""
        data = Photographs(self._files, name, self._decoder)
        collate = (lambda images: images) if name == "decode" else None
        loader = DataLoader(data, BATCH, shuffle=True, drop_last=True, collate_fn=collate)
        batches = iter(loader)

        def run() -> float:
            nonlocal batches
            try:
                batch = next(batches)
            except StopIteration:
                batches = iter(loader)
                batch = next(batches)
            return 0.0 if name == "decode" else float(batch[0, 0, 0, 0])

        return run


if __name__ == "__main__":
    serve(Loader(sys.argv[1], Path(sys.argv[2])))
