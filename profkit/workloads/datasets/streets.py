"""A generated set in Cityscapes' tree: street scenes with all 19 classes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import numpy.typing as npt

from profkit.errors import UsageError
from profkit.progress import Progress
from profkit.workloads.datasets.cityscapes import IGNORED, IMAGE_END, IMAGES, LABEL_END, LABELS
from profkit.workloads.datasets.generated import (
    GeneratedTree,
    Picture,
    encode_image,
    list_pictures,
    write_all,
)

if TYPE_CHECKING:
    from PIL import Image, ImageDraw

Bytes = npt.NDArray[np.uint8]

(
    ROAD,
    SIDEWALK,
    BUILDING,
    WALL,
    FENCE,
    POLE,
    LIGHT,
    SIGN,
    VEGETATION,
    TERRAIN,
    SKY,
    PERSON,
    RIDER,
    CAR,
    TRUCK,
    BUS,
    TRAIN,
    MOTORCYCLE,
    BICYCLE,
) = range(19)

COLOURS = (
    (128, 64, 128),
    (244, 35, 232),
    (70, 70, 70),
    (102, 102, 156),
    (190, 153, 153),
    (153, 153, 153),
    (250, 170, 30),
    (220, 220, 0),
    (107, 142, 35),
    (152, 251, 152),
    (70, 130, 180),
    (220, 20, 60),
    (255, 0, 0),
    (0, 0, 142),
    (0, 0, 70),
    (0, 60, 100),
    (0, 80, 100),
    (0, 0, 230),
    (119, 11, 32),
)
"""The colours in which the data set itself shows its classes."""

FACADES = (BUILDING, BUILDING, BUILDING, VEGETATION, VEGETATION, WALL, FENCE)
VEHICLES = {
    CAR: (0.16, 0.12),
    TRUCK: (0.2, 0.22),
    BUS: (0.26, 0.24),
    TRAIN: (0.4, 0.25),
    MOTORCYCLE: (0.07, 0.1),
    BICYCLE: (0.07, 0.1),
}
"""Length and height of each vehicle, as shares of a near frame's width and height."""

VEHICLE_SHARES = (0.5, 0.1, 0.1, 0.1, 0.1, 0.1)
CITIES = {"train": ("eastport", "northtown", "southtown"), "val": ("westburg",)}
MIN_WIDTH = 64


@dataclass(frozen=True)
class GeneratedStreets(GeneratedTree):
    """The contents of a generated set."""

    layout: ClassVar[str] = "cityscapes"
    noun: ClassVar[str] = "street scene"
    version: ClassVar[int] = 1

    train: int = 40
    val: int = 8
    width: int = 512
    seed: int = 0

    def __post_init__(self) -> None:
        if min(self.train, self.val) < 1 or self.width < MIN_WIDTH:
            raise UsageError(
                "a generated set needs at least one frame per split, "
                f"of at least {MIN_WIDTH} pixels"
            )

    def write(self, folder: Path, progress: Progress) -> None:
        """Write images and label maps."""

        def write_frame(frame: Picture) -> None:
            split, number = frame.split, frame.number
            city = CITIES[split][number % len(CITIES[split])]
            images, labels = folder / IMAGES / split / city, folder / LABELS / split / city
            images.mkdir(parents=True, exist_ok=True)
            labels.mkdir(parents=True, exist_ok=True)
            image_file, label_file = encode(self, split, number)
            stem = f"{city}_{number:06d}_000019"
            (images / f"{stem}{IMAGE_END}").write_bytes(image_file)
            (labels / f"{stem}{LABEL_END}").write_bytes(label_file)

        write_all(list_pictures({"train": self.train, "val": self.val}), write_frame, progress)


