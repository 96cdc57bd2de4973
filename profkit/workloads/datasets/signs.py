"""A generated set in ICDAR2015's tree: cluttered scenes with words on signs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import numpy.typing as npt

from profkit.progress import Progress
from profkit.text import plural
from profkit.workloads.datasets.generated import GeneratedTree, encode_image, write_all
from profkit.workloads.datasets.icdar import FOLDERS, ILLEGIBLE, Word

if TYPE_CHECKING:
    from PIL import Image, ImageDraw

Quad = npt.NDArray[np.float64]
Size = tuple[int, int]
"""Width and height."""

LETTERS = "ABCDEFGHIKLMNOPRSTUVWXYabdeghkmnopqrstuyz0123456789"
FONT_SIZE = 64
MARGIN = 8
"""Pixels of plain ground around the letters of a sign."""

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
    version: ClassVar[int] = 2

    train: int = 60
    test: int = 12
    width: int = 1280
    height: int = 720
    quality: int = 90
    seed: int = 0

    def describe(self) -> str:
        return f"{plural(self.train + self.test, 'scene')} with text"

    def write(self, folder: Path, progress: Progress) -> None:
        """Write images and annotations with the line ends of the published files."""
        pictures = [("train", number) for number in range(1, self.train + 1)]
        pictures += [("test", number) for number in range(1, self.test + 1)]
        for split in FOLDERS:
            for name in FOLDERS[split]:
                (folder / name).mkdir()
        write_all(pictures, lambda picture: self._write_scene(folder, *picture), progress)

    def _write_scene(self, folder: Path, split: str, number: int) -> None:
        image, words = render(self, split, number)
        images, truths = (folder / name for name in FOLDERS[split])
        file = encode_image(image, "JPEG", quality=self.quality)
        (images / f"img_{number}.jpg").write_bytes(file)
        text = ""
        for word in words:
            values = np.ravel(word.corners).tolist()
            text += ",".join([*map(str, values), word.text]) + "\r\n"
        # `utf-8-sig` writes the byte order mark that the published files have.
        (truths / f"gt_img_{number}.txt").write_text(text, encoding="utf-8-sig", newline="")


def render(spec: GeneratedSigns, split: str, number: int) -> tuple[Image.Image, tuple[Word, ...]]:
    """Draw a cluttered scene with a few words, turned and seen at a slant.

    About one in eight words is illegible.
    """
    rng = np.random.default_rng((spec.seed, 2, tuple(FOLDERS).index(split), number))
    image = _draw_background(rng, spec.width, spec.height)
    words: list[Word] = []
    taken: list[Quad] = []
    for _ in range(int(rng.integers(4, 9))):
        text, legible = _draw_text(rng), bool(rng.random() > ILLEGIBLE_SHARE)
        sign = _draw_sign(rng, text, legible=legible)
        quad = _find_place(rng, sign.width / sign.height, (spec.width, spec.height), taken)
        if quad is None:
            continue
        taken.append(quad)
        _paste(image, sign, quad)
        corners = tuple((round(x), round(y)) for x, y in quad.tolist())
        words.append(Word(corners, text if legible else ILLEGIBLE))
    return image, tuple(words)


def _draw_background(rng: np.random.Generator, width: int, height: int) -> Image.Image:
    """Draw soft colours, grain, and shapes and lines that are not text."""
    from PIL import Image, ImageDraw

    coarse = Image.fromarray(rng.integers(40, 216, (6, 9, 3), dtype=np.uint8))
    fine = rng.integers(0, 256, (height // 2, width // 2, 3), dtype=np.uint8)
    soft = coarse.resize((width, height), Image.Resampling.BICUBIC)
    grain = Image.fromarray(fine).resize((width, height), Image.Resampling.BILINEAR)
    image = Image.blend(soft, grain, 0.12)
    draw = ImageDraw.Draw(image)
    for _ in range(CLUTTER):
        _draw_clutter(rng, draw, (width, height))
    return image


def _draw_clutter(rng: np.random.Generator, draw: ImageDraw.ImageDraw, size: Size) -> None:
    shapes: tuple[Callable[..., None], ...] = (draw.rectangle, draw.ellipse)
    box = rng.uniform((0, 0, 0.02, 0.02), (1, 1, 0.25, 0.25)) * (size + size)
    left, top, across, down = box.tolist()
    colour = tuple(rng.integers(30, 226, 3).tolist())
    shapes[rng.integers(2)]((left, top, left + across, top + down), fill=colour)
    ends = (rng.random(4) * (size + size)).tolist()
    draw.line(ends, fill=tuple(rng.integers(30, 226, 3).tolist()), width=int(rng.integers(1, 6)))


def _draw_text(rng: np.random.Generator) -> str:
    """Draw a made-up word; some have a comma, as real transcriptions do."""
    chosen = rng.integers(len(LETTERS), size=rng.integers(3, 8)).tolist()
    letters = "".join(LETTERS[index] for index in chosen)
    if rng.random() < 0.1:
        return letters[:2] + "," + letters[2:]
    return letters


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
    """Return a quadrilateral inside the image and clear of the others, if a few tries find one."""
    for _ in range(TRIES):
        quad = _draw_quad(rng, aspect, size)
        low, high = quad.min(axis=0), quad.max(axis=0)
        inside = bool((low >= 0).all() and (high < size).all())
        if inside and all(_is_clear(low, high, other) for other in taken):
            return quad
    return None


def _is_clear(low: Quad, high: Quad, other: Quad) -> bool:
    return bool((high < other.min(axis=0)).any() or (low > other.max(axis=0)).any())


def _draw_quad(rng: np.random.Generator, aspect: float, size: Size) -> Quad:
    tall = rng.uniform(0.1, 0.24) * size[1]
    turn = rng.normal(0, 0.15)
    corners = np.array([(-aspect, -1), (aspect, -1), (aspect, 1), (-aspect, 1)]) * tall / 2
    corners += rng.uniform(-0.1, 0.1, (4, 2)) * tall
    turned = corners @ np.array([(np.cos(turn), np.sin(turn)), (-np.sin(turn), np.cos(turn))])
    placed: Quad = np.round(turned + rng.random(2) * size)
    return placed


def _paste(image: Image.Image, sign: Image.Image, quad: Quad) -> None:
    """Draw the sign into the quadrilateral as a plane in space would appear."""
    from PIL import Image, ImageDraw

    left, top = (int(edge) for edge in quad.min(axis=0))
    right, bottom = (int(edge) for edge in quad.max(axis=0))
    size = (right - left + 1, bottom - top + 1)
    own = quad - (left, top)
    coefficients = _find_perspective(own, sign.size)
    seen = sign.transform(
        size, Image.Transform.PERSPECTIVE, coefficients, Image.Resampling.BILINEAR
    )
    mask = Image.new("L", size)
    ImageDraw.Draw(mask).polygon([(x, y) for x, y in own.tolist()], fill=255)
    image.paste(seen, (left, top), mask)


def _find_perspective(quad: Quad, size: Size) -> list[float]:
    """Return the eight coefficients by which Pillow finds a sign's pixel for each of the image."""
    width, height = size
    ends = ((0, 0), (width, 0), (width, height), (0, height))
    rows, wanted = [], []
    for (x, y), (u, v) in zip(quad.tolist(), ends, strict=True):
        rows += [(x, y, 1, 0, 0, 0, -u * x, -u * y), (0, 0, 0, x, y, 1, -v * x, -v * y)]
        wanted += [u, v]
    solved = np.linalg.solve(np.array(rows, dtype=float), np.array(wanted, dtype=float))
    coefficients: list[float] = solved.tolist()
    return coefficients
