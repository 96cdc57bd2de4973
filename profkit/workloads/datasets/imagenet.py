"""ImageNet's folder layout: a generated set of real JPEG files in it."""

from __future__ import annotations

import colorsys
import dataclasses
import io
import math
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from profkit.cache import Recipe, ensure
from profkit.errors import UsageError
from profkit.progress import Narrator, Progress, ProgressBar
from profkit.text import plural
from profkit.workloads.datasets.image_tree import SPLITS

if TYPE_CHECKING:
    from PIL import Image

Bytes = npt.NDArray[np.uint8]
Shorts = npt.NDArray[np.int16]

_VERSION = 2
"""Part of the recipe: raised by each change of the rendering, so that no older set is taken for a new one."""

# (corners, waist): each second corner of the outline is drawn in to this share of the radius.
_SHAPES = ((32, 1.0), (3, 0.5), (5, 0.4), (4, 0.707), (4, 0.3), (2, 0.45), (8, 0.7))
_ANGLES, _HUES, _PERIODS = 8, 11, (0.035, 0.055, 0.09)
MAX_CLASSES = len(_SHAPES) * _ANGLES * _HUES * len(_PERIODS)
"""The four counts have no common factor, so that no two classes below this share all four traits."""

_SMALLEST_SIDE = 16
_ASPECTS = ((4, 3), (4, 3), (4, 3), (4, 3), (3, 2), (3, 2), (3, 4), (2, 3), (1, 1), (6, 5))
_SINE: Bytes = np.array(
    [round(127.5 + 127.5 * math.sin(math.tau * step / 256)) for step in range(256)], dtype=np.uint8
)


@dataclass(frozen=True)
class GeneratedSet:
    """What a generated set holds. A larger set holds the same images as a smaller one, and more."""

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
                "a generated set needs at least one training and one validation image a class"
            )
        if self.long_side < _SMALLEST_SIDE:
            raise UsageError(
                f"generated images are at least {_SMALLEST_SIDE} pixels long, not {self.long_side}"
            )

    @property
    def recipe(self) -> Recipe:
        return Recipe("imagenet", {"version": _VERSION, **dataclasses.asdict(self)})

    def pictures(self) -> Iterator[Picture]:
        """Every image of the set, class by class."""
        for split, count in zip(SPLITS, (self.train_per_class, self.val_per_class), strict=True):
            yield from (
                Picture(split, label, number)
                for label in range(self.classes)
                for number in range(count)
            )


@dataclass(frozen=True)
class Picture:
    """Names one image: the `number`-th of its class in its split."""

    split: str
    label: int
    number: int


@dataclass(frozen=True)
class _Look:
    """What the images of one class have in common."""

    corners: int
    waist: float
    angle: float
    hue: float
    period: float


DEFAULT_SET = GeneratedSet()


def generate(
    spec: GeneratedSet = DEFAULT_SET, *, root: Path | None = None, narrate: Narrator = ProgressBar
) -> Path:
    """The folder of the generated set, made if the cache does not hold it."""
    count = spec.classes * (spec.train_per_class + spec.val_per_class)
    return ensure(
        spec.recipe,
        lambda folder, progress: write_set(spec, folder, progress),
        what=plural(count, "JPEG file"),
        root=root,
        narrate=narrate,
    )


def write_set(spec: GeneratedSet, folder: Path, progress: Progress) -> None:
    """Write the images and their lists into an empty folder, on every core that this process may use."""
    ids = class_ids(spec.classes, spec.seed)
    files = {picture: _file_name(spec, picture, ids) for picture in spec.pictures()}
    _make_folders(folder, ids)
    _write_lists(folder, files)

    def write(picture: Picture) -> None:
        (folder / files[picture]).write_bytes(encode(spec, picture))

    with ThreadPoolExecutor(
        _usable_cores()
    ) as pool:  # threads suffice: numpy and the JPEG encoder let go of the interpreter
        for done, _ in enumerate(pool.map(write, files), start=1):
            progress(done, len(files))


