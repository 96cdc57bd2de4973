"""JSON files of a run: replaced atomically, read with limits and errors that name the place."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from profkit.errors import UnreadableError
from profkit.text import byte_size, safe_text

LARGEST_BYTES = 64_000_000


def replace_json(path: Path, content: dict[str, Any]) -> None:
    """Write `content` so that a reader sees the old file or the new one, never a part.

    The temporary file carries the process id: two ranks never write to the same one. Text that is
    no Unicode (a path, most often) is written as JSON's escapes.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    payload = (
        json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False).encode(
            "utf-8", "backslashreplace"
        )
        + b"\n"
    )
    try:
        with open(
            os.open(
                partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
            ),
            "wb",
        ) as file:
            file.write(payload)
        os.replace(partial, path)
    except OSError:
        partial.unlink(missing_ok=True)
        raise


def read_json(path: Path) -> dict[str, Any]:
    """The object in `path`; anything else is an `UnreadableError` with the place in it."""
    shown = safe_text(str(path))
    try:
        size = path.stat().st_size
        if size > LARGEST_BYTES:
            raise UnreadableError(
                f"{shown}: {byte_size(size)} is too large for a file of this kind (limit {byte_size(LARGEST_BYTES)})"
            )
        content = json.loads(path.read_bytes())
    except PermissionError as error:
        raise UnreadableError(
            f"{shown}: no permission to read it; run as its owner, or have the owner allow it with chmod"
        ) from error
    except OSError as error:
        raise UnreadableError(f"{shown}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        place = (
            f"line {error.lineno} column {error.colno}"
            if isinstance(error, json.JSONDecodeError)
            else "its content"
        )
        raise UnreadableError(f"{shown}: not valid JSON at {place}; the file is damaged") from error
    if not isinstance(content, dict):
        raise UnreadableError(
            f"{shown}: holds a {type(content).__name__} where an object belongs; the file is damaged"
        )
    return content
