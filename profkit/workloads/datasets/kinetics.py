"""Kinetics' tree of extracted frames: a folder a clip and lists of clips. Reads any, and makes a generated one."""

from __future__ import annotations

import colorsys
import dataclasses
import io
import math
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from profkit.cache import Recipe, ensure
from profkit.errors import UnreadableError, UsageError
from profkit.progress import Narrator, Progress, ProgressBar
from profkit.text import plural, safe_text

if TYPE_CHECKING:
    from PIL import Image

SPLITS = ("train", "val")
LIST_NAMES = {
    split: (f"{split}.list", f"{split}_frames.list", f"{split}_list.txt") for split in SPLITS
}
"""What the list of a split may be called; the first is the name in PaddleVideo's configuration."""

_LOOKED_AT = 24
"""How many of a split's clip folders are looked for: each look at 234,619 of them on a network disk would take minutes."""


@dataclass(frozen=True)
class Clip:
    """One folder of frames, how many it has, and the number of its class."""

    folder: str
    frames: int
    label: int

    def frame(self, number: int) -> str:
        """The path of a frame, counted from 1."""
        return f"{self.folder}/{frame_name(number)}"


@dataclass(frozen=True)
class ClipIndex:
    """One split of a tree, in the order of its list; `classes` is one more than the highest label of `train`."""

    root: Path
    split: str
    classes: int
    clips: tuple[Clip, ...]


def frame_name(number: int) -> str:
    return f"img_{number:05d}.jpg"


def check_tree(path: Path, split: str = "train") -> ClipIndex:
    """The clips of a split. An `UnreadableError` says what is missing where, or which line of which list is wrong.

    Lists hold `folder frames label` lines; folders are absolute, or relative to the list's own. Of the folders a
    sample is looked for; a frame that is missing is a bad sample of the run.
    """
    try:
        return _index_tree(path, split)
    except OSError as error:
        raise UnreadableError(
            f"{safe_text(str(error.filename or path))}: cannot be read: {error.strerror or error}"
        ) from error


def _index_tree(path: Path, split: str) -> ClipIndex:
    _check_layout(path)
    train = _read_list(_find_list(path, "train"))
    clips = train if split == "train" else _read_list(_find_list(path, split))
    classes = max(clip.label for clip in train) + 1
    if (strange := next((clip for clip in clips if clip.label >= classes), None)) is not None:
        raise UnreadableError(
            f"{safe_text(str(path))}: label {strange.label} of {safe_text(strange.folder)} is not among those of 'train' (0 to {classes - 1})"
        )
    _look_for(clips, _find_list(path, split))
    return ClipIndex(path, split, classes, clips)


def _check_layout(path: Path) -> None:
    shown = safe_text(str(path))
    if not path.exists():
        raise UnreadableError(f"{shown}: no such folder")
    if not path.is_dir():
        raise UnreadableError(
            f"{shown}: a file, not the folder that holds 'train.list' and 'val.list'"
        )


def _find_list(path: Path, split: str) -> Path:
    for name in LIST_NAMES[split]:
        if (path / name).is_file():
            return path / name
    raise UnreadableError(
        f"{safe_text(str(path))}: no '{LIST_NAMES[split][0]}' in it (lines of: folder frames label){_what_it_is(path, split)}"
    )


def _what_it_is(path: Path, split: str) -> str:
    here = path.absolute()
    for near in (here.parent, *sorted(entry for entry in here.iterdir() if entry.is_dir())[:100]):
        if any((near / name).is_file() for name in LIST_NAMES[split]):
            return f"; {safe_text(str(near))} has one, so give that"
    if (path / frame_name(1)).is_file():
        return "; it holds the frames of one clip"
    return ""


def _read_list(path: Path) -> tuple[Clip, ...]:
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise UnreadableError(
            f"{safe_text(str(path))}: not UTF-8 text: {error.reason} at byte {error.start}"
        ) from error
    clips = tuple(
        _parse_clip(line, path, number)
        for number, line in enumerate(lines, start=1)
        if line.strip()
    )
    if not clips:
        raise UnreadableError(
            f"{safe_text(str(path))}: no clips in it; a line is: folder frames label"
        )
    return clips


