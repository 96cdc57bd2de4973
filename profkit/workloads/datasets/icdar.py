"""ICDAR2015's tree: photographs of scenes with text, and beside each a file of quadrilaterals. Reads any, and makes a generated one."""

from __future__ import annotations

import dataclasses
import io
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from profkit.cache import Recipe, ensure
from profkit.errors import UnreadableError
from profkit.progress import Narrator, Progress, ProgressBar
from profkit.text import plural, safe_text

if TYPE_CHECKING:
    from PIL import Image, ImageDraw, ImageFont

Corners = tuple[tuple[int, int], ...]
Bytes = npt.NDArray[np.uint8]
Quad = npt.NDArray[np.float64]

FOLDERS = {
    "train": ("ch4_training_images", "ch4_training_localization_transcription_gt"),
    "test": ("ch4_test_images", "ch4_test_localization_transcription_gt"),
}
"""The folders of images and of annotations of each split, as the data set and PSENet's code name them."""

ILLEGIBLE = "###"
IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png")


@dataclass(frozen=True)
class Word:
    """One quadrilateral, clockwise from the upper left as it is read, and what is written in it."""

    corners: Corners
    text: str

    @property
    def legible(self) -> bool:
        """Others count neither for nor against a detector."""
        return self.text != ILLEGIBLE


@dataclass(frozen=True)
class Scene:
    """One image and its words."""

    path: str
    words: tuple[Word, ...]


@dataclass(frozen=True)
class TextIndex:
    """One split of a tree, in the order of the images' names."""

    root: Path
    split: str
    scenes: tuple[Scene, ...]


def check_tree(path: Path, split: str = "train") -> TextIndex:
    """All images of a split with their words. An `UnreadableError` says what is missing where, or which line of which file is wrong."""
    try:
        return _index_tree(path, split)
    except OSError as error:
        raise UnreadableError(
            f"{safe_text(str(error.filename or path))}: cannot be read: {error.strerror or error}"
        ) from error


def _index_tree(path: Path, split: str) -> TextIndex:
    _check_layout(path, split)
    images, truths = (path / name for name in FOLDERS[split])
    names = sorted(
        (name for name in os.listdir(images) if name.lower().endswith(IMAGE_SUFFIXES)),
        key=_by_number,
    )
    if not names:
        raise UnreadableError(f"{safe_text(str(images))}: no JPEG or PNG files in it")
    annotations = set(os.listdir(truths))
    if alone := [name for name in names if _truth_name(name) not in annotations]:
        missing = f"no '{safe_text(_truth_name(alone[0]))}' for {safe_text(alone[0])} ({len(alone)} of {plural(len(names), 'image')} have none)"
        raise UnreadableError(f"{safe_text(str(truths))}: {missing}")
    scenes = tuple(
        Scene(str(images / name), read_words(truths / _truth_name(name))) for name in names
    )
    return TextIndex(path, split, scenes)


def _by_number(name: str) -> tuple[int, str]:
    """`img_2` before `img_10`."""
    digits = "".join(filter(str.isdecimal, name))
    return int(digits or 0), name


def _truth_name(image_name: str) -> str:
    return f"gt_{Path(image_name).stem}.txt"


def _check_layout(path: Path, split: str) -> None:
    shown = safe_text(str(path))
    if not path.exists():
        raise UnreadableError(f"{shown}: no such folder")
    if not path.is_dir():
        raise UnreadableError(
            f"{shown}: a file, not the folder that holds ICDAR2015's '{FOLDERS[split][0]}'"
        )
    for needed in FOLDERS[split]:
        if not (path / needed).is_dir():
            raise UnreadableError(f"{shown}: no '{needed}' folder in it{_what_it_is(path)}")


def _what_it_is(path: Path) -> str:
    here = path.absolute()
    known = {name for pair in FOLDERS.values() for name in pair}
    if here.name in known:
        return f"; it is the '{here.name}' folder itself, so give the one above it: {safe_text(str(here.parent))}"
    for below in sorted(entry for entry in path.iterdir() if entry.is_dir()):
        if any((below / name).is_dir() for name in known):
            return f"; the folder below it has some, so give {safe_text(str(below))}"
    if any(path.glob("gt_*.txt")) or any(path.glob("img_*.jpg")):
        return "; it holds images or annotations itself, which must lie in folders named as in the published set"
    return ""


def read_words(path: Path) -> tuple[Word, ...]:
    """The words of one annotation file: eight whole numbers and a transcription a line, commas of its own included."""
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise UnreadableError(
            f"{safe_text(str(path))}: not UTF-8 text: {error.reason} at byte {error.start}"
        ) from error
    return tuple(
        _parse_word(line, f"{safe_text(str(path))}:{number}")
        for number, line in enumerate(lines, start=1)
        if line.strip()
    )


