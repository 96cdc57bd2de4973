"""A generated set in ICDAR2015's tree: cluttered scenes with words on signs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import numpy.typing as npt

from profkit.progress import Progress
from profkit.workloads.datasets.generated import (
    GeneratedTree,
    Picture,
    encode_image,
    list_pictures,
    soft_background,
    write_all,
)
from profkit.workloads.datasets.icdar import FOLDERS, ILLEGIBLE, Word

if TYPE_CHECKING:
    from PIL import Image

Quad = npt.NDArray[np.float64]
Size = tuple[int, int]
"""Width and height."""

LETTERS = "ABCDEFGHIKLMNOPRSTUVWXYabdeghkmnopqrstuyz0123456789"
FONT_SIZE = 64
MARGIN = 8
"""Pixels of plain ground around the letters of a sign."""

COMMA_SHARE = 0.1
"""Share of words with a comma, as real transcriptions have them."""

ILLEGIBLE_SHARE = 0.125
ILLEGIBLE_BLUR = 14
CLUTTER = 14
"""Shapes, and as many lines, behind the words."""

TRIES = 40
"""Places that are tried for a word before it is dropped."""


@dataclass(frozen=True)
class GeneratedSigns(GeneratedTree):
    """The contents of a generated set."""

    layout: ClassVar[str] = "icdar2015"
    noun: ClassVar[str] = "text scene"
    version: ClassVar[int] = 2

    train: int = 60
    test: int = 12
    width: int = 1280
    height: int = 720
    quality: int = 90
    seed: int = 0

    def write(self, folder: Path, progress: Progress) -> None:
        """Write images and annotations with the line ends of the published files."""
        for split in FOLDERS:
            for name in FOLDERS[split]:
                (folder / name).mkdir()

        def write_scene(picture: Picture) -> None:
            number = picture.number + 1
            image, words = render(self, picture.split, number)
            images, truths = FOLDERS[picture.split]
            file = encode_image(image, "JPEG", quality=self.quality)
            (folder / images / f"img_{number}.jpg").write_bytes(file)
            text = ""
            for word in words:
                values = np.ravel(word.corners).tolist()
                text += ",".join([*map(str, values), word.text]) + "\r\n"
            # `utf-8-sig` writes the byte order mark that the published files have.
            truth = folder / truths / f"gt_img_{number}.txt"
            truth.write_text(text, encoding="utf-8-sig", newline="")

        write_all(list_pictures({"train": self.train, "test": self.test}), write_scene, progress)


def render(spec: GeneratedSigns, split: str, number: int) -> tuple[Image.Image, tuple[Word, ...]]:
    """Draw a cluttered scene with a few words, turned and seen at a slant.

    About one in eight words is illegible.
    """
    from PIL import ImageDraw

    rng = np.random.default_rng((spec.seed, 2, tuple(FOLDERS).index(split), number))
    # Soft colours, grain, and shapes and lines that are not text.
    coarse = rng.integers(40, 216, (6, 9, 3), dtype=np.uint8)
    fine = rng.integers(0, 256, (spec.height // 2, spec.width // 2, 3), dtype=np.uint8)
    image = soft_background(coarse, fine, (spec.width, spec.height))
    draw = ImageDraw.Draw(image)
    shapes: tuple[Callable[..., None], ...] = (draw.rectangle, draw.ellipse)
    scale = (spec.width, spec.height, spec.width, spec.height)
    for _ in range(CLUTTER):
        box = rng.uniform((0, 0, 0.02, 0.02), (1, 1, 0.25, 0.25)) * scale
        left, top, across, down = box.tolist()
        colour = tuple(rng.integers(30, 226, 3).tolist())
        shapes[rng.integers(2)]((left, top, left + across, top + down), fill=colour)
        ends = (rng.random(4) * scale).tolist()
        colour = tuple(rng.integers(30, 226, 3).tolist())
        draw.line(ends, fill=colour, width=int(rng.integers(1, 6)))
    words: list[Word] = []
    taken: list[Quad] = []
    for _ in range(int(rng.integers(4, 9))):
        chosen = rng.integers(len(LETTERS), size=rng.integers(3, 8)).tolist()
        text = "".join(LETTERS[index] for index in chosen)
        if rng.random() < COMMA_SHARE:
            text = text[:2] + "," + text[2:]
        legible = bool(rng.random() > ILLEGIBLE_SHARE)
        sign = _draw_sign(rng, text, legible=legible)
        quad = _find_place(rng, sign.width / sign.height, (spec.width, spec.height), taken)
        if quad is None:
            continue
        taken.append(quad)
        _paste(image, sign, quad)
        corners = tuple((round(x), round(y)) for x, y in quad.tolist())
        words.append(Word(corners, text if legible else ILLEGIBLE))
    return image, tuple(words)


def _draw_sign(rng: np.random.Generator, text: str, *, legible: bool) -> Image.Image:
    """Draw letters on a plain ground of contrasting lightness."""
    from PIL import Image, ImageDraw, ImageFilter, ImageFont

    font = ImageFont.load_default(FONT_SIZE)
    left, top, right, bottom = font.getbbox(text)
    dark, light = rng.integers(0, 70, 3), rng.integers(185, 256, 3)
    ink, ground = (dark, light) if rng.random() < 0.5 else (light, dark)
    size = (int(right - left) + 2 * MARGIN, int(bottom - top) + 2 * MARGIN)
    sign = Image.new("RGB", size, tuple(ground.tolist()))
    place = (MARGIN - left, MARGIN - top)
    ImageDraw.Draw(sign).text(place, text, fill=tuple(ink.tolist()), font=font)
    if legible:
        return sign
    return sign.filter(ImageFilter.GaussianBlur(ILLEGIBLE_BLUR))


def _find_place(
    rng: np.random.Generator, aspect: float, size: Size, taken: list[Quad]
) -> Quad | None:
    """Return a quadrilateral inside the image and clear of the others, if there is one."""
    flat = np.array([(-aspect, -1), (aspect, -1), (aspect, 1), (-aspect, 1)])
    for _ in range(TRIES):
        tall = rng.uniform(0.1, 0.24) * size[1]
        turn = rng.normal(0, 0.15)
        corners = flat * tall / 2 + rng.uniform(-0.1, 0.1, (4, 2)) * tall
        turned = corners @ np.array([(np.cos(turn), np.sin(turn)), (-np.sin(turn), np.cos(turn))])
        quad: Quad = np.round(turned + rng.random(2) * size)
        low, high = quad.min(axis=0), quad.max(axis=0)
        clear = bool((low >= 0).all() and (high < size).all())
        for other in taken:
            apart = (high < other.min(axis=0)) | (low > other.max(axis=0))
            clear = clear and bool(apart.any())
        if clear:
            return quad
    return None


def _paste(image: Image.Image, sign: Image.Image, quad: Quad) -> None:
    """Draw the sign into the quadrilateral as a plane in space would appear."""
    from PIL import Image, ImageDraw

    left, top = map(int, quad.min(axis=0))
    right, bottom = map(int, quad.max(axis=0))
    size = (right - left + 1, bottom - top + 1)
    own = quad - (left, top)
    # The eight coefficients by which Pillow finds a sign's pixel for each pixel of the image.
    width, height = sign.size
    ends = ((0, 0), (width, 0), (width, height), (0, height))
    rows: list[tuple[float, ...]] = []
    for (x, y), (u, v) in zip(own.tolist(), ends, strict=True):
        rows += [(x, y, 1, 0, 0, 0, -u * x, -u * y), (0, 0, 0, x, y, 1, -v * x, -v * y)]
    coefficients = np.linalg.solve(np.array(rows, dtype=float), np.ravel(ends).astype(float))
    seen = sign.transform(
        size, Image.Transform.PERSPECTIVE, coefficients.tolist(), Image.Resampling.BILINEAR
    )
    mask = Image.new("L", size)
    ImageDraw.Draw(mask).polygon(own.ravel().tolist(), fill=255)
    image.paste(seen, (left, top), mask)