def class_ids(count: int, seed: int) -> tuple[str, ...]:
    """Identifiers like WordNet's, in the order of the class index; more classes keep the first ones' names."""
    gaps = np.random.default_rng((seed, 0)).integers(1_000, 26_000, MAX_CLASSES)
    return tuple(f"n{number:08d}" for number in (1_400_000 + gaps.cumsum()[:count]).tolist())


def _file_name(spec: GeneratedSet, picture: Picture, ids: tuple[str, ...]) -> str:
    wnid = ids[picture.label]
    if picture.split == "train":
        return f"train/{wnid}/{wnid}_{picture.number + 1}.JPEG"
    return f"val/{wnid}/ILSVRC2012_val_{picture.number * spec.classes + picture.label + 1:08d}.JPEG"


def _make_folders(folder: Path, ids: tuple[str, ...]) -> None:
    for split in SPLITS:
        for wnid in ids:
            (folder / split / wnid).mkdir(parents=True)


def _write_lists(folder: Path, files: dict[Picture, str]) -> None:
    """The lists that PaddleClas reads: a path and a class index a line."""
    for split in SPLITS:
        lines = (
            f"{file} {picture.label}\n" for picture, file in files.items() if picture.split == split
        )
        (folder / f"{split}_list.txt").write_text("".join(lines), encoding="utf-8")


def _usable_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def encode(spec: GeneratedSet, picture: Picture) -> bytes:
    """The JPEG file of one image: the same bytes each time with the same Pillow, alone or in its set."""
    buffer = io.BytesIO()
    render(spec, picture).save(buffer, "JPEG", quality=spec.quality)
    return buffer.getvalue()


def render(spec: GeneratedSet, picture: Picture) -> Image.Image:
    """A scene of its class: objects of one outline before a grating of one direction, in one palette.

    Place, number and size of the objects, light, warp, hue and grain are drawn for each image.
    Whole numbers almost throughout, so that processors do not differ in the last bit.
    """
    from PIL import Image

    rng = np.random.default_rng(
        (spec.seed, 1, SPLITS.index(picture.split), picture.label, picture.number)
    )
    look = _vary(_class_look(picture.label), rng)
    width, height = _draw_size(rng, spec.long_side)
    clouds = [_cloud(rng, width, height, coarse) for coarse in (2, 3, 5)]
    ground = _blend((clouds[0], 5), (_grating(look, clouds[1], spec.long_side), 3))
    things = _blend((clouds[1], 5), (clouds[2], 3))
    grain = _grain(rng, clouds[2], clouds[0])
    back = _colour(_to_bytes(ground + grain), _palette(rng, look.hue))
    front = _colour(_to_bytes(things + grain), _palette(rng, look.hue + 0.4))
    return Image.composite(front, back, _outlines(rng, look, width, height))


def _class_look(label: int) -> _Look:
    corners, waist = _SHAPES[label % len(_SHAPES)]
    return _Look(
        corners,
        waist,
        math.pi * (label % _ANGLES) / _ANGLES,
        (label % _HUES) / _HUES,
        _PERIODS[label % len(_PERIODS)],
    )


def _vary(look: _Look, rng: np.random.Generator) -> _Look:
    angle, hue, stretch = rng.uniform((-0.1, -0.03, 0.85), (0.1, 0.03, 1.15)).tolist()
    return dataclasses.replace(
        look, angle=look.angle + angle, hue=look.hue + hue, period=look.period * stretch
    )


