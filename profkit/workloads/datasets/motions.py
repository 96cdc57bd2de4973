"""A generated set in Kinetics' tree: clips of one or two shapes that move."""

from __future__ import annotations

import colorsys
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from profkit.errors import UsageError
from profkit.progress import Progress
from profkit.workloads.datasets.generated import (
    GeneratedTree,
    Picture,
    encode_image,
    list_pictures,
    soft_background,
    write_all,
)
from profkit.workloads.datasets.kinetics import LIST_NAMES, SPLITS, frame_name

if TYPE_CHECKING:
    from PIL import Image

Spot = tuple[float, float, float, float]
"""A shape at a moment: its middle across and down, its radius, and its opacity.

The first three are shares of the image.
"""


def _gather(at: float, side: float) -> list[Spot]:
    apart = 0.36 * (1 - at)
    return [(0.5 - apart, 0.5 + 0.2 * side, 0.12, 1), (0.5 + apart, 0.5 + 0.2 * side, 0.12, 1)]


MOTIONS: dict[str, Callable[[float, float], list[Spot]]] = {
    "rising": lambda at, side: [(0.5 + 0.2 * side, 0.85 - 0.7 * at, 0.13, 1)],
    "falling": lambda at, side: [(0.5 + 0.2 * side, 0.15 + 0.7 * at, 0.13, 1)],
    "growing": lambda at, side: [(0.5 + 0.1 * side, 0.5, 0.06 + 0.3 * at, 1)],
    "shrinking": lambda at, side: [(0.5 + 0.1 * side, 0.5, 0.36 - 0.3 * at, 1)],
    "gathering": _gather,
    "parting": lambda at, side: _gather(1 - at, side),
    "appearing": lambda at, side: [(0.5 + 0.15 * side, 0.5, 0.22, at)],
    "vanishing": lambda at, side: [(0.5 + 0.15 * side, 0.5, 0.22, 1 - at)],
    "sweeping": lambda at, side: [
        (0.5 + math.copysign(0.35 - 0.7 * at, side), 0.5 + 0.1 * side, 0.13, 1)
    ],
    "circling": lambda at, side: [
        (
            0.5 + 0.26 * math.sin(math.copysign(math.tau * at, side)),
            0.5 - 0.26 * math.cos(math.tau * at),
            0.12,
            1,
        )
    ],
}
"""The classes: each gives its shapes at a time from 0 to 1, on a side from -1 to 1.

Each motion and its reverse show the same frames, so that only their order tells them apart. None
changes its class when it is mirrored.
"""

NAMES = tuple(MOTIONS)


@dataclass(frozen=True)
class GeneratedClips(GeneratedTree):
    """The contents of a generated set."""

    layout: ClassVar[str] = "kinetics"
    noun: ClassVar[str] = "clip"
    version: ClassVar[int] = 2

    classes: int = len(MOTIONS)
    train_per_class: int = 10
    val_per_class: int = 2
    least_frames: int = 16
    most_frames: int = 24
    width: int = 340
    height: int = 256
    quality: int = 85
    seed: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.classes <= len(MOTIONS):
            raise UsageError(f"a generated set has 1 to {len(MOTIONS)} classes, not {self.classes}")

    def write(self, folder: Path, progress: Progress) -> None:
        """Write the clips and their lists."""
        counts = {"train": self.train_per_class, "val": self.val_per_class}
        folders = {}
        for clip in list_pictures(counts, self.classes):
            folders[clip] = f"{clip.split}/{NAMES[clip.label]}/clip_{clip.number + 1:04d}"

        def write_clip(clip: Picture) -> int:
            (folder / folders[clip]).mkdir(parents=True)
            count = 0
            for count, image in enumerate(render(self, clip), start=1):
                file = encode_image(image, "JPEG", quality=self.quality)
                (folder / folders[clip] / frame_name(count)).write_bytes(file)
            return count

        frames = write_all(list(folders), write_clip, progress)
        for split in SPLITS:
            text = ""
            for clip, count in zip(folders, frames, strict=True):
                if clip.split == split:
                    text += f"{folders[clip]} {count} {clip.label}\n"
            (folder / LIST_NAMES[split][0]).write_text(text, encoding="utf-8")


def render(spec: GeneratedClips, clip: Picture) -> Iterator[Image.Image]:
    """Yield the frames of a clip: shapes that move before a still scene, seen by a shaky hand."""
    from PIL import Image, ImageDraw

    rng = np.random.default_rng((spec.seed, 3, SPLITS.index(clip.split), clip.label, clip.number))
    coarse = rng.integers(20, 140, (4, 5), dtype=np.uint8)
    fine = rng.integers(0, 256, (spec.height // 3, spec.width // 3, 3), dtype=np.uint8)
    scene = soft_background(coarse, fine, (spec.width, spec.height))
    # A motion and its reverse share a hue, so that only time differs between them.
    hue = clip.label // 2 / (len(MOTIONS) // 2) + rng.uniform(-0.03, 0.03)
    parts = colorsys.hsv_to_rgb(hue % 1, rng.uniform(0.8, 1), rng.uniform(0.85, 1))
    colour = tuple(round(255 * part) for part in parts)
    corners, side, size = int(rng.integers(3, 9)), rng.uniform(-1, 1), rng.uniform(1.2, 1.5)
    shift = rng.uniform(-0.06, 0.06, 2)
    frames = int(rng.integers(spec.least_frames, spec.most_frames + 1))
    for number in range(frames):
        across, down = (rng.normal(0, 0.004, 2) + shift).tolist()
        spots = MOTIONS[NAMES[clip.label]](number / (frames - 1), side)
        mask = Image.new("L", scene.size)  # the opacity of the shapes at each pixel
        for x, y, radius, shown in spots:
            reach = radius * size * spec.height
            outline = []
            for corner in range(corners):
                angle = math.tau * corner / corners
                right = (x + across) * spec.width + reach * math.sin(angle)
                outline.append((right, (y + down) * spec.height - reach * math.cos(angle)))
            ImageDraw.Draw(mask).polygon(outline, fill=round(255 * shown))
        front = Image.new("RGB", scene.size, colour)
        yield Image.composite(front, scene, mask)
