"""ImageNet's training samples: random crops and flips, the same for both frameworks."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from profkit.workloads.base import Key
from profkit.workloads.training.samples import BadSamples

if TYPE_CHECKING:
    from PIL import Image

    from profkit.workloads.datasets.image_tree import ImageFolderIndex

MEAN = np.array([0.485, 0.456, 0.406], dtype=np.float32) * 255
STD = np.array([0.229, 0.224, 0.225], dtype=np.float32) * 255
AREA, ASPECT = (0.08, 1.0), (3 / 4, 4 / 3)
EVALUATION_ZOOM = 256 / 224
TRIES = 10

Floats = npt.NDArray[np.float32]
Sample = tuple[Floats, int]


class TrainingCrops:
    """A random part of each image, of the crop's size, flipped half of the time."""

    def __init__(self, index: ImageFolderIndex, bad: BadSamples, size: int, seed: int) -> None:
        self.index = index
        self.bad = bad
        self.size = size
        self.seed = seed

    def __len__(self) -> int:
        return len(self.index.samples)

    def __getitem__(self, key: Key) -> Sample:
        epoch, position = key
        path, label = self.index.samples[position]
        image = self.bad.image(path)
        rng = np.random.default_rng((self.seed, epoch, position))
        pixels = np.asarray(
            image.resize((self.size, self.size), resample=2, box=_random_box(rng, *image.size))
        )
        return normalise(pixels[:, ::-1] if rng.random() < 0.5 else pixels), label


class CentreCrops:
    """The middle of each image, as validation takes it."""

    def __init__(self, index: ImageFolderIndex, bad: BadSamples, size: int) -> None:
        self.index = index
        self.bad = bad
        self.size = size

    def __len__(self) -> int:
        return len(self.index.samples)

    def __getitem__(self, position: int) -> Sample:
        path, label = self.index.samples[position]
        image = self.bad.image(path)
        return normalise(
            np.asarray(image.resize((self.size, self.size), resample=2, box=_centre_box(image)))
        ), label


def normalise(pixels: npt.NDArray[np.uint8]) -> Floats:
    """Rows of RGB bytes as planes around zero."""
    planes: Floats = np.ascontiguousarray(((pixels - MEAN) / STD).transpose(2, 0, 1))
    return planes


def _random_box(
    rng: np.random.Generator, width: int, height: int
) -> tuple[float, float, float, float]:
    """A part of 8 to 100 % of the area and of 3:4 to 4:3; where none fits in ten tries, the middle."""
    for _ in range(TRIES):
        area = width * height * rng.uniform(*AREA)
        aspect = math.exp(rng.uniform(*np.log(ASPECT)))
        across, down = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < across <= width and 0 < down <= height:
            left, top = (
                int(rng.integers(0, width - across + 1)),
                int(rng.integers(0, height - down + 1)),
            )
            return left, top, left + across, top + down
    side = min(width, height)
    return (width - side) / 2, (height - side) / 2, (width + side) / 2, (height + side) / 2


def _centre_box(image: Image.Image) -> tuple[float, float, float, float]:
    width, height = image.size
    side = min(width, height) / EVALUATION_ZOOM
    return (width - side) / 2, (height - side) / 2, (width + side) / 2, (height + side) / 2


def made_up_batch(count: int, size: int, classes: int, seed: int) -> tuple[Any, ...]:
    rng = np.random.default_rng(seed)
    return rng.standard_normal((count, 3, size, size), dtype=np.float32), rng.integers(
        0, classes, count
    )
