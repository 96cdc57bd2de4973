"""Where generated data lives, and how a set of it is made once and found whole later."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from profkit.errors import ProfkitError
from profkit.progress import Narrator, Progress, ProgressBar
from profkit.text import safe_text

MANIFEST = "CHECKSUM"
"""The file that is written last in a set; `sha256sum -c CHECKSUM` understands it."""

REMEDY = "set PROFKIT_CACHE to a folder with room"

_HEADER, _TOTAL = "# set ", "# total "
_STALE_S = 86_400
_PUBLISH_TRIES = 3

Maker = Callable[[Path, Progress], None]


@dataclass(frozen=True)
class Recipe:
    """Everything that a set's content depends on, as JSON values; another recipe is another folder."""

    name: str
    settings: Mapping[str, Any]

    @property
    def json(self) -> dict[str, Any]:
        return {"name": self.name, "settings": dict(self.settings)}

    @property
    def folder_name(self) -> str:
        return f"{self.name}-{hashlib.sha256(_json_line(self.json).encode()).hexdigest()[:16]}"


def cache_root(environ: Mapping[str, str] = os.environ) -> Path:
    """The folder of everything that profkit can make again."""
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
    """The folder of the set that `recipe` tells, made by `make` if it is not there whole.

    Processes that call it at once end with the same folder, but each does the work: call it before
    starting ranks. What `make` writes into the folder that it is given is the set.
    """
    folder = (root or cache_root()) / "data" / recipe.folder_name
    try:
        damage = find_damage(folder, recipe)
        if damage is None:
            return folder
        if folder.exists():
            print(f"{safe_text(str(folder))}: {damage}; making it again", file=sys.stderr)
        _make_and_publish(
            recipe, make, folder, narrate(f"making {what} in {safe_text(str(folder))}")
        )
    except OSError as error:
        raise ProfkitError(
            f"{safe_text(str(folder))}: cannot be made: {error.strerror or error}; {REMEDY}"
        ) from error
    return folder


def find_damage(folder: Path, recipe: Recipe, *, full: bool = False) -> str | None:
    """What is wrong with a set, or None for a whole one: files and their sizes, and with `full` their content."""
    if not folder.exists():
        return "not there"
    try:
        lines = (folder / MANIFEST).read_text(encoding="utf-8").rstrip("\n").split("\n")
    except (OSError, UnicodeDecodeError):
        return f"{MANIFEST} cannot be read"
    body, total = lines[:-1], lines[-1]
    if not body or not body[0].startswith(_HEADER) or total != _total_line(body):
        return f"{MANIFEST} is damaged"
    header = json.loads(body[0].removeprefix(_HEADER))
    if header["recipe"] != json.loads(_json_line(recipe.json)):
        return f"{MANIFEST} tells another recipe"
    return _wrong_size(folder, header["sizes"]) or (
        _wrong_content(folder, body[1:]) if full else None
    )


def _wrong_size(folder: Path, sizes: Mapping[str, int]) -> str | None:
    for name, size in sizes.items():
        try:
            found = os.stat(folder / name).st_size
        except OSError:
            return f"{safe_text(name)} is missing"
        if found != size:
            return f"{safe_text(name)} has {found} bytes instead of {size}"
    return None


def _wrong_content(folder: Path, lines: list[str]) -> str | None:
    pairs = (line.split("  ", 1) for line in lines)
    return next(
        (
            f"{safe_text(name)} has another content"
            for digest, name in pairs
            if _digest(folder / name) != digest
        ),
        None,
    )


def _make_and_publish(
    recipe: Recipe, make: Maker, folder: Path, telling: contextlib.AbstractContextManager[Progress]
) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    _sweep(folder)
    with _temporary_sibling(folder) as made, telling as progress:
        make(made, progress)
        _write_manifest(made, recipe)
        _publish(made, folder, recipe)


def _publish(made: Path, folder: Path, recipe: Recipe) -> None:
    """Rename into place; where another process was first and its set is whole, that one stays."""
    for _ in range(_PUBLISH_TRIES):
        with contextlib.suppress(OSError):
            made.rename(folder)
            return
        if find_damage(folder, recipe) is None:
            return
        with contextlib.suppress(FileNotFoundError):  # another process is moving it away as well
            _move_away(folder)
    made.rename(folder)


def _move_away(folder: Path) -> None:
    """Renamed before it is removed, so that nobody ever sees a set that is half removed."""
    aside = _sibling(folder)
    folder.rename(aside)
    _remove(aside)


@contextlib.contextmanager
def _temporary_sibling(folder: Path) -> Iterator[Path]:
    """A new folder beside `folder`, gone at the end whatever happens, unless it was renamed."""
    sibling = _sibling(folder)
    sibling.mkdir()
    try:
        yield sibling
    finally:
        _remove(sibling)


def _sibling(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.{secrets.token_hex(6)}")


def _sweep(folder: Path) -> None:
    """Remove what makers of this set left that were killed a day ago or earlier."""
    for left in folder.parent.glob(f".{folder.name}.*"):
        with contextlib.suppress(FileNotFoundError):
            if time.time() - left.stat().st_mtime > _STALE_S:
                _remove(left)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _write_manifest(folder: Path, recipe: Recipe) -> None:
    names = sorted(
        path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()
    )
    sizes = {name: (folder / name).stat().st_size for name in names}
    body = [_HEADER + _json_line({"recipe": recipe.json, "sizes": sizes})]
    body += [f"{_digest(folder / name)}  {name}" for name in names]
    (folder / MANIFEST).write_text("\n".join([*body, _total_line(body)]) + "\n", encoding="utf-8")


def _total_line(body: list[str]) -> str:
    digest = hashlib.sha256("\n".join(body).encode()).hexdigest()
    return f"{_TOTAL}{len(body) - 1} files {digest}"


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _json_line(content: object) -> str:
    return json.dumps(content, sort_keys=True, separators=(",", ":"))
