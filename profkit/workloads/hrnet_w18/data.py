"""Samples of HRNetW18: crops of street scenes for training, whole frames for evaluation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from profkit.text import safe_text
from profkit.workloads.base import Key
from profkit.workloads.datasets.cityscapes import CLASSES, IGNORED, Frame, StreetIndex
from profkit.workloads.training.samples import BadSampleError, BadSamples, header_size

if TYPE_CHECKING:
    from PIL import Image

Bytes = npt.NDArray[np.uint8]
Pixels = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]
Size = tuple[int, int]
"""Width and height."""

FRAME_SIZE = (2048, 1024)
SCALES = (0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0)
COLOUR_CHANGE = 0.4
"""The most by which brightness, contrast and saturation change."""

HUE_SHIFT = 18
"""The most by which the hue changes, in steps of 256 per turn."""

GREY = 127
"""Fills crops beyond the edge of the image; it is zero after normalisation, nearly."""


def read_frame(frame: Frame, bad: BadSamples) -> tuple[Image.Image, Image.Image]:
    """Return the image and its map of classes; pixels without a class are `IGNORED`."""
    image = bad.image(frame.image, header_size(frame.labels) or FRAME_SIZE)
    labels = bad.image(frame.labels, image.size).getchannel(0)
    if image.size != labels.size:
        raise BadSampleError(
            f"{safe_text(frame.image)}: {image.width}x{image.height} pixels, "
            f"but its labels have {labels.width}x{labels.height}"
        )
    known = list(range(CLASSES))
    return image, labels.point(known + [IGNORED] * (256 - CLASSES))


def read_whole(frame: Frame, bad: BadSamples) -> tuple[Pixels, Labels]:
    """Return a whole frame for evaluation, normalised."""
    image, labels = read_frame(frame, bad)
    return normalise(np.asarray(image)), np.asarray(labels, dtype=np.int64)


@dataclass(frozen=True)
class StreetCrops:
    """Crops of scaled, mirrored and recoloured frames, as PaddleSeg makes them.

    A sample is the image (channels first, -1 to 1) and its classes.
    """

    index: StreetIndex
    crop: Size
    seed: int
    bad: BadSamples

    def __len__(self) -> int:
        return len(self.index.frames)

    def __getitem__(self, key: Key) -> tuple[Pixels, Labels]:
        epoch, index = key
        rng = np.random.default_rng((self.seed, epoch, index))
        image, labels = scale(
            *read_frame(self.index.frames[index], self.bad), float(rng.choice(SCALES))
        )
        pixels, classes = cut(np.asarray(image), np.asarray(labels), self.crop, rng)
        if rng.random() < 1 / 2:
            pixels, classes = pixels[:, ::-1], classes[:, ::-1]
        return normalise(recolour(pixels, rng)), np.ascontiguousarray(classes, dtype=np.int64)


def scale(
    image: Image.Image, labels: Image.Image, factor: float
) -> tuple[Image.Image, Image.Image]:
    """Scale an image and its labels."""
    from PIL import Image as Images

    size = (round(image.width * factor), round(image.height * factor))
    resized = image.resize(size, Images.Resampling.BILINEAR)
    return resized, labels.resize(size, Images.Resampling.NEAREST)


def cut(pixels: Bytes, classes: Bytes, crop: Size, rng: np.random.Generator) -> tuple[Bytes, Bytes]:
    """Cut the same random part out of both.

    If a frame is smaller than the crop, the rest is grey, and ignored.
    """
    width, height = crop
    top = int(rng.integers(max(0, classes.shape[0] - height) + 1))
    left = int(rng.integers(max(0, classes.shape[1] - width) + 1))
    parts = []
    for plane, fill in ((pixels, GREY), (classes, IGNORED)):
        part = plane[top : top + height, left : left + width]
        if part.shape[:2] != (height, width):
            filled: Bytes = np.full((height, width, *plane.shape[2:]), fill, dtype=np.uint8)
            filled[: part.shape[0], : part.shape[1]] = part
            part = filled
        parts.append(part)
    return parts[0], parts[1]


def recolour(pixels: Bytes, rng: np.random.Generator) -> Bytes:
    """Change brightness, contrast, saturation and hue in random order, each half of the time."""
    from PIL import Image, ImageEnhance

    image: Any = Image.fromarray(np.ascontiguousarray(pixels))
    changes = (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color, None)
    for place in rng.permutation(len(changes)):
        change, applied, amount = changes[place], rng.random() < 1 / 2, float(rng.uniform(-1, 1))
        if applied and change:
            image = change(image).enhance(1 + COLOUR_CHANGE * amount)
        elif applied:
            hue, saturation, value = image.convert("HSV").split()
            shift = round(HUE_SHIFT * amount)
            turned = hue.point(np.roll(np.arange(256), -shift).tolist())
            image = Image.merge("HSV", (turned, saturation, value)).convert("RGB")
    return np.asarray(image)


def normalise(pixels: Bytes) -> Pixels:
    """Return the pixels with channels first, from -1 to 1."""
    planes: Pixels = np.ascontiguousarray(pixels.transpose(2, 0, 1), dtype=np.float32)
    planes /= 127.5
    planes -= 1
    return planes


def made_up_batch(count: int, crop: Size, seed: int) -> tuple[Pixels, Labels]:
    """Return noise, with a random class for each pixel."""
    rng = np.random.default_rng(seed)
    width, height = crop
    images = rng.standard_normal((count, 3, height, width), dtype=np.float32)
    return images, rng.integers(0, CLASSES, (count, height, width))
