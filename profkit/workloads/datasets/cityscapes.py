"""Reads a Cityscapes tree, and reports errors in it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from profkit.text import safe_text
from profkit.workloads.datasets.tree import check_folder, give_above, reading, unreadable

CLASSES = 19
IGNORED = 255
"""The label of pixels that belong to no class."""

IMAGES, LABELS = "leftImg8bit", "gtFine"
PACKAGES = {IMAGES: "leftImg8bit_trainvaltest.zip", LABELS: "gtFine_trainvaltest.zip"}
IMAGE_END = "_leftImg8bit.png"
LABEL_END = "_gtFine_labelTrainIds.png"
RAW_LABEL_END = "_gtFine_labelIds.png"


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


def check_tree(path: Path, split: str = "train") -> StreetIndex:
    """Index the frames of a split. An `UnreadableError` names what is missing.

    A frame that has only its image or only its labels is kept: reading it reports the other.
    """
    with reading(path):
        check_folder(path, f"'{IMAGES}' and '{LABELS}'")
        for name, package in PACKAGES.items():
            if not (path / name).is_dir():
                above = path.absolute().parent
                remedy = f"; unpack {package} there"
                if (above / IMAGES).is_dir() and (above / LABELS).is_dir():
                    remedy = give_above(path)
                raise unreadable(path, f"no '{name}' folder in it{remedy}")
            if not (path / name / split).is_dir():
                shown = safe_text(str(path))
                raise unreadable(
                    path / name, f"no '{split}' folder in it; unpack {package} in {shown}"
                )
        images, labels = path / IMAGES / split, path / LABELS / split
        image_stems, label_stems = set(_stems(images, IMAGE_END)), set(_stems(labels, LABEL_END))
        if not image_stems:
            raise unreadable(images, f"no <city>/*{IMAGE_END} in it")
        if not image_stems & label_stems:
            problem = f"no <city>/*{LABEL_END} in it for any of the {len(image_stems)} images"
            if next(_stems(labels, RAW_LABEL_END), None):
                problem = (
                    "it has labelIds, but no labelTrainIds; make these with "
                    "csCreateTrainIdLabelImgs of cityscapesscripts"
                )
            raise unreadable(labels, problem)
        frames = []
        for stem in sorted(image_stems | label_stems):
            frames.append(Frame(f"{images / stem}{IMAGE_END}", f"{labels / stem}{LABEL_END}"))
    return StreetIndex(path, split, tuple(frames))


def _stems(folder: Path, end: str) -> Iterator[str]:
    """Yield the files of all cities with this ending, as `city/city_000000_000019`."""
    for city in sorted(os.listdir(folder)):
        if (folder / city).is_dir():
            for name in os.listdir(folder / city):
                if name.endswith(end):
                    yield f"{city}/{name.removesuffix(end)}"
