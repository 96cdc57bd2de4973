"""Functions of the job's own code whose text differs between two runs."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from profkit.analysis.config_join import ANY, NONE, Difference
from profkit.errors import UnreadableError
from profkit.eye.announcing import FOLDER, FUNCTIONS
from profkit.text import safe_text
from profkit.trace.jsonfile import read_json

Hashes: TypeAlias = dict[str, Mapping[str, Any]]
"""The hash of each function, by its name, of each file."""

SHOWN_CHARS = 7
"""As git shows a commit."""


def find_code_changes(base: Path, target: Path) -> Iterator[Difference]:
    """Yield the functions that differ, or that one run lacks, of files that both runs know.

    Files that only one path leads to are matched below the folder that holds all such files.
    """
    left, right = _read_hashes(base), _read_hashes(target)
    both = left.keys() & right.keys()
    for names in (both, (left.keys() | right.keys()) - both):
        yield from _compare(_below(left, names), _below(right, names))


def _compare(left: Hashes, right: Hashes) -> Iterator[Difference]:
    for file in sorted(left.keys() & right.keys()):
        before, after = left[file], right[file]
        for name in sorted(before.keys() | after.keys()):
            if before.get(name) != after.get(name):
                label = f"code of {file}:{name}"
                yield Difference(safe_text(label), _show(before, name), _show(after, name), ANY)


def _show(functions: Mapping[str, Any], name: str) -> str:
    return safe_text(str(functions.get(name, NONE))[:SHOWN_CHARS])


def _below(files: Hashes, chosen: Collection[str]) -> Hashes:
    """Return the chosen files by their path below the folder that holds all of them."""
    absolute = {f"/{file.lstrip('/')}": names for file, names in files.items() if file in chosen}
    if not absolute:
        return {}
    folder = os.path.commonpath(list(map(os.path.dirname, absolute)))
    return {os.path.relpath(file, folder): names for file, names in absolute.items()}


def _read_hashes(run: Path) -> Hashes:
    found: Hashes = {}
    for path in sorted(run.glob(f"{FOLDER}/*.{FUNCTIONS}")):
        with contextlib.suppress(UnreadableError):  # a fact that cannot be read is no difference
            files = read_json(path).get(FUNCTIONS)
            for file, names in files.items() if isinstance(files, dict) else ():
                if isinstance(names, dict):
                    found[file] = names
    return found
