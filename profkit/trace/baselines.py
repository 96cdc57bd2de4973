"""Named baselines: copies of runs in a folder, which later runs are compared with.

A baseline is a copy, because the run that it was may be deleted, and a small file that names the copy
and the checksum of each file in it. That file is replaced atomically, so that there is always either the old
baseline or the new one. What was changed since it was saved is refused, never compared with.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from profkit.errors import ProfkitError, UnreadableError, UsageError
from profkit.text import did_you_mean, safe_text
from profkit.trace.integrity import verify
from profkit.trace.jsonfile import read_json, replace_json
from profkit.vocab import Integrity

FORMAT = "profkit-baseline"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_DIGITS = 16


def save_baseline(folder: Path, name: str, run: Path) -> Path:
    """Keep a copy of `run` as the baseline `name`, in place of the one that had the name."""
    _check_name(name)
    found = verify(run)
    if found.state in {Integrity.TORN, Integrity.RUNNING}:
        raise UnreadableError(
            f"{safe_text(str(run))}: is {found.state.value} and makes no baseline ({safe_text('; '.join(found.reasons))})"
        )
    sums = {path: _checksum(run / path) for path in _files(run)}
    copy = folder / f"{name}-{_digest(sums)}"
    try:
        before = _copy_of(folder, name)
        if not copy.exists():
            _copy(run, copy, sums)
        replace_json(
            _pointer(folder, name),
            {
                "format": FORMAT,
                "run": copy.name,
                "saved_from": os.fspath(run.resolve()),
                "sha256": sums,
            },
        )
        if before is not None and before != copy:
            shutil.rmtree(before, ignore_errors=True)
    except OSError as error:
        raise ProfkitError(
            f"{safe_text(str(error.filename or folder))}: {error.strerror}; the baseline '{name}' was not saved"
        ) from error
    return copy


def find_baseline(folder: Path, name: str) -> Path:
    """The run that was saved under `name`, as it was saved; an `UnreadableError` where it is missing or was changed."""
    _check_name(name)
    pointer = _pointer(folder, name)
    if not pointer.exists():
        known = [path.stem for path in sorted(folder.glob("*.json"))]
        there = (
            f"{did_you_mean(name, known)} (there are: {safe_text(', '.join(known))})"
            if known
            else ""
        )
        raise UnreadableError(
            f"{safe_text(str(folder))}: there is no baseline '{name}'{there}; save one with 'profkit explain --save-baseline {name} RUN'"
        )
    content = read_json(pointer)
    copy, sums = folder / _folder_name(content, name), content.get("sha256")
    if (
        content.get("format") != FORMAT
        or not isinstance(sums, dict)
        or not _is_copy(copy.name, name)
    ):
        raise UnreadableError(
            f"{safe_text(str(pointer))}: not a profkit baseline, or damaged{_again(name)}"
        )
    for path in sorted({*sums, *_files(copy)}):
        if sums.get(path) != _checksum(copy / path):
            raise UnreadableError(
                f"{safe_text(str(copy / path))}: is not what was saved as baseline '{name}'{_again(name)}"
            )
    return copy


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"'{safe_text(name)}' is no name for a baseline; use letters, digits, '.', '_' and '-', 64 at most"
        )


def _again(name: str) -> str:
    return f"; save it again with 'profkit explain --save-baseline {name} RUN'"


def _pointer(folder: Path, name: str) -> Path:
    return folder / f"{name}.json"


def _folder_name(content: Mapping[str, Any], name: str) -> str:
    return str(content.get("run", name))


def _is_copy(folder: str, name: str) -> bool:
    """Whether a file that may have been tampered with names a folder that `save_baseline` makes, and nothing outside."""
    return re.fullmatch(rf"{re.escape(name)}-[0-9a-f]{{{_DIGITS}}}", folder) is not None


def _copy_of(folder: Path, name: str) -> Path | None:
    try:
        found = _folder_name(read_json(_pointer(folder, name)), name)
    except UnreadableError:
        return None
    return folder / found if _is_copy(found, name) else None


def _files(run: Path) -> Iterator[str]:
    """The run's own files: no links, which may lead anywhere, and no hidden ones, which are half written."""
    for path in sorted(run.rglob("*")) if run.is_dir() else ():
        if path.is_file() and not path.is_symlink() and not path.name.startswith("."):
            yield path.relative_to(run).as_posix()


def _checksum(path: Path) -> str:
    """SHA-256 of a file's content; nothing for a file that is not there."""
    if path.is_symlink() or not path.is_file():
        return ""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while part := file.read(1 << 20):
            digest.update(part)
    return digest.hexdigest()


def _digest(sums: Mapping[str, str]) -> str:
    return hashlib.sha256(
        "\n".join(f"{path} {digest}" for path, digest in sorted(sums.items())).encode()
    ).hexdigest()[:_DIGITS]


def _copy(run: Path, copy: Path, sums: Mapping[str, str]) -> None:
    """Under another name first: what has the final name is whole."""
    partial = copy.with_name(f".{copy.name}.{os.getpid()}")
    try:
        for path in sums:
            (partial / path).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            shutil.copyfile(run / path, partial / path)
        os.rename(partial, copy)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
