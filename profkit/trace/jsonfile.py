"""Replace JSON files of a run atomically, and read them with limits and precise errors."""

from __future__ import annotations

import json
import os
import zlib
from pathlib import Path
from typing import Any

from profkit.errors import UnreadableError
from profkit.plain_file import read_plain
from profkit.text import safe_text

LARGEST_BYTES = 64_000_000
_CHECKSUM = "crc32"


def replace_json(path: Path, content: dict[str, Any]) -> None:
    """Write `content` so that a reader sees the old file or the new one, never a part.

    The temporary file carries the process id: two ranks never write to the same one. Text that is
    not Unicode, often a path, is written as JSON's escapes.
    """
    replace_text(path, dump_json(content))


def dump_json(content: dict[str, Any]) -> str:
    """Return the text of a file of a run."""
    return json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def replace_text(path: Path, text: str) -> None:
    """Write the text as `replace_json` does."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with open(os.open(partial, flags, 0o600), "wb") as file:
            file.write(text.encode("utf-8", "backslashreplace"))
        os.replace(partial, path)
    except OSError:
        partial.unlink(missing_ok=True)
        raise


def with_checksum(content: dict[str, Any]) -> dict[str, Any]:
    """Return content for `replace_json` in which `read_json` finds every change."""
    return {**content, _CHECKSUM: _checksum(content)}


def _checksum(content: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(content).encode())


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in `path`. Anything else is an `UnreadableError` that names the place."""
    shown = safe_text(str(path))
    try:
        content = json.loads(read_plain(path, LARGEST_BYTES))
    except PermissionError as error:
        remedy = "run as its owner, or have the owner allow it with chmod"
        raise UnreadableError(f"{shown}: no permission to read it; {remedy}") from error
    except FileNotFoundError as error:
        remedy = "if it belongs to a run, copy the whole run again"
        raise UnreadableError(f"{shown}: No such file; {remedy}") from error
    except OSError as error:
        raise UnreadableError(f"{shown}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        place = "its content"
        if isinstance(error, json.JSONDecodeError):
            place = f"line {error.lineno} column {error.colno}"
        raise UnreadableError(f"{shown}: not valid JSON at {place}; the file is damaged") from error
    if not isinstance(content, dict):
        problem = f"holds a {type(content).__name__} where an object belongs"
        raise UnreadableError(f"{shown}: {problem}; the file is damaged")
    if _CHECKSUM in content and content.pop(_CHECKSUM) != _checksum(content):
        raise UnreadableError(f"{shown}: its checksum does not fit; the file is damaged")
    return content
