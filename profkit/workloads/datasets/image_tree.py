"""Reads any tree in ImageNet's folder layout: what is in it, and what is wrong with it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from profkit.errors import UnreadableError
from profkit.text import safe_text

SPLITS = ("train", "val")
IMAGE_SUFFIXES = (".jpeg", ".jpg", ".png")


@dataclass(frozen=True)
class ImageFolderIndex:
    """One split of a tree: its classes in the order of their index, and each image's path and class index."""

    root: Path
    split: str
    classes: tuple[str, ...]
    samples: tuple[tuple[str, int], ...]


def check_tree(path: Path, split: str = "train") -> ImageFolderIndex:
    """The images below `path/split`, in the order of torchvision's `ImageFolder`.

    The classes are those of `train` in both splits. An `UnreadableError` says what is missing where.
    """
    try:
        return _index_tree(path, split)
    except OSError as error:
        raise UnreadableError(
            f"{safe_text(str(error.filename or path))}: cannot be read: {error.strerror or error}"
        ) from error


def _index_tree(path: Path, split: str) -> ImageFolderIndex:
    _check_layout(path, split)
    classes = _folder_names(path / "train")
    indices = {name: index for index, name in enumerate(classes)}
    files = {name: _image_files(path / split / name) for name in _folder_names(path / split)}
    _check_classes(path / split, files, indices)
    samples = tuple((file, indices[name]) for name, found in files.items() for file in found)
    return ImageFolderIndex(path, split, classes, samples)


def _check_layout(path: Path, split: str) -> None:
    shown = safe_text(str(path))
    if not path.exists():
        raise UnreadableError(f"{shown}: no such folder")
    if not path.is_dir():
        raise UnreadableError(f"{shown}: a file, not the folder that holds 'train' and 'val'")
    for needed in dict.fromkeys(("train", split)):
        if not (path / needed).is_dir():
            raise UnreadableError(f"{shown}: no '{needed}' folder in it{_what_it_is(path)}")


def _what_it_is(path: Path) -> str:
    here = path.absolute()
    if here.name in SPLITS:
        return f"; it is the '{here.name}' folder itself, so give the one above it: {safe_text(str(here.parent))}"
    if any(_image_files(path / name) for name in _folder_names(path)[:3]):
        return "; it holds class folders itself, which must lie in a folder 'train'"
    return ""


def _check_classes(folder: Path, files: dict[str, list[str]], known: dict[str, int]) -> None:
    shown = safe_text(str(folder))
    if not files:
        loose = (
            "its images must lie in one folder a class" if _image_files(folder) else "it is empty"
        )
        raise UnreadableError(f"{shown}: no class folders in it; {loose}")
    if empty := [name for name, found in files.items() if not found]:
        raise UnreadableError(
            f"{shown}: no JPEG or PNG files in class folder '{safe_text(empty[0])}' ({len(empty)} of {len(files)} folders are so)"
        )
    if strange := [name for name in files if name not in known]:
        raise UnreadableError(
            f"{shown}: class folder '{safe_text(strange[0])}' is not among those of 'train' ({len(strange)} of {len(files)} folders are so)"
        )


def _folder_names(folder: Path) -> tuple[str, ...]:
    with os.scandir(folder) as entries:
        return tuple(sorted(entry.name for entry in entries if entry.is_dir()))


def _image_files(folder: Path) -> list[str]:
    """Told by name alone: a look at each of 1.28 million files would take minutes on a network disk."""
    with os.scandir(folder) as entries:
        return sorted(
            entry.path for entry in entries if entry.name[-5:].lower().endswith(IMAGE_SUFFIXES)
        )
