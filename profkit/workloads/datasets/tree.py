"""Shared checks of data-set folders: each error names the file, the place and the remedy."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from profkit.errors import UnreadableError
from profkit.text import safe_text

IMAGE_SUFFIXES = (".jpeg", ".jpg", ".png")


def unreadable(path: Path | str, problem: str) -> UnreadableError:
    """Return the error that a file or folder has this problem."""
    return UnreadableError(f"{safe_text(str(path))}: {problem}")


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn an error of the operating system into one that names the file or folder."""
    try:
        yield
    except OSError as error:
        problem = f"cannot be read: {error.strerror or error}"
        raise unreadable(str(error.filename or path), problem) from error


def check_folder(path: Path, contents: str) -> None:
    """Refuse a path that is not a folder; `contents` are the names it should hold."""
    if not path.exists():
        raise unreadable(path, "no such folder")
    if not path.is_dir():
        raise unreadable(path, f"a file, not the folder that holds {contents}")


def give_above(path: Path) -> str:
    """Return the remedy for a path inside the folder that is wanted."""
    return f"; give the folder above it: {safe_text(str(path.absolute().parent))}"


def read_lines(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the lines of a UTF-8 file that are not blank, each after its `file:number`."""
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise unreadable(
            path,
            f"not UTF-8 text: {error.reason} at byte {error.start}; save it as UTF-8",
        ) from error
    for number, line in enumerate(lines, start=1):
        if line.strip():
            yield f"{safe_text(str(path))}:{number}", line
