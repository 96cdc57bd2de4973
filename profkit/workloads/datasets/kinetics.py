"""Reads Kinetics' tree of extracted frames: a folder per clip, and lists of clips."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from profkit.errors import UnreadableError
from profkit.text import safe_text
from profkit.workloads.datasets.tree import check_folder, read_lines, reading, unreadable

SPLITS = ("train", "val")
LIST_NAMES = {
    "train": ("train.list", "train_frames.list", "train_list.txt"),
    "val": ("val.list", "val_frames.list", "val_list.txt"),
}
"""The possible names of each split's list; the first is the one in PaddleVideo's configuration."""

CHECKED_CLIPS = 24
"""Clip folders whose existence is checked; all 234,619 would take minutes on a network disk."""

CHECKED_FOLDERS = 100
"""Folders in which a misplaced list is searched."""


@dataclass(frozen=True)
class Clip:
    """One folder of frames, their count, and the number of its class."""

    folder: str
    frames: int
    label: int

    def frame(self, number: int) -> str:
        """Return the path of a frame, counted from 1."""
        return f"{self.folder}/{frame_name(number)}"


@dataclass(frozen=True)
class ClipIndex:
    """One split of a tree, in the order of its list.

    `classes` is one more than the highest label of `train`.
    """

    root: Path
    split: str
    classes: int
    clips: tuple[Clip, ...]


def frame_name(number: int) -> str:
    """Return a frame's file name."""
    return f"img_{number:05d}.jpg"


def check_tree(path: Path, split: str = "train") -> ClipIndex:
    """Index the clips of a split.

    Lists have `folder frames label` lines; folders are absolute, or relative to the list's own.
    An `UnreadableError` names what is missing, or the line of the list that is wrong. A few clip
    folders are checked. A missing frame is a bad sample of the run.
    """
    with reading(path):
        check_folder(path, "'train.list' and 'val.list'")
        train = _read_list(_find_list(path, "train"))
        listed_in = _find_list(path, split)
        clips = train if split == "train" else _read_list(listed_in)
        classes = max(clip.label for clip in train) + 1
        for clip in clips:
            if clip.label >= classes:
                raise unreadable(
                    path,
                    f"label {clip.label} of {safe_text(clip.folder)} is not among those of "
                    f"'train' (0 to {classes - 1})",
                )
        checked = clips[:: max(1, len(clips) // CHECKED_CLIPS)]
        missing = [clip.folder for clip in checked if not os.path.isdir(clip.folder)]
        if missing:
            remedy = ""
            if len(missing) == len(checked):
                remedy = "; its paths must be absolute, or relative to the folder of the list"
            raise unreadable(
                listed_in,
                f"no folder {safe_text(missing[0])} ({len(missing)} of the {len(checked)} checked "
                f"clips are missing; {len(clips):,} in all){remedy}",
            )
    return ClipIndex(path, split, classes, clips)


def _find_list(path: Path, split: str) -> Path:
    names = LIST_NAMES[split]
    for name in names:
        if (path / name).is_file():
            return path / name
    here = path.absolute()
    remedy = ""
    if (path / frame_name(1)).is_file():
        remedy = "; it holds the frames of one clip"
    below = sorted(filter(Path.is_dir, here.iterdir()))
    for near in (here.parent, *below[:CHECKED_FOLDERS]):
        if any((near / name).is_file() for name in names):
            remedy = f"; {safe_text(str(near))} has one, so give that"
            break
    raise unreadable(path, f"no '{names[0]}' in it (lines of: folder frames label){remedy}")


def _read_list(path: Path) -> tuple[Clip, ...]:
    clips = []
    for where, line in read_lines(path):
        # Fields are split off from the end: folders may have spaces in their names, as published.
        fields = line.rsplit(maxsplit=2)
        if len(fields) != 3 or not (fields[1].isdecimal() and fields[2].isdecimal()):
            raise UnreadableError(f"{where}: not 'folder frames label': {safe_text(line[:60])}")
        if int(fields[1]) == 0:
            raise UnreadableError(f"{where}: a clip without frames: {safe_text(line[:60])}")
        folder = os.path.join(path.parent, fields[0].strip())
        clips.append(Clip(folder, int(fields[1]), int(fields[2])))
    if not clips:
        raise unreadable(path, "no clips in it; a line is: folder frames label")
    return tuple(clips)