def _parse_word(line: str, where: str) -> Word:
    *numbers, text = line.split(",", 8)
    try:
        values = [int(number) for number in numbers]
    except ValueError:
        values = []
    if len(values) != 8:
        raise UnreadableError(
            f"{where}: not 'x1,y1,x2,y2,x3,y3,x4,y4,transcription': {safe_text(line[:60])}"
        )
    return Word(tuple(zip(values[::2], values[1::2], strict=True)), text.strip())


# The generated set

_VERSION = 2
"""Part of the recipe: raised by each change of the rendering, so that no older set is taken for a new one."""

_LETTERS = "ABCDEFGHIKLMNOPRSTUVWXYabdeghkmnopqrstuyz0123456789"
_FONT_SIZE = 64
_TRIES = 40


@dataclass(frozen=True)
class GeneratedSet:
    """What a generated set holds."""

    train: int = 60
    test: int = 12
    width: int = 1280
    height: int = 720
    quality: int = 90
    seed: int = 0

    @property
    def recipe(self) -> Recipe:
        return Recipe("icdar2015", {"version": _VERSION, **dataclasses.asdict(self)})

    def pictures(self) -> Iterator[tuple[str, int]]:
        """Split and number of every image."""
        yield from (("train", number) for number in range(1, self.train + 1))
        yield from (("test", number) for number in range(1, self.test + 1))


DEFAULT_SET = GeneratedSet()


def generate(
    spec: GeneratedSet = DEFAULT_SET, *, root: Path | None = None, narrate: Narrator = ProgressBar
) -> Path:
    """The folder of the generated set, made if the cache does not hold it."""
    what = f"{plural(spec.train + spec.test, 'scene')} with text"
    return ensure(
        spec.recipe,
        lambda folder, progress: write_set(spec, folder, progress),
        what=what,
        root=root,
        narrate=narrate,
    )


def write_set(spec: GeneratedSet, folder: Path, progress: Progress) -> None:
    """Write images and annotations into an empty folder, with the byte order mark and line ends of the published files."""
    for name in (name for pair in FOLDERS.values() for name in pair):
        (folder / name).mkdir()

    def write(picture: tuple[str, int]) -> None:
        split, number = picture
        image, words = render(spec, split, number)
        images, truths = (folder / name for name in FOLDERS[split])
        (images / f"img_{number}.jpg").write_bytes(_jpeg(image, spec.quality))
        lines = (
            ",".join([*(str(value) for corner in word.corners for value in corner), word.text])
            + "\r\n"
            for word in words
        )
        (truths / f"gt_img_{number}.txt").write_text(
            "".join(lines), encoding="utf-8-sig", newline=""
        )

    pictures = list(spec.pictures())
    with ThreadPoolExecutor(_usable_cores()) as pool:
        for done, _ in enumerate(pool.map(write, pictures), start=1):
            progress(done, len(pictures))


def _usable_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _jpeg(image: Image.Image, quality: int) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=quality)
    return buffer.getvalue()


def render(spec: GeneratedSet, split: str, number: int) -> tuple[Image.Image, tuple[Word, ...]]:
    """A cluttered scene with a few words in it, turned and seen at a slant; of about one in eight nobody could read the letters."""
    rng = np.random.default_rng((spec.seed, 2, tuple(FOLDERS).index(split), number))
    image = _background(rng, spec.width, spec.height)
    words: list[Word] = []
    taken: list[tuple[float, ...]] = []
    for _ in range(int(rng.integers(4, 9))):
        text, legible = _draw_text(rng), bool(rng.random() > 0.125)
        patch = _word_patch(rng, text, legible=legible)
        quad = _find_place(rng, patch.width / patch.height, (spec.width, spec.height), taken)
        if quad is None:
            continue
        taken.append(_bounds(quad))
        _paste(image, patch, quad)
        corners = tuple((round(x), round(y)) for x, y in quad.tolist())
        words.append(Word(corners, text if legible else ILLEGIBLE))
    return image, tuple(words)


