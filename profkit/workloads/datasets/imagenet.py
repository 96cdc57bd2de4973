"""A generated set in ImageNet's folder layout: real JPEG files whose class can be learnt."""

from __future__ import annotations

import colorsys
import dataclasses
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import numpy.typing as npt

from profkit.errors import UsageError
from profkit.progress import Progress
from profkit.workloads.datasets.generated import (
    GeneratedTree,
    Picture,
    encode_image,
    list_pictures,
    star_outline,
    write_all,
)
from profkit.workloads.datasets.image_tree import SPLITS

if TYPE_CHECKING:
    from PIL import Image

Bytes = npt.NDArray[np.uint8]
Shorts = npt.NDArray[np.int16]

SHAPES = ((32, 1.0), (3, 0.5), (5, 0.4), (4, 0.707), (4, 0.3), (2, 0.45), (8, 0.7))
"""Corners and waist of each outline; every second corner is at this share of the radius."""

ANGLES, HUES, PERIODS = 8, 11, (0.035, 0.055, 0.09)
MAX_CLASSES = len(SHAPES) * ANGLES * HUES * len(PERIODS)
"""The four counts have no common factor, so that no two classes share all four traits."""

MIN_SIDE = 16
"""The shortest long side of an image that can be rendered."""

ASPECTS = ((4, 3), (4, 3), (4, 3), (4, 3), (3, 2), (3, 2), (3, 4), (2, 3), (1, 1), (6, 5))
SINE: Bytes = np.array(
    [round(127.5 + 127.5 * math.sin(math.tau * step / 256)) for step in range(256)], dtype=np.uint8
)
"""One wave in 256 steps, as bytes."""


@dataclass(frozen=True)
class Look:
    """The traits that all images of one class share."""

    corners: int
    waist: float
    angle: float
    hue: float
    period: float


@dataclass(frozen=True)
class GeneratedSet(GeneratedTree):
    """The contents of a generated set. A larger set has all images of a smaller one."""

    layout: ClassVar[str] = "imagenet"
    noun: ClassVar[str] = "JPEG file"
    version: ClassVar[int] = 2

    classes: int = 10
    train_per_class: int = 64
    val_per_class: int = 8
    long_side: int = 500
    quality: int = 90
    seed: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.classes <= MAX_CLASSES:
            raise UsageError(f"a generated set has 1 to {MAX_CLASSES} classes, not {self.classes}")
        if self.train_per_class < 1 or self.val_per_class < 1:
            raise UsageError(
                "a generated set needs at least one training and one validation image per class"
            )
        if self.long_side < MIN_SIDE:
            raise UsageError(
                f"generated images are at least {MIN_SIDE} pixels long, not {self.long_side}"
            )

    def pictures(self) -> list[Picture]:
        """Return every image of the set, class by class."""
        counts = {"train": self.train_per_class, "val": self.val_per_class}
        return list_pictures(counts, self.classes)

    def write(self, folder: Path, progress: Progress) -> None:
        """Write the images, and the lists of paths and class indices that PaddleClas reads."""
        ids = class_ids(self.classes, self.seed)
        files = {}
        for picture in self.pictures():
            wnid = ids[picture.label]
            name = f"{wnid}_{picture.number + 1}"
            if picture.split == "val":
                number = picture.number * self.classes + picture.label + 1
                name = f"ILSVRC2012_val_{number:08d}"
            files[picture] = f"{picture.split}/{wnid}/{name}.JPEG"
        for split in SPLITS:
            for wnid in ids:
                (folder / split / wnid).mkdir(parents=True)
            lines = ""
            for picture, file in files.items():
                if picture.split == split:
                    lines += f"{file} {picture.label}\n"
            (folder / f"{split}_list.txt").write_text(lines, encoding="utf-8")

        def write(picture: Picture) -> None:
            (folder / files[picture]).write_bytes(encode(self, picture))

        write_all(list(files), write, progress)


def class_ids(count: int, seed: int) -> tuple[str, ...]:
    """Return identifiers like WordNet's, in the order of the class index.

    With more classes the first ones keep their names.
    """
    gaps = np.random.default_rng((seed, 0)).integers(1_000, 26_000, MAX_CLASSES)
    return tuple(f"n{number:08d}" for number in (1_400_000 + gaps.cumsum()[:count]).tolist())


def encode(spec: GeneratedSet, picture: Picture) -> bytes:
    """Return the JPEG file of one image: the same bytes alone or in its set, with one Pillow."""
    return encode_image(render(spec, picture), "JPEG", quality=spec.quality)


