"""Reads a Cityscapes tree: its frames, what is wrong with it, and the crops that training takes from it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from profkit.errors import UnreadableError
from profkit.text import safe_text
from profkit.workloads.training.samples import BadSampleError, BadSamples

if TYPE_CHECKING:
    from PIL import Image

Bytes = npt.NDArray[np.uint8]
Labels = npt.NDArray[np.int64]
Size = tuple[int, int]
"""Width and height."""

CLASSES = 19
IGNORED = 255
IMAGES, LABELS = "leftImg8bit", "gtFine"
IMAGE_END, LABEL_END, RAW_LABEL_END = (
    "_leftImg8bit.png",
    "_gtFine_labelTrainIds.png",
    "_gtFine_labelIds.png",
)
FRAME_SIZE = (2048, 1024)

SCALES = (0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0)
CHANGE = 0.4
HUE_SHIFT = 18
GREY = 127


@dataclass(frozen=True, slots=True)
class Frame:
    """One image and the map of its pixels' classes."""

    image: str
    labels: str


@dataclass(frozen=True)
class StreetIndex:
    """One split of a tree, in the order of cities and frames."""

    root: Path
    split: str
    frames: tuple[Frame, ...]


# The tree


def check_tree(path: Path, split: str = "train") -> StreetIndex:
    """The frames of a split. One that has its image or its labels alone is kept: the file that is missing is found when it is read.

    An `UnreadableError` says what is missing where.
    """
    try:
        return _index_tree(path, split)
    except OSError as error:
        raise UnreadableError(
            f"{safe_text(str(error.filename or path))}: cannot be read: {error.strerror or error}"
        ) from error


def _index_tree(path: Path, split: str) -> StreetIndex:
    _check_layout(path, split)
    images = set(_stems(path / IMAGES / split, IMAGE_END))
    labels = set(_stems(path / LABELS / split, LABEL_END))
    _check_files(path, split, images, labels)
    frames = (
        Frame(
            f"{path / IMAGES / split / stem}{IMAGE_END}",
            f"{path / LABELS / split / stem}{LABEL_END}",
        )
        for stem in sorted(images | labels)
    )
    return StreetIndex(path, split, tuple(frames))


def _stems(folder: Path, end: str) -> Iterator[str]:
    """The files of all cities that end so, as `city/city_000000_000019`."""
    for city in sorted(os.listdir(folder)):
        if (folder / city).is_dir():
            yield from (
                f"{city}/{name.removesuffix(end)}"
                for name in os.listdir(folder / city)
                if name.endswith(end)
            )


def _check_layout(path: Path, split: str) -> None:
    shown = safe_text(str(path))
    if not path.exists():
        raise UnreadableError(f"{shown}: no such folder")
    if path.is_file():
        raise UnreadableError(
            f"{shown}: a file, not the folder that holds '{IMAGES}' and '{LABELS}'"
        )
    for name, package in (
        (IMAGES, "leftImg8bit_trainvaltest.zip"),
        (LABELS, "gtFine_trainvaltest.zip"),
    ):
        if not (path / name).is_dir():
            raise UnreadableError(
                f"{shown}: no '{name}' folder in it{_what_it_is(path) or f'; unpack {package} there'}"
            )
        if not (path / name / split).is_dir():
            raise UnreadableError(
                f"{safe_text(str(path / name))}: no '{split}' folder in it; unpack {package} in {shown}"
            )


def _what_it_is(path: Path) -> str:
    above = path.absolute().parent
    return (
        f"; give the folder above it: {safe_text(str(above))}"
        if (above / IMAGES).is_dir() and (above / LABELS).is_dir()
        else ""
    )


def _check_files(path: Path, split: str, images: set[str], labels: set[str]) -> None:
    if not images:
        raise UnreadableError(
            f"{safe_text(str(path / IMAGES / split))}: no <city>/*{IMAGE_END} in it"
        )
    if labels & images:
        return
    shown = safe_text(str(path / LABELS / split))
    if next(_stems(path / LABELS / split, RAW_LABEL_END), None):
        raise UnreadableError(
            f"{shown}: it has labelIds, but no labelTrainIds; make these with csCreateTrainIdLabelImgs of cityscapesscripts"
        )
    raise UnreadableError(
        f"{shown}: no <city>/*{LABEL_END} in it for any of the {len(images)} images of {IMAGES}/{split}"
    )


# Reading


