"""The cache of generated data: each set is made once, and checked each time it is used."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from profkit.errors import ProfkitError
from profkit.progress import Narrator, Progress, ProgressBar
from profkit.text import safe_text

MANIFEST = "CHECKSUM"
"""The file that is written last in a set; `sha256sum -c CHECKSUM` understands it."""

REMEDY = "set PROFKIT_CACHE to a folder with room"

HEADER, TOTAL = "# set ", "# total "
"""The beginnings of the manifest's first and last line."""

STALE_S = 86_400
"""Age in seconds at which an unfinished set counts as left by a killed process."""

PUBLISH_TRIES = 3

Maker = Callable[[Path, Progress], None]
"""Writes a set into an empty folder."""


@dataclass(frozen=True)
class Recipe:
    """Everything that a set's content depends on, as JSON values. Each recipe has its folder."""

    name: str
    settings: Mapping[str, Any]

    @property
    def json(self) -> dict[str, Any]:
        return {"name": self.name, "settings": dict(self.settings)}

    @property
    def folder_name(self) -> str:
        return f"{self.name}-{hashlib.sha256(_json_line(self.json).encode()).hexdigest()[:16]}"


def cache_root(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of everything that profkit can make again."""
    if own := environ.get("PROFKIT_CACHE"):
        return Path(own).absolute()
    shared = environ.get("XDG_CACHE_HOME", "")
    if Path(shared).is_absolute():  # the XDG specification says to ignore a relative one
        return Path(shared) / "profkit"
    try:
        return Path.home() / ".cache" / "profkit"
    except RuntimeError as error:
        raise ProfkitError(f"no home folder to keep generated data in; {REMEDY}") from error


def ensure(
    recipe: Recipe,
    make: Maker,
    *,
    what: str = "a data set",
    root: Path | None = None,
    narrate: Narrator = ProgressBar,
) -> Path:
    """Return the folder of the recipe's set; call `make` if it is missing or damaged.

    Processes that call this at the same time get the same folder, but each does the work: call it
    before starting ranks. The set is what `make` writes into the folder that it is given.
    """
    folder = (root or cache_root()) / "data" / recipe.folder_name
    shown = safe_text(str(folder))
    try:
        damage = find_damage(folder, recipe)
        if damage is None:
            return folder
        if folder.exists():
            print(f"{shown}: {damage}; making it again", file=sys.stderr)
        folder.parent.mkdir(parents=True, exist_ok=True)
        _remove_stale(folder)
        made = _new_sibling(folder)
        made.mkdir()
        try:
            with narrate(f"making {what} in {shown}") as progress:
                make(made, progress)
                _write_manifest(made, recipe)
                _publish(made, folder, recipe)
        finally:
            _remove(made)
    except OSError as error:
        reason = error.strerror or error
        raise ProfkitError(f"{shown}: cannot be made: {reason}; {REMEDY}") from error
    return folder


def find_damage(folder: Path, recipe: Recipe, *, full: bool = False) -> str | None:
    """Compare a set with its manifest, and return the first difference, or None.

    Files and their sizes are compared, and with `full` their content.
    """
    if not folder.exists():
        return "not there"
    try:
        lines = (folder / MANIFEST).read_text(encoding="utf-8").rstrip("\n").split("\n")
    except (OSError, UnicodeDecodeError):
        return f"{MANIFEST} cannot be read"
    body, total = lines[:-1], lines[-1]
    if not body or not body[0].startswith(HEADER) or total != _total_line(body):
        return f"{MANIFEST} is damaged"
    header = json.loads(body[0].removeprefix(HEADER))
    if header["recipe"] != json.loads(_json_line(recipe.json)):
        return f"{MANIFEST} is of another recipe"
    return _find_wrong_file(folder, header["sizes"], body[1:] if full else [])


def _find_wrong_file(folder: Path, sizes: Mapping[str, int], lines: list[str]) -> str | None:
    """Compare the files' sizes, and their content with the digests in `lines`."""
    for name, size in sizes.items():
        try:
            found = os.stat(folder / name).st_size
        except OSError:
            return f"{safe_text(name)} is missing"
        if found != size:
            return f"{safe_text(name)} has {found} bytes instead of {size}"
    for line in lines:
        digest, name = line.split("  ", 1)
        if _digest(folder / name) != digest:
            return f"{safe_text(name)} has another content"
    return None


def _publish(made: Path, folder: Path, recipe: Recipe) -> None:
    """Rename into place; if another process was first and its set is whole, that one stays."""
    for _ in range(PUBLISH_TRIES):
        with contextlib.suppress(OSError):
            made.rename(folder)
            return
        if find_damage(folder, recipe) is None:
            return
        with contextlib.suppress(FileNotFoundError):  # another process is moving it away as well
            # Renamed before it is removed, so that nobody ever sees a set that is half removed.
            removed = folder.rename(_new_sibling(folder))
            _remove(removed)
    made.rename(folder)


def _new_sibling(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.{secrets.token_hex(6)}")


def _remove_stale(folder: Path) -> None:
    """Remove unfinished copies of this set whose makers were killed a day ago or earlier."""
    for left in folder.parent.glob(f".{folder.name}.*"):
        with contextlib.suppress(FileNotFoundError):
            if time.time() - left.stat().st_mtime > STALE_S:
                _remove(left)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _write_manifest(folder: Path, recipe: Recipe) -> None:
    files = filter(Path.is_file, folder.rglob("*"))
    sizes, digests = {}, []
    for name in sorted(path.relative_to(folder).as_posix() for path in files):
        sizes[name] = (folder / name).stat().st_size
        digests.append(f"{_digest(folder / name)}  {name}")
    body = [HEADER + _json_line({"recipe": recipe.json, "sizes": sizes}), *digests]
    (folder / MANIFEST).write_text("\n".join([*body, _total_line(body)]) + "\n", encoding="utf-8")


def _total_line(body: list[str]) -> str:
    digest = hashlib.sha256("\n".join(body).encode()).hexdigest()
    return f"{TOTAL}{len(body) - 1} files {digest}"


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _json_line(content: object) -> str:
    return json.dumps(content, sort_keys=True, separators=(",", ":"))
