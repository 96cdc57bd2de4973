"""Copies and exports: rows, tables and pictures, always written to a file that is named."""

from __future__ import annotations

import csv
import io
import os
import re
import secrets
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from textual.app import App

from profkit.cache import cache_root
from profkit.errors import ProfkitError
from profkit.text import safe_text

COPIED_FILE = "copied.txt"
MAX_STEM = 80
"""The names of exported files are cut to this length, without the suffix."""
_FONTS = re.compile(r"\s*@font-face \{.*?\}", re.DOTALL)
_UNSAFE_IN_NAME = re.compile(r"[^\w.-]")


def as_tsv(rows: Iterable[Sequence[str]]) -> str:
    """Return rows with tabs between cells; terminal control characters are made visible."""
    return "\n".join("\t".join(map(safe_text, row)) for row in rows)


def as_csv(rows: Iterable[Sequence[str]]) -> str:
    """Return rows as CSV for spreadsheets and scripts."""
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    for row in rows:
        writer.writerow(map(safe_text, row))
    return text.getvalue()


def picture_of(app: App[Any]) -> str:
    """Return the app's screen as an SVG picture that loads no fonts when it is opened."""
    return _FONTS.sub("", app.export_screenshot(title="profkit", simplify=True))


def keep_copied(text: str) -> Path | None:
    """Write copied text to a file, because not every terminal has a clipboard.

    Return `None` if the file cannot be written.
    """
    try:
        folder = cache_root()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, partial = tempfile.mkstemp(dir=folder, prefix="." + COPIED_FILE)
        with open(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text + "\n")
        os.replace(partial, folder / COPIED_FILE)
    except OSError:
        return None
    return folder / COPIED_FILE


def export(text: str, stem: str, suffix: str) -> Path:
    """Write a new file to the current folder and return its path."""
    stem = _UNSAFE_IN_NAME.sub("_", stem)[:MAX_STEM]
    path = Path(f"{stem}.{suffix}")
    if path.exists():
        path = Path(f"{stem}-{secrets.token_hex(2)}.{suffix}")
    try:
        with path.open("x", encoding="utf-8", errors="backslashreplace", newline="") as file:
            file.write(text)
    except OSError as error:
        name = safe_text(str(path.absolute()))
        raise ProfkitError(
            f"{name}: {error.strerror}; start profkit in a folder that you can write to"
        ) from error
    return path.absolute()
