"""Samples of PSENet: crops of scenes with masks to train on, whole scenes to evaluate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from profkit.workloads.base import Key
from profkit.workloads.datasets.icdar import Scene, TextIndex, Word
from profkit.workloads.psenet.text_regions import shrink
from profkit.workloads.training.samples import BadSamples

if TYPE_CHECKING:
    from PIL import Image

Floats = npt.NDArray[np.float64]
Pixels = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]
Sample = tuple[Pixels, Bytes, Bytes, Bytes]

MEAN = np.array((0.485, 0.456, 0.406), dtype=np.float32) * 255
DEVIATION = np.array((0.229, 0.224, 0.225), dtype=np.float32) * 255

RATES = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4)
"""The share of a word's size that each of the six kernels keeps."""

SCALES = (0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3)
ASPECTS = (0.9, 0.95, 1.0, 1.05, 1.1)
MAX_TURN_DEG = 10
BRIGHTNESS, SATURATION = 32 / 255, 0.5
TEXT_SHARE = 5 / 8
"""The share of crops that are placed so that they contain text."""


@dataclass(frozen=True)
class TextCrops:
    """Square crops of scenes, scaled, stretched, flipped, turned and coloured at random.

    A sample is the normalised image, the mask of the text, those of the six kernels, and the mask
    of the pixels that count: illegible words and padding do not. All masks are drawn once, in the
    crop, from polygons that were transformed as the image was.
    """

    index: TextIndex
    bad: BadSamples
    size: int
    seed: int

    def __len__(self) -> int:
        return len(self.index.scenes)

    def __getitem__(self, key: Key) -> Sample:
        from PIL import Image, ImageEnhance

        epoch, number = key
        rng = np.random.default_rng((self.seed, epoch, number))
        scene = self.index.scenes[number]
        image = self.bad.image(scene.path)
        scale = rng.choice(SCALES) * self.size / min(image.size)
        stretch = np.sqrt(rng.choice(ASPECTS))
        scaled = (_aligned(image.width * scale / stretch), _aligned(image.height * scale * stretch))
        quads: list[Floats] = []
        for word in scene.words:
            quads.append(np.trunc(np.array(word.corners, dtype=float) * scaled / image.size))
        way = _draw_way(rng, scaled, quads, self.size)
        # Beyond the edge of the image the crop is black.
        back = np.linalg.inv(np.vstack([way, (0, 0, 1)]))[:2].ravel().tolist()
        resized = image.resize(scaled, Image.Resampling.BILINEAR)
        square = (self.size, self.size)
        affine, bilinear = Image.Transform.AFFINE, Image.Resampling.BILINEAR
        crop = resized.transform(square, affine, back, bilinear)
        light, colour = ImageEnhance.Brightness, ImageEnhance.Color
        crop = light(crop).enhance(rng.uniform(1 - BRIGHTNESS, 1 + BRIGHTNESS))
        crop = colour(crop).enhance(rng.uniform(1 - SATURATION, 1 + SATURATION))
        return normalise(crop), *_draw_masks(scene, quads, scaled, way, self.size)


