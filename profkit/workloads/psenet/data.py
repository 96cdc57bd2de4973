"""What PSENet is fed: crops of scenes with their text, kernels and ignored regions; and whole scenes for evaluation."""

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
"""How much of a word's size each of the six kernels keeps."""

SCALES = (0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3)
ASPECTS = (0.9, 0.95, 1.0, 1.05, 1.1)
MOST_TURNED = 10
BRIGHTNESS, SATURATION = 32 / 255, 0.5
TEXT_IN_SIGHT = 5 / 8
"""The share of crops that are laid so as to hold text."""


@dataclass(frozen=True)
class TextCrops:
    """A training sample is a square crop of a scene, scaled, stretched, flipped, turned and coloured at random.

    It comes as the normalised image, the text, the six kernels, and what is to be cared for, which illegible words and padding are not.
    All masks are drawn once, in the crop, from polygons that took the image's way.
    """

    index: TextIndex
    bad: BadSamples
    size: int
    seed: int

    def __len__(self) -> int:
        return len(self.index.scenes)

    def __getitem__(self, key: Key) -> Sample:
        epoch, number = key
        rng = np.random.default_rng((self.seed, epoch, number))
        scene = self.index.scenes[number]
        image = self.bad.image(scene.path)
        scaled = _draw_scale(rng, image.size, self.size)
        quads = [_scale_quad(word, image.size, scaled) for word in scene.words]
        way = _draw_way(rng, scaled, quads, self.size)
        pixels = _jitter(rng, _move_image(image, scaled, way, self.size))
        return normalise(pixels), *_draw_masks(scene, quads, scaled, way, self.size)


def _draw_scale(rng: np.random.Generator, size: tuple[int, int], short: int) -> tuple[int, int]:
    scale = rng.choice(SCALES) * short / min(size)
    stretch = np.sqrt(rng.choice(ASPECTS))
    return _aligned(size[0] * scale / stretch), _aligned(size[1] * scale * stretch)


def _aligned(length: float) -> int:
    """Up to the next multiple of 32, which the network halves five times."""
    return -(-int(length + 0.5) // 32) * 32


def _scale_quad(word: Word, size: tuple[int, int], scaled: tuple[int, int]) -> Floats:
    quad: Floats = np.array(word.corners, dtype=float) * scaled / size
    return np.trunc(quad)


def _draw_way(
    rng: np.random.Generator, scaled: tuple[int, int], quads: list[Floats], size: int
) -> Floats:
    """The 2x3 matrix from the scaled image into the crop: flipped or not, turned about the middle, moved."""
    flip = -1.0 if rng.random() < 0.5 else 1.0
    angle = np.deg2rad(rng.uniform(-MOST_TURNED, MOST_TURNED))
    turn = np.array([(np.cos(angle), np.sin(angle)), (-np.sin(angle), np.cos(angle))]) * (flip, 1.0)
    middle = np.array(scaled) / 2
    way = np.column_stack([turn, middle - turn @ middle])
    way[:, 2] -= _draw_corner(rng, scaled, [move(quad, way) for quad in quads], size)
    return way


def _draw_corner(
    rng: np.random.Generator, scaled: tuple[int, int], quads: list[Floats], size: int
) -> npt.NDArray[np.int64]:
    """The crop's upper left corner in the image: anywhere, or such that the crop can see text."""
    room = np.maximum(np.array(scaled) - size, 0)
    lowest, highest = np.zeros(2, dtype=int), room
    if rng.random() < TEXT_IN_SIGHT and quads:
        points = np.clip(np.concatenate(quads), 0, np.array(scaled) - 1).astype(int)
        highest = np.minimum(np.maximum(points.max(axis=0) - size, 0), room)
        lowest = np.minimum(np.maximum(points.min(axis=0) - size, 0), highest)
    return rng.integers(lowest, highest + 1)


def move(points: Floats, way: Floats) -> Floats:
    moved: Floats = points @ way[:, :2].T + way[:, 2]
    return moved


def _move_image(image: Image.Image, scaled: tuple[int, int], way: Floats, size: int) -> Image.Image:
    """The crop, black where the image does not reach."""
    from PIL import Image

    back = np.linalg.inv(np.vstack([way, (0, 0, 1)]))[:2]
    resized = image.resize(scaled, Image.Resampling.BILINEAR)
    return resized.transform(
        (size, size), Image.Transform.AFFINE, back.ravel().tolist(), Image.Resampling.BILINEAR
    )


def _jitter(rng: np.random.Generator, image: Image.Image) -> Image.Image:
    from PIL import ImageEnhance

    image = ImageEnhance.Brightness(image).enhance(rng.uniform(1 - BRIGHTNESS, 1 + BRIGHTNESS))
    return ImageEnhance.Color(image).enhance(rng.uniform(1 - SATURATION, 1 + SATURATION))


def normalise(image: Image.Image) -> Pixels:
    """Channels first, with the mean and the deviation of ImageNet taken out."""
    pixels: Pixels = ((np.asarray(image, dtype=np.float32) - MEAN) / DEVIATION).transpose(2, 0, 1)
    return np.ascontiguousarray(pixels)


def _draw_masks(
    scene: Scene, quads: list[Floats], scaled: tuple[int, int], way: Floats, size: int
) -> tuple[Bytes, Bytes, Bytes]:
    width, height = scaled
    frame = np.array(
        [(0, 0), (width - 1, 0), (width - 1, height - 1), (0, height - 1)], dtype=float
    )
    text = draw_polygons([move(quad, way) for quad in quads], size)
    kernels = np.stack(
        [draw_polygons([move(shrink(quad, rate), way) for quad in quads], size) for rate in RATES]
    )
    unread = draw_polygons(
        [
            move(quad, way)
            for quad, word in zip(quads, scene.words, strict=True)
            if not word.legible
        ],
        size,
    )
    care = draw_polygons([move(frame, way)], size) & (1 - unread)
    return text, kernels, care


def draw_polygons(polygons: list[Floats], size: int) -> Bytes:
    """A square mask: 1 inside any of the polygons."""
    from PIL import Image, ImageDraw

    mask = Image.new("L", (size, size))
    draw = ImageDraw.Draw(mask)
    for polygon in polygons:
        draw.polygon([(x, y) for x, y in np.round(polygon).tolist()], fill=1)
    return np.asarray(mask)


@dataclass(frozen=True)
class WholeScenes:
    """An evaluation sample is a batch of one image, its short side brought to `short`; with what leads back to its own pixels, and its words."""

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
        return (
            normalise(image.resize(scaled, Image.Resampling.BILINEAR))[None],
            np.array(image.size) / scaled,
            scene.words,
        )


def made_up_batch(count: int, size: int, seed: int) -> Sample:
    """Noise with one word in each image, for runs without an input pipeline."""
    rng = np.random.default_rng((seed, count, size))
    quads = [
        rng.integers(0, size // 4 + 1, 2)
        + np.array([(0, 0), (1, 0), (1, 0.5), (0, 0.5)]) * (size // 2)
        for _ in range(count)
    ]
    images = rng.standard_normal((count, 3, size, size), dtype=np.float32)
    text = np.stack([draw_polygons([quad], size) for quad in quads])
    kernels = np.stack(
        [np.stack([draw_polygons([shrink(quad, rate)], size) for rate in RATES]) for quad in quads]
    )
    return images, text, kernels, np.ones_like(text)