def render(spec: GeneratedSet, picture: Picture) -> Image.Image:
    """Draw a scene of its class: objects of one outline before a grating, in one palette.

    Place, number and size of the objects, light, warp, hue and grain are drawn for each image.
    Almost all arithmetic is in whole numbers, so that processors do not differ in the last bit.
    """
    from PIL import Image

    rng = np.random.default_rng(
        (spec.seed, 1, SPLITS.index(picture.split), picture.label, picture.number)
    )
    look = class_look(picture.label)
    turn, shift, stretch = rng.uniform((-0.1, -0.03, 0.85), (0.1, 0.03, 1.15)).tolist()
    look = dataclasses.replace(
        look, angle=look.angle + turn, hue=look.hue + shift, period=look.period * stretch
    )
    across, down = ASPECTS[rng.integers(len(ASPECTS))]
    longer = spec.long_side - int(rng.integers(spec.long_side // 20 + 1)) * int(rng.integers(2))
    width, height = (longer * side // max(across, down) for side in (across, down))
    clouds = []
    for coarse in (2, 3, 5):  # soft shapes at three scales, the largest 1 / `coarse` of the image
        layers = []
        for octave, weight in enumerate((5, 2, 1)):
            cells = coarse * 3**octave
            sides = (cells * (height // 4) // (width // 4) + 2, cells + 2)
            shapes = rng.integers(0, 256, sides, dtype=np.uint8)
            layers.append((_stretch(shapes, width // 4, height // 4), weight))
        clouds.append(_stretch(_blend(*layers), width, height))
    # Waves in the class's direction, bent by a cloud; 256 steps of phase are one wave.
    steps = 65_536 / (look.period * spec.long_side)
    right, below = round(steps * math.cos(look.angle)), round(steps * math.sin(look.angle))
    rows = np.arange(height, dtype=np.int32)[:, None] * below
    plane = rows + np.arange(width, dtype=np.int32) * right
    grating: Bytes = SINE[((plane >> 8) + clouds[1]) & 255]
    ground = _blend((clouds[0], 5), (grating, 3))
    things = _blend((clouds[1], 5), (clouds[2], 3))
    # Noise of a pixel or two, strong in some places and weak in others, as texture is.
    noise = np.frombuffer(rng.bytes(2 * ground.size), dtype=np.int8)
    noises = noise.reshape(2, *ground.shape).astype(np.int16)
    grain = (noises[0] * (clouds[2] >> 2) + noises[1] * (clouds[0] >> 3)) // 128
    back = _colour(rng, ground + grain, look.hue)
    front = _colour(rng, things + grain, look.hue + 0.4)
    return Image.composite(front, back, _draw_objects(rng, look, width, height))


def class_look(label: int) -> Look:
    """Return the traits of a class."""
    corners, waist = SHAPES[label % len(SHAPES)]
    angle, hue = math.pi * (label % ANGLES) / ANGLES, (label % HUES) / HUES
    return Look(corners, waist, angle, hue, PERIODS[label % len(PERIODS)])


def _stretch(tone: Bytes, width: int, height: int) -> Bytes:
    from PIL import Image

    return np.asarray(Image.fromarray(tone).resize((width, height), Image.Resampling.BICUBIC))


def _blend(*layers: tuple[Bytes, int]) -> Bytes:
    """Return the weighted sum about the middle grey.

    Averaging takes contrast away, so the deviation is multiplied by 3/2.
    """
    total, mixed = 0, np.zeros(layers[0][0].shape, dtype=np.int16)
    for layer, weight in layers:
        total += weight
        mixed += (layer.astype(np.int16) - 128) * weight
    blended: Bytes = np.clip(mixed * 3 // (2 * total) + 128, 0, 255).astype(np.uint8)
    return blended


def _colour(rng: np.random.Generator, tone: Shorts, hue: float) -> Image.Image:
    """Colour a grey image with 256 shades of one hue, from dark through middle to light."""
    from PIL import Image

    strength, light = rng.uniform((0.35, 0.75), (0.85, 1.0)).tolist()
    stops = (
        (hue - 0.04, strength, 0.12),
        (hue, strength, 0.55 * light),
        (hue + 0.05, strength / 3, 0.98 * light),
    )
    colours = np.array([colorsys.hsv_to_rgb(*stop) for stop in stops]) * 255
    channels = []
    for channel in colours.T:
        channels.append(np.interp(np.arange(256), (0, 128, 255), channel))
    image = Image.fromarray(np.clip(tone, 0, 255).astype(np.uint8))
    image.putpalette(np.stack(channels, axis=1).astype(np.uint8).tobytes())
    return image.convert("RGB")


def _draw_objects(rng: np.random.Generator, look: Look, width: int, height: int) -> Image.Image:
    """Draw the mask of one to three objects."""
    from PIL import Image, ImageDraw, ImageFilter

    mask = Image.new("L", (width, height))
    for _ in range(rng.integers(1, 4)):
        across, down, size, turn = rng.uniform(
            (0.15, 0.15, 0.15, -0.3), (0.85, 0.85, 0.33, 0.3)
        ).tolist()
        middle = (across * width, down * height)
        outline = star_outline(
            middle, size * min(width, height), look.corners, look.waist, turn - math.pi / 2
        )
        ImageDraw.Draw(mask).polygon(outline, fill=255)
    return mask.filter(ImageFilter.BoxBlur(1))