def encode(spec: GeneratedStreets, split: str, number: int) -> tuple[bytes, bytes]:
    """Return the two PNG files of one frame: the same bytes alone or in its set."""
    from PIL import Image

    rng = np.random.default_rng((spec.seed, split == "val", number))
    labels = Painter(rng, spec.width, spec.width // 2).paint()
    image = Image.fromarray(_colour(rng, np.asarray(labels)))
    return encode_image(image, "PNG"), encode_image(labels, "PNG")


class Painter:
    """Paints the labels of one scene, far things first, so that near things cover them."""

    def __init__(self, rng: np.random.Generator, width: int, height: int) -> None:
        from PIL import Image, ImageDraw

        self.labels = Image.new("L", (width, height), SKY)
        self.pen: ImageDraw.ImageDraw = ImageDraw.Draw(self.labels)
        self.rng = rng
        self.width = width
        self.height = height
        self.horizon = float(rng.uniform(0.42, 0.55)) * height

    def paint(self) -> Image.Image:
        """Paint facades, the ground, things on it, and the car's own bonnet at the bottom."""
        width, height, horizon = self.width, self.height, self.horizon
        left = 0.0
        while left < width:
            right = left + float(self.rng.uniform(0.06, 0.2)) * width
            kind = int(self.rng.choice(FACADES))
            heights = (0.05, 0.12) if kind in (WALL, FENCE) else (0.15, 0.4)
            top = horizon - float(self.rng.uniform(*heights)) * height
            if kind == VEGETATION:
                self.pen.ellipse((left, top, right, 2 * horizon - top), fill=kind)
            else:
                self.pen.rectangle((left, top, right, horizon), fill=kind)
            left = right
        middle = float(self.rng.uniform(0.4, 0.6)) * width
        verge = TERRAIN if self.rng.random() < 1 / 2 else SIDEWALK
        self.pen.rectangle((0, horizon, middle, height), fill=verge)
        self.pen.rectangle((middle, horizon, width, height), fill=SIDEWALK)
        far = ((middle - 0.05 * width, horizon), (middle + 0.05 * width, horizon))
        self.pen.polygon((*far, (width, height), (0, height)), fill=ROAD)
        painters: tuple[tuple[Callable[[], None], int], ...] = (
            (self._paint_pole, 5),
            (self._paint_person, 5),
            (self._paint_vehicle, 6),
        )
        for painter, most in painters:
            for _ in range(self.rng.integers(1, most + 1)):
                painter()
        bonnet = (0.25 * width, 0.93 * height, 0.75 * width, 1.2 * height)
        self.pen.ellipse(bonnet, fill=IGNORED)
        return self.labels

    def _paint_pole(self) -> None:
        across, foot, size = self._draw_place()
        thick, top = 0.012 * size * self.width, foot - 0.5 * size * self.height
        self.pen.rectangle(_box(across, thick, top, foot), fill=POLE)
        if self.rng.random() < 1 / 2:
            self.pen.ellipse(_box(across, 4 * thick, top - 4 * thick, top + 4 * thick), fill=SIGN)
        else:
            self.pen.rectangle(
                _box(across, 2 * thick, top - 3 * thick, top + 5 * thick), fill=LIGHT
            )

    def _paint_person(self) -> None:
        across, foot, size = self._draw_place()
        tall, thick = 0.3 * size * self.height, 0.018 * size * self.width
        kind = PERSON
        if self.rng.random() < 1 / 3:
            kind = RIDER
            self.pen.ellipse(_box(across, 2.5 * thick, foot - 0.4 * tall, foot), fill=BICYCLE)
            foot -= 0.25 * tall
        self.pen.rectangle(_box(across, thick, foot - 0.8 * tall, foot), fill=kind)
        self.pen.ellipse(_box(across, thick, foot - tall, foot - 0.75 * tall), fill=kind)

    def _paint_vehicle(self) -> None:
        across, foot, size = self._draw_place()
        kind = int(self.rng.choice(list(VEHICLES), p=VEHICLE_SHARES))
        length, height = VEHICLES[kind]
        long, tall = length * size * self.width, height * size * self.height
        roof = 0.5 if kind in (CAR, MOTORCYCLE, BICYCLE) else 1.0
        self.pen.rectangle(_box(across, long / 2, foot - roof * tall, foot), fill=kind)
        if roof < 1:
            self.pen.ellipse(_box(across, long / 3, foot - tall, foot), fill=kind)

    def _draw_place(self) -> tuple[float, float, float]:
        """Draw a place across, a foot and a size: a thing that is lower in the image is nearer."""
        near = float(self.rng.uniform(0.05, 1.0))
        across = float(self.rng.uniform(0, self.width))
        foot = self.horizon + near * 0.9 * (self.height - self.horizon)
        return across, foot, 0.4 + 1.1 * near


def _box(middle: float, half: float, top: float, bottom: float) -> tuple[float, ...]:
    return (middle - half, top, middle + half, bottom)


def _colour(rng: np.random.Generator, labels: Bytes) -> Bytes:
    """Colour each class a little differently per scene, under uneven light and grain."""
    palette = np.zeros((256, 3), dtype=np.float32)
    palette[: len(COLOURS)] = COLOURS + rng.normal(0, 12, (len(COLOURS), 3))
    palette[IGNORED] = 30
    down, across = (np.linspace(0, math.tau, side, dtype=np.float32) for side in labels.shape)
    phases = rng.uniform(0, math.tau, 2).astype(np.float32)
    waves = 1 + 0.15 * np.sin(down[:, None] + phases[0]) * np.sin(2 * across + phases[1])
    light = waves[:, :, None] * rng.uniform(0.8, 1.1)
    grain = rng.integers(-20, 21, (*labels.shape, 3))
    coloured: Bytes = np.clip(palette[labels] * light + grain, 0, 255).astype(np.uint8)
    return coloured
