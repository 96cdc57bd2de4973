"""Samples of ResNet50: random crops for training, centre crops for validation."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from profkit.workloads.base import Key
from profkit.workloads.training.samples import BILINEAR, BadSamples

if TYPE_CHECKING:
    from profkit.workloads.datasets.image_tree import ImageFolderIndex

MEAN = np.array([0.485, 0.456, 0.406], dtype=np.float32) * 255
STD = np.array([0.229, 0.224, 0.225], dtype=np.float32) * 255
AREA, ASPECT = (0.08, 1.0), (3 / 4, 4 / 3)
"""Bounds of a random crop: its share of the image's area, and its width by its height."""

EVALUATION_ZOOM = 256 / 224
TRIES = 10
"""Random crops that are tried before the middle is taken."""

Floats = npt.NDArray[np.float32]
Sample = tuple[Floats, int]
Box = tuple[float, float, float, float]


@dataclass(frozen=True)
class Crops:
    """A crop of each image, normalised, and its label.

    In training it is a random part of the image, flipped half of the time, else the middle.
    """

    index: ImageFolderIndex
    bad: BadSamples
    size: int
    seed: int
    training: bool = True

    def __len__(self) -> int:
        return len(self.index.samples)

    def __getitem__(self, key: Key) -> Sample:
        epoch, position = key
        path, label = self.index.samples[position]
        image = self.bad.image(path)
        rng = np.random.default_rng((self.seed, epoch, position)) if self.training else None
        box = _centre_box(*image.size, min(image.size) / EVALUATION_ZOOM)
        if rng:
            box = _random_box(rng, *image.size)
        pixels = np.asarray(image.resize((self.size, self.size), resample=BILINEAR, box=box))
        if rng and rng.random() < 0.5:
            pixels = pixels[:, ::-1]
        return normalise(pixels), label


def normalise(pixels: npt.NDArray[np.uint8]) -> Floats:
    """Return the pixels with channels first, without ImageNet's mean and deviation."""
    planes: Floats = np.ascontiguousarray(((pixels - MEAN) / STD).transpose(2, 0, 1))
    return planes


def _random_box(rng: np.random.Generator, width: int, height: int) -> Box:
    """Draw a part of the image; if none fits in ten tries, take the middle."""
    for _ in range(TRIES):
        area = width * height * rng.uniform(*AREA)
        aspect = math.exp(rng.uniform(*np.log(ASPECT)))
        across, down = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < across <= width and 0 < down <= height:
            left = int(rng.integers(0, width - across + 1))
            top = int(rng.integers(0, height - down + 1))
            return left, top, left + across, top + down
    return _centre_box(width, height, min(width, height))


def _centre_box(width: int, height: int, side: float) -> Box:
    return (width - side) / 2, (height - side) / 2, (width + side) / 2, (height + side) / 2


def made_up_batch(count: int, size: int, classes: int, seed: int) -> tuple[Any, ...]:
    """Return noise with labels, for runs without an input pipeline."""
    rng = np.random.default_rng(seed)
    images = rng.standard_normal((count, 3, size, size), dtype=np.float32)
    return images, rng.integers(0, classes, count)
