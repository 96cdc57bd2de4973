"""What leaves the interface: copied rows, tables and pictures, always into a file that is named."""

from __future__ import annotations

import csv
import io
import os
import re
import secrets
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from profkit.cache import cache_root
from profkit.errors import ProfkitError
from profkit.text import safe_text

COPIED_FILE = "copied.txt"
_FONTS = re.compile(r"\s*@font-face \{.*?\}", re.DOTALL)


def as_tsv(rows: Iterable[Sequence[str]]) -> str:
    """Rows with tabs between cells; what could steer a terminal is made visible."""
    return "\n".join("\t".join(map(safe_text, row)) for row in rows)


def as_csv(rows: Iterable[Sequence[str]]) -> str:
    """Rows for spreadsheets and scripts."""
    text = io.StringIO(newline="")
    csv.writer(text).writerows([safe_text(cell) for cell in row] for row in rows)
    return text.getvalue()


def as_picture(svg: str) -> str:
    """A picture that fetches no fonts from anywhere when it is opened."""
    return _FONTS.sub("", svg)


def keep_copied(text: str) -> Path | None:
    """What was copied, in a file as well: not every terminal has a clipboard. `None` where nothing can be written."""
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
    """Write a new file into the folder that profkit was started in, and say which; an error names what would help."""
    path = _new_name(stem, suffix)
    try:
        with path.open("x", encoding="utf-8", errors="backslashreplace", newline="") as file:
            file.write(text)
    except OSError as error:
        raise ProfkitError(
            f"{safe_text(str(path.absolute()))}: {error.strerror}; start profkit in a folder that can be written"
        ) from error
    return path.absolute()


def _new_name(stem: str, suffix: str) -> Path:
    clean = "".join(char if char.isalnum() or char in "-_." else "_" for char in stem)[:80]
    plain = Path(f"{clean}.{suffix}")
    return Path(f"{clean}-{secrets.token_hex(2)}.{suffix}") if plain.exists() else plain
