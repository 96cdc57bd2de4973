"""A generated set in Cityscapes' tree: street scenes with all 19 classes and what is ignored."""

from __future__ import annotations

import dataclasses
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from profkit.cache import Recipe, ensure
from profkit.errors import UsageError
from profkit.progress import Narrator, Progress, ProgressBar
from profkit.text import plural
from profkit.workloads.datasets.cityscapes import IGNORED, IMAGE_END, IMAGES, LABEL_END, LABELS

if TYPE_CHECKING:
    from PIL import Image

Bytes = npt.NDArray[np.uint8]

_VERSION = 1
"""Part of the recipe: raised by each change of the rendering, so that no older set is taken for a new one."""

_CITIES = {"train": ("eastport", "northtown", "southtown"), "val": ("westburg",)}

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

# The colours in which the data set itself shows its classes.
_COLOURS = (
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
_FACADES = (BUILDING, BUILDING, BUILDING, VEGETATION, VEGETATION, WALL, FENCE)
_VEHICLES = {
    CAR: (0.16, 0.12),
    TRUCK: (0.2, 0.22),
    BUS: (0.26, 0.24),
    TRAIN: (0.4, 0.25),
    MOTORCYCLE: (0.07, 0.1),
    BICYCLE: (0.07, 0.1),
}
_VEHICLE_SHARES = (0.5, 0.1, 0.1, 0.1, 0.1, 0.1)


@dataclass(frozen=True)
class GeneratedStreets:
    """What a generated set holds."""

    train: int = 40
    val: int = 8
    width: int = 512
    seed: int = 0

    def __post_init__(self) -> None:
        if min(self.train, self.val) < 1 or self.width < 64:
            raise UsageError(
                "a generated set needs at least one frame a split, of at least 64 pixels"
            )

    @property
    def recipe(self) -> Recipe:
        return Recipe("cityscapes", {"version": _VERSION, **dataclasses.asdict(self)})


DEFAULT_STREETS = GeneratedStreets()


def generate(
    spec: GeneratedStreets = DEFAULT_STREETS,
    *,
    root: Path | None = None,
    narrate: Narrator = ProgressBar,
) -> Path:
    """The folder of the generated set, made if the cache does not hold it."""
    what = plural(spec.train + spec.val, "street scene")
    return ensure(
        spec.recipe,
        lambda folder, progress: write_set(spec, folder, progress),
        what=what,
        root=root,
        narrate=narrate,
    )


def write_set(spec: GeneratedStreets, folder: Path, progress: Progress) -> None:
    """Write images and label maps into an empty folder."""
    done = 0
    for split, count in (("train", spec.train), ("val", spec.val)):
        for number in range(count):
            city = _CITIES[split][number % len(_CITIES[split])]
            stem = f"{split}/{city}/{city}_{number:06d}_000019"
            for name, content in zip(
                (f"{IMAGES}/{stem}{IMAGE_END}", f"{LABELS}/{stem}{LABEL_END}"),
                encode(spec, split, number),
                strict=True,
            ):
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).write_bytes(content)
            progress(done := done + 1, spec.train + spec.val)