def _draw_size(rng: np.random.Generator, long_side: int) -> tuple[int, int]:
    across, down = _ASPECTS[rng.integers(len(_ASPECTS))]
    longer = long_side - int(rng.integers(long_side // 20 + 1)) * int(rng.integers(2))
    return longer * across // max(across, down), longer * down // max(across, down)


def _cloud(rng: np.random.Generator, width: int, height: int, coarse: int) -> Bytes:
    """Soft shapes at three scales, the largest about `1 / coarse` of the image."""
    layers = [
        (_soft_noise(rng, width // 4, height // 4, coarse * 3**octave), weight)
        for octave, weight in enumerate((5, 2, 1))
    ]
    return _stretch(_blend(*layers), width, height)


def _soft_noise(rng: np.random.Generator, width: int, height: int, cells: int) -> Bytes:
    return _stretch(
        rng.integers(0, 256, (cells * height // width + 2, cells + 2), dtype=np.uint8),
        width,
        height,
    )


def _stretch(tone: Bytes, width: int, height: int) -> Bytes:
    from PIL import Image

    return np.asarray(Image.fromarray(tone).resize((width, height), Image.Resampling.BICUBIC))


def _grating(look: _Look, warp: Bytes, long_side: int) -> Bytes:
    """Waves across the image in the class's direction, bent by `warp`; 256 steps of phase are one wave."""
    height, width = warp.shape
    steps = 65_536 / (look.period * long_side)
    across, down = round(steps * math.cos(look.angle)), round(steps * math.sin(look.angle))
    plane = (
        np.arange(height, dtype=np.int32)[:, None] * down
        + np.arange(width, dtype=np.int32) * across
    )
    wave: Bytes = _SINE[((plane >> 8) + warp) & 255]
    return wave


def _blend(*layers: tuple[Bytes, int]) -> Bytes:
    """The weighted sum about the middle grey, with the contrast that averaging takes away given back."""
    total = sum(weight for _, weight in layers)
    mixed = sum((layer.astype(np.int16) - 128) * weight for layer, weight in layers)
    return _to_bytes(np.asarray(mixed) * 3 // (2 * total) + 128)


def _grain(rng: np.random.Generator, rough: Bytes, fine: Bytes) -> Shorts:
    """Noise of the size of a pixel or two, strong in some places and weak in others, as texture in photographs is."""
    noise = (
        np.frombuffer(rng.bytes(2 * rough.size), dtype=np.int8)
        .reshape(2, *rough.shape)
        .astype(np.int16)
    )
    grain: Shorts = (noise[0] * (rough >> 2) + noise[1] * (fine >> 3)) // 128
    return grain


def _to_bytes(values: Shorts) -> Bytes:
    clipped: Bytes = np.clip(values, 0, 255).astype(np.uint8)
    return clipped


def _colour(tone: Bytes, palette: Bytes) -> Image.Image:
    from PIL import Image

    image = Image.fromarray(tone)
    image.putpalette(palette.tobytes())
    return image.convert("RGB")


def _palette(rng: np.random.Generator, hue: float) -> Bytes:
    """256 colours from a dark through a middle to a light shade of one hue."""
    strength, light = rng.uniform((0.35, 0.75), (0.85, 1.0)).tolist()
    stops = (
        (hue - 0.04, strength, 0.12),
        (hue, strength, 0.55 * light),
        (hue + 0.05, strength / 3, 0.98 * light),
    )
    colours = np.array([colorsys.hsv_to_rgb(*stop) for stop in stops]) * 255
    return np.stack(
        [np.interp(np.arange(256), (0, 128, 255), channel) for channel in colours.T], axis=1
    ).astype(np.uint8)


def _outlines(rng: np.random.Generator, look: _Look, width: int, height: int) -> Image.Image:
    """The mask of one to three objects."""
    from PIL import Image, ImageDraw, ImageFilter

    mask = Image.new("L", (width, height))
    for _ in range(rng.integers(1, 4)):
        ImageDraw.Draw(mask).polygon(_outline(rng, look, width, height), fill=255)
    return mask.filter(ImageFilter.BoxBlur(1))


def _outline(
    rng: np.random.Generator, look: _Look, width: int, height: int
) -> list[tuple[float, float]]:
    across, down, size, turn = rng.uniform(
        (0.15, 0.15, 0.15, -0.3), (0.85, 0.85, 0.33, 0.3)
    ).tolist()
    radius = size * min(width, height)
    points = []
    for corner in range(2 * look.corners):
        reach = radius * (look.waist if corner % 2 else 1.0)
        angle = turn - math.pi / 2 + math.pi * corner / look.corners
        points.append(
            (across * width + reach * math.cos(angle), down * height + reach * math.sin(angle))
        )
    return points
