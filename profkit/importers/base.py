"""The contract of an importer, and the run that it writes.

To add a format, add a module here whose `IMPORTER` has the members of `Importer`. What a source
does not know stays null. What an importer drops or repairs is counted under a name.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import re
import shutil
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from profkit.errors import ProfkitError, UnreadableError
from profkit.schema import name_columns
from profkit.text import safe_text
from profkit.trace.files import RankFiles, new_run_folder
from profkit.trace.flag import Flag
from profkit.trace.manifest import RankManifest, RunManifest
from profkit.version import __version__
from profkit.vocab import RunState, rank_folder

HEAD_BYTES = 65_536
LONGEST_NAME = 4_096
"""Longer names are cut: kernels have long names, but a hostile one may fill the whole file."""
LONGEST_FILE_NAME = 120
_GZIP = b"\x1f\x8b"
_NOT_IN_FILE_NAMES = re.compile(r"[^A-Za-z0-9._+-]+")
_SUFFIXES = (".gz", ".json", ".trace", ".pt", ".sqlite", ".log", ".txt", ".pkl", ".jsonl")
_OTHER_PLACE = "choose another place with --output"


@dataclass(frozen=True)
class ImportOptions:
    """The user's statements about the files, for what these do not say themselves."""

    name: str = ""
    samples_per_step: int | None = None
    keep_private: bool = False
    """Whether command lines, user names and environment variables are kept."""


@dataclass(frozen=True)
class Imported:
    """One run that was written: its sources, its ranks of the job's, its rows and its flags."""

    run: Path
    format: str
    sources: tuple[Path, ...]
    ranks: int
    ranks_of_job: int
    rows: Mapping[str, int]
    dropped: Mapping[str, int]
    flags: tuple[str, ...]


class Importer(Protocol):
    """One format. `name` is its name for `--format`, `title` the one that people know.

    If files become runs of their own, `divide(sources)` returns the files of each run, so that one
    which cannot be read stops no other. Without it, one file that cannot be read stops all.
    """

    name: str
    title: str

    def recognises(self, head: bytes, path: Path) -> float:
        """Return from 0, not this format, to 1, certainly; `head` is decompressed."""

    def read(self, sources: Sequence[Path], target: Target) -> Iterator[Imported]:
        """Write the files' runs one by one; raise `UnreadableError` for other formats."""


@dataclass(frozen=True)
class Target:
    """The folder for an importer's runs, and the user's options."""

    folder: Path
    options: ImportOptions = ImportOptions()

    def new_run(self, importer: str, sources: Sequence[Path], name: str = "") -> RunDraft:
        """Begin a run, named as the user wants, else `name`, else as the first file."""
        chosen = self.options.name or name
        if not chosen:
            chosen = sources[0].name
            for suffix in _SUFFIXES:
                chosen = chosen.removesuffix(suffix)
        with _writing_into(self.folder):
            folder = new_run_folder(self.folder, file_name(chosen))
            return RunDraft(folder, importer, tuple(sources))


class RunDraft:
    """A run that is being written; it is removed again if it is left without `finish`."""

    def __init__(self, run: Path, importer: str, sources: tuple[Path, ...]) -> None:
        self.run = run
        self.dropped: Counter[str] = Counter()
        self.flags: list[str] = []
        self._importer = importer
        self._sources = sources
        self._ranks: list[RankDraft] = []
        self._finished = False

    def __enter__(self) -> RunDraft:
        return self

    def __exit__(self, *error: object) -> None:
        if not self._finished:
            shutil.rmtree(self.run, ignore_errors=True)

    def rank(self, manifest: RankManifest) -> RankDraft:
        """Begin a rank's tables."""
        with _writing_into(self.run):
            files = RankFiles(self.run / rank_folder(manifest.rank), manifest.rank)
            self._ranks.append(RankDraft(files, manifest))
        return self._ranks[-1]

    def finish(self, manifest: RunManifest) -> Imported:
        """Close every rank and write `run.json`, with which the run exists for others."""
        rows: Counter[str] = Counter()
        for rank in self._ranks:
            rank.close()
            rows.update(rank.rows)
        if rows and not rows.total():
            why = next(filter(lambda flag: "dropped" in flag, self.flags), "it is empty")
            name = safe_text(str(self._sources[0]))
            raise UnreadableError(f"{name}: nothing in it can be imported: {why}")
        said = list(map(Flag, (*manifest.flags, *self.flags)))
        for path in self._sources:  # their folders name users
            name = safe_text(str(path))
            said = [flag.said_as(flag.replace(name, path.name)) for flag in said]
        flags = tuple(dict.fromkeys(flag.safe for flag in said))
        config = {
            "imported_from": self._importer,
            "sources": [safe_text(path.name) for path in self._sources],
            **manifest.config,
        }
        dropped = [f"{count:,} {what}" for what, count in sorted(self.dropped.items())]
        is_whole = manifest.state is RunState.RUNNING
        whole = dataclasses.replace(
            manifest,
            state=RunState.COMPLETE if is_whole else manifest.state,
            config=config,
            notes=(*manifest.notes, *dropped),
            flags=flags,
            profkit_version=manifest.profkit_version or __version__,
        )
        with _writing_into(self.run):
            whole.write(self.run)
        self._finished = True
        ranks = len(self._ranks), max(len(self._ranks), whole.world_size)
        counts = dict(rows), dict(self.dropped)
        return Imported(self.run, self._importer, self._sources, *ranks, *counts, flags)