def _background(rng: np.random.Generator, width: int, height: int) -> Image.Image:
    """Soft colours, grain, and shapes and lines that are no text."""
    from PIL import Image, ImageDraw

    soft = Image.fromarray(rng.integers(40, 216, (6, 9, 3), dtype=np.uint8)).resize(
        (width, height), Image.Resampling.BICUBIC
    )
    grain = Image.fromarray(
        rng.integers(0, 256, (height // 2, width // 2, 3), dtype=np.uint8)
    ).resize((width, height), Image.Resampling.BILINEAR)
    image = Image.blend(soft, grain, 0.12)
    draw = ImageDraw.Draw(image)
    shapes: tuple[Callable[..., None], ...] = (draw.rectangle, draw.ellipse)
    for _ in range(14):
        left, top, across, down = (
            rng.uniform((0, 0, 0.02, 0.02), (1, 1, 0.25, 0.25)) * (width, height, width, height)
        ).tolist()
        colour = tuple(rng.integers(30, 226, 3).tolist())
        shapes[rng.integers(2)]((left, top, left + across, top + down), fill=colour)
        _draw_stroke(rng, draw, width, height)
    return image


def _draw_stroke(
    rng: np.random.Generator, draw: ImageDraw.ImageDraw, width: int, height: int
) -> None:
    ends = (rng.random(4) * (width, height, width, height)).tolist()
    draw.line(ends, fill=tuple(rng.integers(30, 226, 3).tolist()), width=int(rng.integers(1, 6)))


def _draw_text(rng: np.random.Generator) -> str:
    """A made-up word, with a comma in some, since real transcriptions have them."""
    letters = "".join(
        _LETTERS[index] for index in rng.integers(len(_LETTERS), size=rng.integers(3, 8)).tolist()
    )
    return letters[:2] + "," + letters[2:] if rng.random() < 0.1 else letters


def _word_patch(rng: np.random.Generator, text: str, *, legible: bool) -> Image.Image:
    """The word as on a sign: letters on a plain ground of contrasting lightness."""
    from PIL import Image, ImageDraw, ImageFilter

    font = _font()
    left, top, right, bottom = font.getbbox(text)
    dark, light = rng.integers(0, 70, 3), rng.integers(185, 256, 3)
    ink, ground = (dark, light) if rng.random() < 0.5 else (light, dark)
    patch = Image.new(
        "RGB", (int(right - left) + 16, int(bottom - top) + 16), tuple(ground.tolist())
    )
    ImageDraw.Draw(patch).text((8 - left, 8 - top), text, fill=tuple(ink.tolist()), font=font)
    return patch if legible else patch.filter(ImageFilter.GaussianBlur(14))


def _font() -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    from PIL import ImageFont

    return ImageFont.load_default(_FONT_SIZE)


def _find_place(
    rng: np.random.Generator, aspect: float, size: tuple[int, int], taken: list[tuple[float, ...]]
) -> Quad | None:
    """A quadrilateral inside the image and clear of the others, if a few throws find one."""
    for _ in range(_TRIES):
        quad = _draw_quad(rng, aspect, size)
        left, top, right, bottom = _bounds(quad)
        inside = left >= 0 and top >= 0 and right < size[0] and bottom < size[1]
        if inside and all(
            right < other[0] or left > other[2] or bottom < other[1] or top > other[3]
            for other in taken
        ):
            return quad
    return None


def _draw_quad(rng: np.random.Generator, aspect: float, size: tuple[int, int]) -> Quad:
    tall = rng.uniform(0.1, 0.24) * size[1]
    turn = rng.normal(0, 0.15)
    corners = np.array([(-aspect, -1), (aspect, -1), (aspect, 1), (-aspect, 1)]) * tall / 2
    corners += rng.uniform(-0.1, 0.1, (4, 2)) * tall
    turned = corners @ np.array([(np.cos(turn), np.sin(turn)), (-np.sin(turn), np.cos(turn))])
    placed: Quad = np.round(turned + rng.random(2) * size)
    return placed


def _bounds(quad: Quad) -> tuple[float, ...]:
    return (*quad.min(axis=0).tolist(), *quad.max(axis=0).tolist())


def _paste(image: Image.Image, patch: Image.Image, quad: Quad) -> None:
    """Draw the patch into the quadrilateral as a plane in space would appear."""
    from PIL import Image, ImageDraw

    left, top, right, bottom = (int(edge) for edge in _bounds(quad))
    size = (right - left + 1, bottom - top + 1)
    own = quad - (left, top)
    seen = patch.transform(
        size, Image.Transform.PERSPECTIVE, _perspective(own, patch.size), Image.Resampling.BILINEAR
    )
    mask = Image.new("L", size)
    ImageDraw.Draw(mask).polygon([(x, y) for x, y in own.tolist()], fill=255)
    image.paste(seen, (left, top), mask)


def _perspective(quad: Quad, size: tuple[int, int]) -> list[float]:
    """The eight coefficients with which Pillow finds a patch's pixel for each of the image's."""
    width, height = size
    rows, wanted = [], []
    for (x, y), (u, v) in zip(
        quad.tolist(), ((0, 0), (width, 0), (width, height), (0, height)), strict=True
    ):
        rows += [(x, y, 1, 0, 0, 0, -u * x, -u * y), (0, 0, 0, x, y, 1, -v * x, -v * y)]
        wanted += [u, v]
    solved: list[float] = np.linalg.solve(
        np.array(rows, dtype=float), np.array(wanted, dtype=float)
    ).tolist()
    return solved