def encode(spec: GeneratedStreets, split: str, number: int) -> tuple[bytes, bytes]:
    """The two PNG files of one frame: the same each time, alone or in its set."""
    from PIL import Image

    rng = np.random.default_rng((spec.seed, split == "val", number))
    labels = np.asarray(_paint_labels(rng, spec.width, spec.width // 2))
    return _png(Image.fromarray(_colour(rng, labels))), _png(Image.fromarray(labels))


def _png(image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


def _paint_labels(rng: np.random.Generator, width: int, height: int) -> Image.Image:
    """From what is far to what is near, so that near things cover far ones."""
    from PIL import Image, ImageDraw

    labels = Image.new("L", (width, height), SKY)
    pen = ImageDraw.Draw(labels)
    horizon = float(rng.uniform(0.42, 0.55)) * height
    _paint_facades(pen, rng, width, height, horizon)
    _paint_ground(pen, rng, width, height, horizon)
    for painter, most in ((_paint_pole, 5), (_paint_person, 5), (_paint_vehicle, 6)):
        for _ in range(rng.integers(1, most + 1)):
            painter(pen, rng, width, height, horizon)
    pen.ellipse((0.25 * width, 0.93 * height, 0.75 * width, 1.2 * height), fill=IGNORED)
    return labels


def _paint_facades(
    pen: Any, rng: np.random.Generator, width: int, height: int, horizon: float
) -> None:
    left = 0.0
    while left < width:
        right = left + float(rng.uniform(0.06, 0.2)) * width
        kind = int(rng.choice(_FACADES))
        top = (
            horizon
            - float(rng.uniform(0.05, 0.12) if kind in (WALL, FENCE) else rng.uniform(0.15, 0.4))
            * height
        )
        if kind == VEGETATION:
            pen.ellipse((left, top, right, 2 * horizon - top), fill=kind)
        else:
            pen.rectangle((left, top, right, horizon), fill=kind)
        left = right


def _paint_ground(
    pen: Any, rng: np.random.Generator, width: int, height: int, horizon: float
) -> None:
    middle = float(rng.uniform(0.4, 0.6)) * width
    pen.rectangle((0, horizon, middle, height), fill=TERRAIN if rng.random() < 1 / 2 else SIDEWALK)
    pen.rectangle((middle, horizon, width, height), fill=SIDEWALK)
    pen.polygon(
        (
            (middle - 0.05 * width, horizon),
            (middle + 0.05 * width, horizon),
            (width, height),
            (0, height),
        ),
        fill=ROAD,
    )


def _paint_pole(
    pen: Any, rng: np.random.Generator, width: int, height: int, horizon: float
) -> None:
    across, foot, size = _place(rng, width, height, horizon)
    thick, top = 0.012 * size * width, foot - 0.5 * size * height
    pen.rectangle((across - thick, top, across + thick, foot), fill=POLE)
    if rng.random() < 1 / 2:
        pen.ellipse(
            (across - 4 * thick, top - 4 * thick, across + 4 * thick, top + 4 * thick), fill=SIGN
        )
    else:
        pen.rectangle(
            (across - 2 * thick, top - 3 * thick, across + 2 * thick, top + 5 * thick), fill=LIGHT
        )


def _paint_person(
    pen: Any, rng: np.random.Generator, width: int, height: int, horizon: float
) -> None:
    across, foot, size = _place(rng, width, height, horizon)
    tall, thick = 0.3 * size * height, 0.018 * size * width
    kind = PERSON
    if rng.random() < 1 / 3:
        kind = RIDER
        pen.ellipse(
            (across - 2.5 * thick, foot - 0.4 * tall, across + 2.5 * thick, foot), fill=BICYCLE
        )
        foot -= 0.25 * tall
    pen.rectangle((across - thick, foot - 0.8 * tall, across + thick, foot), fill=kind)
    pen.ellipse((across - thick, foot - tall, across + thick, foot - 0.75 * tall), fill=kind)


def _paint_vehicle(
    pen: Any, rng: np.random.Generator, width: int, height: int, horizon: float
) -> None:
    across, foot, size = _place(rng, width, height, horizon)
    kind = int(rng.choice(list(_VEHICLES), p=_VEHICLE_SHARES))
    long, tall = _VEHICLES[kind][0] * size * width, _VEHICLES[kind][1] * size * height
    roof = 0.5 if kind in (CAR, MOTORCYCLE, BICYCLE) else 1.0
    pen.rectangle((across - long / 2, foot - roof * tall, across + long / 2, foot), fill=kind)
    if roof < 1:
        pen.ellipse((across - long / 3, foot - tall, across + long / 3, foot), fill=kind)


def _place(
    rng: np.random.Generator, width: int, height: int, horizon: float
) -> tuple[float, float, float]:
    """Where something stands, and how large it looks there: what is lower in the image is nearer."""
    near = float(rng.uniform(0.05, 1.0))
    return float(rng.uniform(0, width)), horizon + near * 0.9 * (height - horizon), 0.4 + 1.1 * near


def _colour(rng: np.random.Generator, labels: Bytes) -> Bytes:
    """Each class in its colour, which differs a little from scene to scene, under uneven light and grain."""
    palette = np.zeros((256, 3), dtype=np.float32)
    palette[: len(_COLOURS)] = _COLOURS + rng.normal(0, 12, (len(_COLOURS), 3))
    palette[IGNORED] = 30
    light = _uneven(rng, labels.shape)[:, :, None] * rng.uniform(0.8, 1.1)
    coloured: Bytes = np.clip(
        palette[labels] * light + rng.integers(-20, 21, (*labels.shape, 3)), 0, 255
    ).astype(np.uint8)
    return coloured


def _uneven(rng: np.random.Generator, shape: Sequence[int]) -> npt.NDArray[np.float32]:
    down, across = (np.linspace(0, math.tau, side, dtype=np.float32) for side in shape)
    phases = rng.uniform(0, math.tau, 2).astype(np.float32)
    waves: npt.NDArray[np.float32] = 1 + 0.15 * np.sin(down[:, None] + phases[0]) * np.sin(
        2 * across + phases[1]
    )
    return waves