@contextlib.contextmanager
def _writing_into(run: Path) -> Iterator[None]:
    """Turn failures of the file system into errors that name the folder."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or error
        raise ProfkitError(
            f"{safe_text(str(run))}: cannot be written ({reason}); {_OTHER_PLACE}"
        ) from error


class RankDraft:
    """One rank's tables. All names are cleaned here, whichever importer writes them."""

    def __init__(self, files: RankFiles, manifest: RankManifest) -> None:
        self.rows: Counter[str] = Counter()
        self._files = files
        manifest.write(files.folder)

    def write(self, table: str, columns: Mapping[str, Any]) -> None:
        """Append rows as columns without `rank`: lists, or arrays of numpy or Arrow."""
        cleaned = dict(columns)
        for column in name_columns(table):
            if column in cleaned:
                cleaned[column] = clean_names(cleaned[column])
        self._files.write(table, cleaned)
        self._check_files()
        self.rows[table] += len(next(iter(columns.values())))

    def close(self) -> None:
        self._files.close()
        self._check_files()

    def _check_files(self) -> None:
        if self._files.failure:
            folder = safe_text(str(self._files.folder))
            raise ProfkitError(f"{folder}: {self._files.failure}; {_OTHER_PLACE}")


def clean_names(values: Any) -> Any:
    """Return a column of names in which each name is clean."""
    if isinstance(values, pa.DictionaryArray):
        names = list(map(clean_name, values.dictionary.to_pylist()))
        return pa.DictionaryArray.from_arrays(values.indices, pa.array(names, pa.string()))
    return [None if name is None else clean_name(name) for name in values]


@functools.lru_cache(maxsize=65_536)
def clean_name(name: str) -> str:
    """Return a stranger's name, cut and without characters that steer a terminal."""
    shown = safe_text(name)
    return shown if len(shown) <= LONGEST_NAME else shown[: LONGEST_NAME - 1] + "…"


def file_name(name: str) -> str:
    """Return `name` as a folder's name: letters, digits and a few marks, never hidden."""
    return _NOT_IN_FILE_NAMES.sub("-", name).strip("-.")[:LONGEST_FILE_NAME] or "imported"


def read_head(path: Path) -> bytes:
    """Return the file's first bytes, decompressed."""
    try:
        with open(path, "rb") as file:
            head = file.read(HEAD_BYTES)
    except OSError as error:
        raise cannot_read(path, error) from error
    if not head.startswith(_GZIP):
        return head
    try:
        return zlib.decompressobj(wbits=31).decompress(head, HEAD_BYTES)
    except zlib.error:
        raise UnreadableError(
            f"{safe_text(str(path))}: a damaged gzip file; copy it again"
        ) from None


def cannot_read(path: Path, error: OSError) -> UnreadableError:
    """Return an error that names the file, the reason and the remedy."""
    remedy = ""
    if isinstance(error, PermissionError):
        remedy = "; copy the file or have its owner share it"
    return UnreadableError(f"{safe_text(str(path))}: {error.strerror or error}{remedy}")
