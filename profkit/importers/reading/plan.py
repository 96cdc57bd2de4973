"""The choice of the importer of each file, and of the files of each run."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from profkit.errors import UnreadableError, UsageError
from profkit.importers.base import Importer, cannot_read, read_head
from profkit.importers.reading.strangers import describe_stranger
from profkit.text import did_you_mean, safe_text


def expand(paths: Sequence[Path]) -> tuple[list[Path], set[Path]]:
    """Replace folders by their files; return all files, and those that only a folder named."""
    files: list[Path] = []
    found: set[Path] = set()
    for path in paths:
        try:
            if not path.is_dir():
                files.append(path)
                continue
            inside = [each for each in sorted(path.iterdir()) if each.is_file()]
        except OSError as error:  # a folder above may not be searched
            raise cannot_read(path, error) from error
        own = [each for each in inside if not each.name.startswith(".")]
        files += own
        found.update(own)
    return list(dict.fromkeys(files)), found


@dataclass(frozen=True)
class ImportPlan:
    """The files of each importer, in the order given, and files in folders that none reads.

    `problems` are the reasons why files in folders cannot be read at all.
    """

    sources: Mapping[str, tuple[Path, ...]]
    unknown: tuple[Path, ...]
    problems: tuple[UnreadableError, ...] = ()


def plan_import(
    paths: Sequence[Path], importers: Mapping[str, Importer], format_name: str = ""
) -> ImportPlan:
    """Choose the importer of each file; raise if a file named by the user has none."""
    known = ", ".join(sorted(importers))
    if format_name and format_name not in importers:
        similar = did_you_mean(format_name, importers)
        raise UsageError(f"unknown format '{safe_text(format_name)}'{similar} (there are: {known})")
    files, found = expand(paths)
    sources: dict[str, list[Path]] = {}
    unknown, problems = [], []
    for path in files:
        # A pipe may wait for a writer for ever, and cannot be read twice.
        if path.exists() and not path.is_file():
            raise UnreadableError(f"{safe_text(str(path))}: not a regular file; copy it into one")
        try:
            name = format_name or recognise(path, importers)
        except UnreadableError as error:
            if path not in found:
                raise
            problems.append(error)
            continue
        if name:
            sources.setdefault(name, []).append(path)
        elif path in found:
            unknown.append(path)
        else:
            raise _unknown(path, known)
    if not sources:
        if problems:
            raise problems[0]
        raise UnreadableError(
            f"{safe_text(os.fspath(paths[0]))}: holds no file that profkit imports"
        )
    plan = {name: tuple(own) for name, own in sources.items()}
    return ImportPlan(plan, tuple(unknown), tuple(problems))


def _unknown(path: Path, known: str) -> UnreadableError:
    what = describe_stranger(read_head(path), path)
    if not what:
        what = f"not a format that profkit imports (there are: {known}); --format names one"
    return UnreadableError(f"{safe_text(str(path))}: {what}")


def runs_of(importer: Importer, sources: Sequence[Path]) -> Iterator[Sequence[Path]]:
    """Yield the files of each run, as far as the importer says it."""
    if hasattr(importer, "divide"):
        yield from importer.divide(sources)
    else:
        yield sources


def recognise(path: Path, importers: Mapping[str, Importer]) -> str:
    """Return the importer that is surest of the file, or an empty name."""
    head = read_head(path)
    surest = (0.0, "")
    for name, importer in importers.items():
        score = importer.recognises(head, path)
        if score > 0:
            surest = max(surest, (score, name))
    return surest[1]
