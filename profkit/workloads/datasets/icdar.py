"""Reads ICDAR2015's tree: photographs of text, and a file of quadrilaterals for each."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from profkit.errors import UnreadableError
from profkit.text import plural, safe_text
from profkit.workloads.datasets.tree import (
    IMAGE_SUFFIXES,
    check_folder,
    give_above,
    read_lines,
    reading,
    unreadable,
)

Corners = tuple[tuple[int, int], ...]

FOLDERS = {
    "train": ("ch4_training_images", "ch4_training_localization_transcription_gt"),
    "test": ("ch4_test_images", "ch4_test_localization_transcription_gt"),
}
"""The folders of images and of annotations of each split, as the data set names them."""

ILLEGIBLE = "###"
"""The transcription of a word that nobody can read."""


@dataclass(frozen=True)
class Word:
    """One quadrilateral, clockwise from the upper left as it is read, and its text."""

    corners: Corners
    text: str

    @property
    def legible(self) -> bool:
        """False for words that count neither for nor against a detector."""
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
    """Index all images of a split with their words.

    An `UnreadableError` names what is missing, or the line of the file that is wrong.
    """
    with reading(path):
        _check_layout(path, split)
        images, truths = map(path.joinpath, FOLDERS[split])
        names = [name for name in os.listdir(images) if name.lower().endswith(IMAGE_SUFFIXES)]
        # By number first, so that `img_2` is before `img_10`.
        names.sort(key=lambda name: (int("".join(filter(str.isdecimal, name)) or 0), name))
        if not names:
            raise unreadable(images, "no JPEG or PNG files in it")
        annotations = set(os.listdir(truths))
        alone = [name for name in names if _truth_name(name) not in annotations]
        if alone:
            raise unreadable(
                truths,
                f"no '{safe_text(_truth_name(alone[0]))}' for {safe_text(alone[0])} "
                f"({len(alone)} of {plural(len(names), 'image')} have none)",
            )
        scenes = []
        for name in names:
            scenes.append(Scene(str(images / name), read_words(truths / _truth_name(name))))
    return TextIndex(path, split, tuple(scenes))


def _truth_name(image_name: str) -> str:
    return f"gt_{Path(image_name).stem}.txt"


def _check_layout(path: Path, split: str) -> None:
    check_folder(path, f"ICDAR2015's '{FOLDERS[split][0]}'")
    missing = [name for name in FOLDERS[split] if not (path / name).is_dir()]
    if not missing:
        return
    known = {*FOLDERS["train"], *FOLDERS["test"]}
    here, remedy = path.absolute(), ""
    if any(path.glob("gt_*.txt")) or any(path.glob("img_*.jpg")):
        remedy = "; its files must lie in folders named as in the published set"
    for below in sorted(path.iterdir(), reverse=True):
        if any((below / name).is_dir() for name in known):
            remedy = f"; the folder below it has some, so give {safe_text(str(below))}"
    if here.name in known:
        remedy = f"; it is the '{here.name}' folder itself{give_above(path)}"
    raise unreadable(path, f"no '{missing[0]}' folder in it{remedy}")


def read_words(path: Path) -> tuple[Word, ...]:
    """Read the words of one annotation file.

    A line has eight whole numbers and a transcription, which may have commas of its own.
    """
    words = []
    for where, line in read_lines(path):
        *numbers, text = line.split(",", 8)
        try:
            values = list(map(int, numbers))
        except ValueError:
            values = []
        if len(values) != 8:
            raise UnreadableError(
                f"{where}: not 'x1,y1,x2,y2,x3,y3,x4,y4,transcription': {safe_text(line[:60])}"
            )
        words.append(Word(tuple(zip(values[::2], values[1::2], strict=True)), text.strip()))
    return tuple(words)
