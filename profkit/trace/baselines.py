"""Named baselines: copies of runs in a folder, which later runs are compared with.

A baseline is a copy of a run, because the run may be deleted, and a small file that names the copy
and the checksum of each file in it. That file is replaced atomically: there is always either the
old baseline or the new one. A baseline that was changed is refused, never compared with.
"""

from __future__ import annotations

import contextlib
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

DAMAGED = ".damaged"

MOST_PAST = 200
"""Runs in the history of a name; a record takes some hundred bytes."""


def save_baseline(
    folder: Path, name: str, run: Path, record: Mapping[str, Any] | None = None
) -> Path:
    """Keep a copy of `run` as the baseline `name`, in place of the one that had the name.

    Of earlier ones only their records are kept, as the history of the name; `record` is the run's.
    A damaged file that would be lost with its history is renamed.
    """
    _check_name(name)
    found = verify(run)
    if found.state in {Integrity.TORN, Integrity.RUNNING}:
        reasons = safe_text("; ".join(found.reasons))
        problem = f"is {found.state.value} and makes no baseline ({reasons})"
        raise UnreadableError(f"{safe_text(str(run))}: {problem}")
    sums = {path: _checksum(run / path) for path in _files(run)}
    lines = "\n".join(f"{path} {digest}" for path, digest in sorted(sums.items()))
    copy = folder / f"{name}-{hashlib.sha256(lines.encode()).hexdigest()[:_DIGITS]}"
    pointer = folder / f"{name}.json"
    before: Path | None = None
    past: list[Any] = []
    try:
        try:
            content = read_json(pointer)
            before, past = _find_copy(folder, name, content), _past_in(content)
        except UnreadableError:  # missing, or damaged: its history may be wanted
            with contextlib.suppress(FileNotFoundError):
                pointer.replace(pointer.with_name(f"{pointer.name}{DAMAGED}"))
        if record is not None:
            past = [*filter(lambda each: each != record, past), dict(record)]
        if not copy.exists():
            _copy(run, copy, sums)
        content = {
            "format": FORMAT,
            "run": copy.name,
            "saved_from": str(run.resolve()),
            "sha256": sums,
            "past": past[-MOST_PAST:],
        }
        replace_json(pointer, content)
        if before is not None and before != copy:
            shutil.rmtree(before, ignore_errors=True)
    except OSError as error:
        place = safe_text(str(error.filename or folder))
        problem = f"{error.strerror}; the baseline '{name}' was not saved"
        raise ProfkitError(f"{place}: {problem}") from error
    return copy


def find_baseline(folder: Path, name: str) -> Path:
    """Return the run that was saved as `name`.

    Raise an `UnreadableError` if it is missing or was changed.
    """
    _check_name(name)
    pointer = folder / f"{name}.json"
    if not pointer.exists():
        problem = f"there is no baseline '{name}'"
        known = [path.stem for path in sorted(folder.glob("*.json"))]
        if known:
            problem += f"{did_you_mean(name, known)} (there are: {safe_text(', '.join(known))})"
        remedy = f"save one with 'profkit explain --save-baseline {name} RUN'"
        raise UnreadableError(f"{safe_text(str(folder))}: {problem}; {remedy}")
    again = f"save it again with 'profkit explain --save-baseline {name} RUN'"
    content = read_json(pointer)
    copy = _find_copy(folder, name, content)
    sums = content.get("sha256")
    if content.get("format") != FORMAT or copy is None or not isinstance(sums, dict):
        problem = f"not a profkit baseline, or damaged; {again}"
        raise UnreadableError(f"{safe_text(str(pointer))}: {problem}")
    for path in sorted({*sums, *_files(copy)}):
        if sums.get(path) != _checksum(copy / path):
            problem = f"is not what was saved as baseline '{name}'; {again}"
            raise UnreadableError(f"{safe_text(str(copy / path))}: {problem}")
    return copy


def past_of(folder: Path, name: str) -> list[Any]:
    """Return the records of the runs that were the baseline `name`, oldest first."""
    find_baseline(folder, name)
    return _past_in(read_json(folder / f"{name}.json"))


def _past_in(content: Mapping[str, Any]) -> list[Any]:
    past = content.get("past")
    return past if isinstance(past, list) else []


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        remedy = "use letters, digits, '.', '_' and '-', 64 at most"
        raise UsageError(f"'{safe_text(name)}' is no name for a baseline; {remedy}")


def _find_copy(folder: Path, name: str, content: Mapping[str, Any]) -> Path | None:
    """Return the copy that a baseline's file names.

    Returns `None` for a name that `save_baseline` does not give: the file may have been changed.
    """
    copy = str(content.get("run", name))
    if re.fullmatch(rf"{re.escape(name)}-[0-9a-f]{{{_DIGITS}}}", copy):
        return folder / copy
    return None


def _files(run: Path) -> Iterator[str]:
    """Yield the run's own files: no links, and no hidden files, which are partial."""
    for path in sorted(run.rglob("*")) if run.is_dir() else ():
        if path.is_file() and not path.is_symlink() and not path.name.startswith("."):
            yield path.relative_to(run).as_posix()


def _checksum(path: Path) -> str:
    """Return the SHA-256 of a file's content, or an empty string if there is no file."""
    if path.is_symlink() or not path.is_file():
        return ""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while part := file.read(1 << 20):
            digest.update(part)
    return digest.hexdigest()


def _copy(run: Path, copy: Path, sums: Mapping[str, str]) -> None:
    """Copy under another name first: a folder with the final name is whole."""
    partial = copy.with_name(f".{copy.name}.{os.getpid()}")
    try:
        for path in sums:
            (partial / path).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            shutil.copyfile(run / path, partial / path)
        os.rename(partial, copy)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