def _aligned(length: float) -> int:
    """Round up to a multiple of 32, as the network halves the size five times."""
    return -(-int(length + 0.5) // 32) * 32


def _draw_way(
    rng: np.random.Generator, scaled: tuple[int, int], quads: list[Floats], size: int
) -> Floats:
    """Draw the 2x3 matrix from the scaled image into the crop: a flip, a turn and a shift.

    The crop is anywhere, or so that it can contain text.
    """
    flip = -1.0 if rng.random() < 0.5 else 1.0
    angle = np.deg2rad(rng.uniform(-MAX_TURN_DEG, MAX_TURN_DEG))
    turn = np.array([(np.cos(angle), np.sin(angle)), (-np.sin(angle), np.cos(angle))]) * (flip, 1.0)
    middle = np.array(scaled) / 2
    way = np.column_stack([turn, middle - turn @ middle])
    room = np.maximum(np.array(scaled) - size, 0)
    lowest, highest = np.zeros(2, dtype=int), room
    if rng.random() < TEXT_SHARE and quads:
        turned = np.concatenate([move(quad, way) for quad in quads])
        points = np.clip(turned, 0, np.array(scaled) - 1).astype(int)
        highest = np.minimum(np.maximum(points.max(axis=0) - size, 0), room)
        lowest = np.minimum(np.maximum(points.min(axis=0) - size, 0), highest)
    way[:, 2] -= rng.integers(lowest, highest + 1)
    return way


def move(points: Floats, way: Floats) -> Floats:
    """Transform points by a 2x3 matrix."""
    moved: Floats = points @ way[:, :2].T + way[:, 2]
    return moved


def normalise(image: Image.Image) -> Pixels:
    """Return the pixels with channels first, without ImageNet's mean and deviation."""
    pixels: Pixels = ((np.asarray(image, dtype=np.float32) - MEAN) / DEVIATION).transpose(2, 0, 1)
    return np.ascontiguousarray(pixels)


def _draw_masks(
    scene: Scene, quads: list[Floats], scaled: tuple[int, int], way: Floats, size: int
) -> tuple[Bytes, Bytes, Bytes]:
    """Return the masks of text, kernels and pixels that count."""
    right, bottom = scaled[0] - 1, scaled[1] - 1
    frame = np.array([(0, 0), (right, 0), (right, bottom), (0, bottom)], dtype=float)
    moved = [move(quad, way) for quad in quads]
    kernels = []
    for rate in RATES:
        shrunk = [move(shrink(quad, rate), way) for quad in quads]
        kernels.append(draw_polygons(shrunk, size))
    pairs = zip(moved, scene.words, strict=True)
    unread = [quad for quad, word in pairs if not word.legible]
    care = draw_polygons([move(frame, way)], size) & (1 - draw_polygons(unread, size))
    return draw_polygons(moved, size), np.stack(kernels), care


def draw_polygons(polygons: list[Floats], size: int) -> Bytes:
    """Return a square mask that is 1 inside any of the polygons."""
    from PIL import Image, ImageDraw

    mask = Image.new("L", (size, size))
    draw = ImageDraw.Draw(mask)
    for polygon in polygons:
        draw.polygon(np.round(polygon).ravel().tolist(), fill=1)
    return np.asarray(mask)


@dataclass(frozen=True)
class WholeScenes:
    """Whole images for evaluation, with their short side scaled to `short`.

    A sample is a batch of one image, the factors back to the image's own pixels, and its words.
    """

    index: TextIndex
    bad: BadSamples
    short: int

    def __len__(self) -> int:
        return len(self.index.scenes)

    def __getitem__(self, number: int) -> tuple[Pixels, Floats, tuple[Word, ...]]:
        from PIL import Image

        scene = self.index.scenes[number]
        image = self.bad.image(scene.path)
        scale = self.short / min(image.size)
        scaled = (_aligned(image.width * scale), _aligned(image.height * scale))
        pixels = normalise(image.resize(scaled, Image.Resampling.BILINEAR))[None]
        return pixels, np.array(image.size) / scaled, scene.words


def made_up_batch(count: int, size: int, seed: int) -> Sample:
    """Return noise with one word in each image, for runs without an input pipeline."""
    rng = np.random.default_rng((seed, count, size))
    word = np.array([(0, 0), (1, 0), (1, 0.5), (0, 0.5)]) * (size // 2)
    texts, kernels = [], []
    for _ in range(count):
        quad = rng.integers(0, size // 4 + 1, 2) + word
        texts.append(draw_polygons([quad], size))
        kernels.append(np.stack([draw_polygons([shrink(quad, rate)], size) for rate in RATES]))
    images = rng.standard_normal((count, 3, size, size), dtype=np.float32)
    text = np.stack(texts)
    return images, text, np.stack(kernels), np.ones_like(text)