def read_frame(frame: Frame, bad: BadSamples) -> tuple[Image.Image, Image.Image]:
    """The image and its map of classes, where everything that is no class is `IGNORED`."""
    image = bad.image(frame.image, _told_size(frame.labels))
    labels = bad.image(frame.labels, image.size).getchannel(0)
    if image.size != labels.size:
        raise BadSampleError(
            f"{safe_text(frame.image)}: {_by(image.size)} pixels, but its labels have {_by(labels.size)}"
        )
    return image, labels.point([value if value < CLASSES else IGNORED for value in range(256)])


def _told_size(path: str) -> Size:
    """The size in a file's header; one that cannot be read would have had the published size."""
    from PIL import Image

    try:
        with Image.open(path) as image:
            size: Size = image.size
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):
        return FRAME_SIZE
    return size


def _by(size: Size) -> str:
    return f"{size[0]}x{size[1]}"


def read_whole(frame: Frame, bad: BadSamples) -> tuple[npt.NDArray[np.float32], Labels]:
    """A frame for evaluation: as it is, normalised."""
    image, labels = read_frame(frame, bad)
    return normalise(np.asarray(image)), np.asarray(labels, dtype=np.int64)


# Training crops, as PaddleSeg makes them


class StreetCrops:
    """Crops of scaled, mirrored and recoloured frames: the image (channels first, -1 to 1) and its classes."""

    def __init__(self, index: StreetIndex, crop: Size, seed: int, bad: BadSamples) -> None:
        self.frames = index.frames
        self.crop = crop
        self.seed = seed
        self.bad = bad

    def __len__(self) -> int:
        return len(self.frames)

    def __getitem__(self, key: tuple[int, int]) -> tuple[npt.NDArray[np.float32], Labels]:
        epoch, index = key
        rng = np.random.default_rng((self.seed, epoch, index))
        image, labels = scale(*read_frame(self.frames[index], self.bad), float(rng.choice(SCALES)))
        pixels, classes = cut(np.asarray(image), np.asarray(labels), self.crop, rng)
        if rng.random() < 1 / 2:
            pixels, classes = pixels[:, ::-1], classes[:, ::-1]
        return normalise(recolour(pixels, rng)), np.ascontiguousarray(classes, dtype=np.int64)


def scale(
    image: Image.Image, labels: Image.Image, factor: float
) -> tuple[Image.Image, Image.Image]:
    from PIL import Image as Images

    size = (round(image.width * factor), round(image.height * factor))
    return image.resize(size, Images.Resampling.BILINEAR), labels.resize(
        size, Images.Resampling.NEAREST
    )


def cut(pixels: Bytes, classes: Bytes, crop: Size, rng: np.random.Generator) -> tuple[Bytes, Bytes]:
    """The same random part of both; what is smaller than the crop is filled up, with grey and with what is ignored."""
    top, left = (
        int(rng.integers(max(0, have - want) + 1))
        for have, want in zip(classes.shape, reversed(crop), strict=True)
    )
    return _cut_out(pixels, top, left, crop, GREY), _cut_out(classes, top, left, crop, IGNORED)


def _cut_out(plane: Bytes, top: int, left: int, crop: Size, fill: int) -> Bytes:
    width, height = crop
    part = plane[top : top + height, left : left + width]
    if part.shape[:2] == (height, width):
        return part
    filled: Bytes = np.full((height, width, *plane.shape[2:]), fill, dtype=np.uint8)
    filled[: part.shape[0], : part.shape[1]] = part
    return filled


def recolour(pixels: Bytes, rng: np.random.Generator) -> Bytes:
    """Brightness, contrast, saturation and hue, each changed in every other image, in random order."""
    from PIL import Image, ImageEnhance

    image: Any = Image.fromarray(np.ascontiguousarray(pixels))
    changes = (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color, None)
    for place in rng.permutation(len(changes)):
        change, applied, amount = changes[place], rng.random() < 1 / 2, float(rng.uniform(-1, 1))
        if applied:
            image = (
                change(image).enhance(1 + CHANGE * amount)
                if change
                else _turn_hue(image, round(HUE_SHIFT * amount))
            )
    return np.asarray(image)


def _turn_hue(image: Image.Image, shift: int) -> Image.Image:
    from PIL import Image as Images

    hue, saturation, value = image.convert("HSV").split()
    turned = hue.point([(step + shift) % 256 for step in range(256)])
    return Images.merge("HSV", (turned, saturation, value)).convert("RGB")


def normalise(pixels: Bytes) -> npt.NDArray[np.float32]:
    planes: npt.NDArray[np.float32] = np.ascontiguousarray(
        pixels.transpose(2, 0, 1), dtype=np.float32
    )
    planes /= 127.5
    planes -= 1
    return planes