def _parse_clip(line: str, path: Path, number: int) -> Clip:
    """Folders may have spaces in their names, as the published classes do."""
    fields = line.rsplit(maxsplit=2)
    if len(fields) != 3 or not (fields[1].isdecimal() and fields[2].isdecimal()):
        raise UnreadableError(
            f"{safe_text(str(path))}:{number}: not 'folder frames label': {safe_text(line[:60])}"
        )
    if int(fields[1]) == 0:
        raise UnreadableError(
            f"{safe_text(str(path))}:{number}: a clip without frames: {safe_text(line[:60])}"
        )
    return Clip(os.path.join(path.parent, fields[0].strip()), int(fields[1]), int(fields[2]))


def _look_for(clips: tuple[Clip, ...], listed_in: Path) -> None:
    """Where none of the clips looked at is there, the list's paths are wrong; where some are, that is said of the first that is not."""
    some = clips[:: max(1, len(clips) // _LOOKED_AT)]
    missing = [clip.folder for clip in some if not os.path.isdir(clip.folder)]
    if missing:
        remedy = (
            "; its paths must be absolute, or relative to the folder of the list"
            if len(missing) == len(some)
            else ""
        )
        where = f"({len(missing)} of the {len(some)} looked at are so; {len(clips):,} in all)"
        raise UnreadableError(
            f"{safe_text(str(listed_in))}: no folder {safe_text(missing[0])} {where}{remedy}"
        )


# The generated set

_VERSION = 2
"""Part of the recipe: raised by each change of the rendering, so that no older set is taken for a new one."""

Spot = tuple[float, float, float, float]
"""A shape at a moment: where its middle is across and down, its radius (all as shares of the image), and how much it shows."""


def _rise(at: float, side: float) -> list[Spot]:
    return [(0.5 + 0.2 * side, 0.85 - 0.7 * at, 0.13, 1)]


def _fall(at: float, side: float) -> list[Spot]:
    return [(0.5 + 0.2 * side, 0.15 + 0.7 * at, 0.13, 1)]


def _grow(at: float, side: float) -> list[Spot]:
    return [(0.5 + 0.1 * side, 0.5, 0.06 + 0.3 * at, 1)]


def _shrink(at: float, side: float) -> list[Spot]:
    return [(0.5 + 0.1 * side, 0.5, 0.36 - 0.3 * at, 1)]


def _gather(at: float, side: float) -> list[Spot]:
    apart = 0.36 * (1 - at)
    return [(0.5 - apart, 0.5 + 0.2 * side, 0.12, 1), (0.5 + apart, 0.5 + 0.2 * side, 0.12, 1)]


def _part(at: float, side: float) -> list[Spot]:
    return _gather(1 - at, side)


def _appear(at: float, side: float) -> list[Spot]:
    return [(0.5 + 0.15 * side, 0.5, 0.22, at)]


def _vanish(at: float, side: float) -> list[Spot]:
    return [(0.5 + 0.15 * side, 0.5, 0.22, 1 - at)]


def _sweep(at: float, side: float) -> list[Spot]:
    return [(0.5 + math.copysign(0.35 - 0.7 * at, side), 0.5 + 0.1 * side, 0.13, 1)]


def _circle(at: float, side: float) -> list[Spot]:
    angle = math.copysign(math.tau * at, side)
    return [(0.5 + 0.26 * math.sin(angle), 0.5 - 0.26 * math.cos(angle), 0.12, 1)]


MOTIONS: dict[str, Callable[[float, float], list[Spot]]] = {
    "rising": _rise,
    "falling": _fall,
    "growing": _grow,
    "shrinking": _shrink,
    "gathering": _gather,
    "parting": _part,
    "appearing": _appear,
    "vanishing": _vanish,
    "sweeping": _sweep,
    "circling": _circle,
}
"""The classes. Each motion and its reverse show the same frames, so that only their order tells them apart; none changes its class when mirrored."""


@dataclass(frozen=True)
class GeneratedSet:
    """What a generated set holds."""

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

    @property
    def recipe(self) -> Recipe:
        return Recipe("kinetics", {"version": _VERSION, **dataclasses.asdict(self)})

    def clips(self) -> Iterator[Take]:
        """Every clip, class by class."""
        for split, count in zip(SPLITS, (self.train_per_class, self.val_per_class), strict=True):
            yield from (
                Take(split, label, number)
                for label in range(self.classes)
                for number in range(count)
            )


@dataclass(frozen=True)
class Take:
    """Names one clip: the `number`-th of its class in its split."""

    split: str
    label: int
    number: int

    @property
    def folder(self) -> str:
        return f"{self.split}/{tuple(MOTIONS)[self.label]}/clip_{self.number + 1:04d}"


DEFAULT_SET = GeneratedSet()


def generate(
    spec: GeneratedSet = DEFAULT_SET, *, root: Path | None = None, narrate: Narrator = ProgressBar
) -> Path:
    """The folder of the generated set, made if the cache does not hold it."""
    what = plural(spec.classes * (spec.train_per_class + spec.val_per_class), "clip")
    return ensure(
        spec.recipe,
        lambda folder, progress: write_set(spec, folder, progress),
        what=what,
        root=root,
        narrate=narrate,
    )


def write_set(spec: GeneratedSet, folder: Path, progress: Progress) -> None:
    """Write the clips and their lists into an empty folder, on every core that this process may use."""
    takes = list(spec.clips())
    counts = {}
    with ThreadPoolExecutor(_usable_cores()) as pool:
        for done, (take, count) in enumerate(
            zip(takes, pool.map(lambda take: _write_clip(spec, take, folder), takes), strict=True),
            start=1,
        ):
            counts[take] = count
            progress(done, len(takes))
    for split in SPLITS:
        lines = (
            f"{take.folder} {count} {take.label}\n"
            for take, count in counts.items()
            if take.split == split
        )
        (folder / LIST_NAMES[split][0]).write_text("".join(lines), encoding="utf-8")


def _usable_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _write_clip(spec: GeneratedSet, take: Take, folder: Path) -> int:
    (folder / take.folder).mkdir(parents=True)
    count = 0
    for count, image in enumerate(render(spec, take), start=1):
        buffer = io.BytesIO()
        image.save(buffer, "JPEG", quality=spec.quality)
        (folder / take.folder / frame_name(count)).write_bytes(buffer.getvalue())
    return count


def render(spec: GeneratedSet, take: Take) -> Iterator[Image.Image]:
    """The frames of a clip: one or two shapes that move before a scene that stands still, watched by a hand that shakes a little."""
    from PIL import Image

    rng = np.random.default_rng((spec.seed, 3, SPLITS.index(take.split), take.label, take.number))
    scene = _scene(rng, spec.width, spec.height)
    colour = _pair_colour(rng, take.label // 2)
    corners, side, size = int(rng.integers(3, 9)), rng.uniform(-1, 1), rng.uniform(1.2, 1.5)
    shift = rng.uniform(-0.06, 0.06, 2)
    frames = int(rng.integers(spec.least_frames, spec.most_frames + 1))
    for number in range(frames):
        across, down = (rng.normal(0, 0.004, 2) + shift).tolist()
        spots = MOTIONS[tuple(MOTIONS)[take.label]](number / (frames - 1), side)
        moved = [(x + across, y + down, radius * size, shown) for x, y, radius, shown in spots]
        yield Image.composite(
            Image.new("RGB", scene.size, colour), scene, _mask(moved, corners, scene.size)
        )


def _pair_colour(rng: np.random.Generator, pair: int) -> tuple[int, ...]:
    """A motion and its reverse share a hue, which tells the pair at a glance; the rest is left to time."""
    hue = pair / (len(MOTIONS) // 2) + rng.uniform(-0.03, 0.03)
    return tuple(
        round(255 * part)
        for part in colorsys.hsv_to_rgb(hue % 1, rng.uniform(0.8, 1), rng.uniform(0.85, 1))
    )


def _scene(rng: np.random.Generator, width: int, height: int) -> Image.Image:
    from PIL import Image

    soft = Image.fromarray(rng.integers(20, 140, (4, 5), dtype=np.uint8)).resize(
        (width, height), Image.Resampling.BICUBIC
    )
    grain = Image.fromarray(
        rng.integers(0, 256, (height // 3, width // 3, 3), dtype=np.uint8)
    ).resize((width, height), Image.Resampling.BILINEAR)
    return Image.blend(soft.convert("RGB"), grain, 0.12)


def _mask(spots: list[Spot], corners: int, size: tuple[int, int]) -> Image.Image:
    """How much of the shapes' colour each pixel has."""
    from PIL import Image, ImageDraw

    width, height = size
    mask = Image.new("L", size)
    for x, y, radius, shown in spots:
        angles = (math.tau * corner / corners for corner in range(corners))
        outline = [
            (
                x * width + radius * height * math.sin(angle),
                y * height - radius * height * math.cos(angle),
            )
            for angle in angles
        ]
        ImageDraw.Draw(mask).polygon(outline, fill=round(255 * shown))
    return mask
