"""Reads any tree in ImageNet's folder layout, and reports errors in it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from profkit.text import safe_text
from profkit.workloads.datasets.tree import (
    IMAGE_SUFFIXES,
    check_folder,
    give_above,
    reading,
    unreadable,
)

SPLITS = ("train", "val")


@dataclass(frozen=True)
class ImageFolderIndex:
    """One split of a tree: its classes in the order of their index, and its images.

    A sample is an image's path and the index of its class.
    """

    root: Path
    split: str
    classes: tuple[str, ...]
    samples: tuple[tuple[str, int], ...]


def check_tree(path: Path, split: str = "train") -> ImageFolderIndex:
    """Index the images below `path/split` in the order of torchvision's `ImageFolder`.

    The classes of both splits are those of `train`. An `UnreadableError` names what is missing.
    """
    with reading(path):
        _check_layout(path, split)
        classes = _folder_names(path / "train")
        labels = {name: label for label, name in enumerate(classes)}
        files = {}
        for name in _folder_names(path / split):
            files[name] = _image_files(path / split / name)
        folder = path / split
        if not files:
            remedy = "it is empty"
            if _image_files(folder):
                remedy = "its images must lie in one folder per class"
            raise unreadable(folder, f"no class folders in it; {remedy}")
        empty = [name for name, found in files.items() if not found]
        if empty:
            raise unreadable(
                folder,
                f"no JPEG or PNG files in class folder '{safe_text(empty[0])}' "
                f"({len(empty)} of {len(files)} folders have none)",
            )
        unknown = sorted(set(files) - set(labels))
        if unknown:
            raise unreadable(
                folder,
                f"class folder '{safe_text(unknown[0])}' is not in 'train' "
                f"({len(unknown)} of {len(files)} folders are not)",
            )
        samples = []
        for name, found in files.items():
            samples += [(file, labels[name]) for file in found]
    return ImageFolderIndex(path, split, classes, tuple(samples))


def _check_layout(path: Path, split: str) -> None:
    check_folder(path, "'train' and 'val'")
    for needed in ("train", split):
        if (path / needed).is_dir():
            continue
        remedy = ""
        here = path.absolute()
        if here.name in SPLITS:
            remedy = f"; it is the '{here.name}' folder itself{give_above(path)}"
        elif any(_image_files(path / name) for name in _folder_names(path)[:3]):
            remedy = "; it holds class folders itself, which must lie in a folder 'train'"
        raise unreadable(path, f"no '{needed}' folder in it{remedy}")


def _folder_names(folder: Path) -> tuple[str, ...]:
    with os.scandir(folder) as entries:
        return tuple(sorted(entry.name for entry in entries if entry.is_dir()))


def _image_files(folder: Path) -> list[str]:
    """List the images by name alone.

    A look at each of ImageNet's 1.28 million files would take minutes on a network disk.
    """
    with os.scandir(folder) as entries:
        paths = []
        for entry in entries:
            if entry.name.lower().endswith(IMAGE_SUFFIXES):
                paths.append(entry.path)
    return sorted(paths)
