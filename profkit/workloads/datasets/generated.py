"""Generated data sets in published folder layouts, made once and kept in the cache."""

from __future__ import annotations

import dataclasses
import io
import math
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np
import numpy.typing as npt

from profkit.cache import Recipe, ensure
from profkit.progress import Narrator, Progress, ProgressBar
from profkit.text import plural

if TYPE_CHECKING:
    from PIL import Image

GRAIN = 0.12
"""The share of grain in a background."""

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Picture:
    """One image or clip: the `number`-th of its class in its split. Some sets have one class."""

    split: str
    label: int
    number: int


def list_pictures(counts: Mapping[str, int], classes: int = 1) -> list[Picture]:
    """Return every picture of a set, given the count per class of each split."""
    pictures = []
    for split, count in counts.items():
        for label in range(classes):
            pictures += [Picture(split, label, number) for number in range(count)]
    return pictures


@dataclass(frozen=True)
class GeneratedTree:
    """The contents of a generated set. Subclasses add their sizes as fields, and a `seed`."""

    layout: ClassVar[str]
    """Name of the published data set, part of the folder's name in the cache."""

    version: ClassVar[int]
    """Raised by each change of the rendering, so that no older set is taken for a new one."""

    @property
    def recipe(self) -> Recipe:
        """Everything that the set's content depends on."""
        return Recipe(self.layout, {"version": self.version, **dataclasses.asdict(self)})

    noun: ClassVar[str]
    """The name of one of its images or clips, in `making 12 ... in FOLDER`."""

    def describe(self) -> str:
        """Return the number of images or clips, and their name."""
        sizes = dataclasses.asdict(self)
        count = 0
        for name, size in sizes.items():
            if name.removesuffix("_per_class") in {"train", "val", "test"}:
                count += size
        return plural(count * sizes.get("classes", 1), self.noun)

    def write(self, folder: Path, progress: Progress) -> None:
        """Write the set into an empty folder."""
        raise NotImplementedError


def generate(
    tree: GeneratedTree, *, root: Path | None = None, narrate: Narrator = ProgressBar
) -> Path:
    """Return the folder of the generated set; make it if the cache does not have it."""
    return ensure(tree.recipe, tree.write, what=tree.describe(), root=root, narrate=narrate)


def write_all(
    items: Sequence[Item], write: Callable[[Item], Result], progress: Progress
) -> list[Result]:
    """Call `write` for each item on every usable core, and return the results in order.

    Threads suffice: numpy and the image encoders release the interpreter.
    """
    cores = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    results = []
    with ThreadPoolExecutor(cores) as pool:
        for result in pool.map(write, items):
            results.append(result)
            progress(len(results), len(items))
    return results


def encode_image(image: Image.Image, kind: str, **options: Any) -> bytes:
    """Return the bytes of a JPEG or PNG file."""
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def soft_background(
    coarse: npt.NDArray[np.uint8], fine: npt.NDArray[np.uint8], size: tuple[int, int]
) -> Image.Image:
    """Scale coarse noise to soft colours, and blend some finer grain into them."""
    from PIL import Image

    soft = Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC)
    grain = Image.fromarray(fine).resize(size, Image.Resampling.BILINEAR)
    return Image.blend(soft.convert("RGB"), grain, GRAIN)


def star_outline(
    middle: tuple[float, float], radius: float, corners: int, waist: float, turn: float
) -> list[tuple[float, float]]:
    """Return the outline of a star; every second corner is at `waist` of the radius."""
    points = []
    for corner in range(2 * corners):
        reach = radius * (waist if corner % 2 else 1.0)
        angle = turn + math.pi * corner / corners
        points.append((middle[0] + reach * math.cos(angle), middle[1] + reach * math.sin(angle)))
    return points
