"""Samples of TSM: one frame from each segment of a clip, all cropped alike."""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from profkit.workloads.base import Key
from profkit.workloads.datasets.kinetics import ClipIndex
from profkit.workloads.training.samples import BILINEAR, BadSamples, header_size

Pixels = npt.NDArray[np.float32]
Size = tuple[int, int]
"""Width and height."""

Box = tuple[int, int, int, int]

MEAN = np.array((0.485, 0.456, 0.406), dtype=np.float32) * 255
DEVIATION = np.array((0.229, 0.224, 0.225), dtype=np.float32) * 255

CROP_SCALES = (1.0, 0.875, 0.75, 0.66)
"""Sides of a crop, as shares of the frame's short side."""

MIN_CHANGE = 3
"""A crop's side that differs by less than so many pixels from the wanted one becomes that one."""

PLACES = (
    (0, 0),
    (4, 0),
    (0, 4),
    (4, 4),
    (2, 2),
    (0, 2),
    (4, 2),
    (2, 4),
    (2, 0),
    (1, 1),
    (3, 1),
    (1, 3),
    (3, 3),
)
"""Places of a crop, in quarters of the room that it leaves."""

EVALUATION_RATIO = 256 / 224
"""The short side of an evaluated frame, divided by the side of the crop from its middle."""


@dataclass(frozen=True)
class Clips:
    """The normalised frames of each clip, and its label.

    In training, frames, crop and flip are drawn at random.
    """

    index: ClipIndex
    bad: BadSamples
    segments: int
    size: int
    seed: int
    training: bool = True

    def __len__(self) -> int:
        return len(self.index.clips)

    def __getitem__(self, key: Key) -> tuple[Pixels, np.int64]:
        epoch, number = key
        rng = np.random.default_rng((self.seed, epoch, number)) if self.training else None
        clip = self.index.clips[number]
        picked = pick_frames(clip.frames, self.segments, rng)
        paths = list(map(clip.frame, picked))
        known = None
        if self.bad.policy == "pad":
            # A broken frame gets the size of a readable one, of these or of the clip.
            folder = os.path.dirname(paths[0])
            names = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
            others = (os.path.join(folder, name) for name in names)
            known = next(filter(None, map(header_size, (*paths, *others))), None)
        frames = [self.bad.image(path, known) for path in paths]
        box = draw_crop(rng, frames[0].size, self.size) if rng else middle_crop(frames[0].size)
        size = (self.size, self.size)
        pixels = np.stack([np.asarray(frame.resize(size, BILINEAR, box)) for frame in frames])
        if rng and rng.random() < 0.5:
            pixels = pixels[:, :, ::-1]
        return normalise(pixels), np.int64(clip.label)


def pick_frames(count: int, segments: int, rng: np.random.Generator | None) -> list[int]:
    """Pick one frame of each of `segments` equal parts, counted from 1.

    In training any frame of a part is picked, else the middle one. A clip that is too short starts
    again at its end.
    """
    length = count // segments
    starts = np.arange(segments) * max(1, length)
    if length == 0:
        within = np.zeros(segments, dtype=int)
    elif rng:
        within = rng.integers(length, size=segments)
    else:
        within = np.full(segments, (length - 1) // 2)
    picked: list[int] = ((starts + within) % count + 1).tolist()
    return picked


def draw_crop(rng: np.random.Generator, frame: Size, size: int) -> Box:
    """Draw a crop of one of four scales per direction, one step apart at most."""
    sides = []
    for share in CROP_SCALES:
        side = int(min(frame) * share)
        sides.append(size if abs(side - size) < MIN_CHANGE else side)
    pairs = []
    for across, wide in enumerate(sides):
        for down, high in enumerate(sides):
            if abs(across - down) <= 1:
                pairs.append((wide, high))
    width, height = pairs[rng.integers(len(pairs))]
    right, below = PLACES[rng.integers(len(PLACES))]
    left, top = (frame[0] - width) // 4 * right, (frame[1] - height) // 4 * below
    return left, top, left + width, top + height


def middle_crop(frame: Size) -> Box:
    """Return the square in the middle of a frame."""
    side = round(min(frame) / EVALUATION_RATIO)
    left, top = (frame[0] - side) // 2, (frame[1] - side) // 2
    return left, top, left + side, top + side


def normalise(frames: npt.NDArray[np.uint8]) -> Pixels:
    """Return the frames with channels first, without ImageNet's mean and deviation."""
    pixels: Pixels = ((frames.astype(np.float32) - MEAN) / DEVIATION).transpose(0, 3, 1, 2)
    return np.ascontiguousarray(pixels)


def made_up_batch(
    count: int, segments: int, size: int, classes: int, seed: int
) -> tuple[Pixels, npt.NDArray[np.int64]]:
    """Return noise with labels, for runs without an input pipeline."""
    rng = np.random.default_rng((seed, count, size))
    clips = rng.standard_normal((count, segments, 3, size, size), dtype=np.float32)
    return clips, rng.integers(classes, size=count)
