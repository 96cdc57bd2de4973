"""What every importer is: it knows its format by a file's first bytes, and writes runs of the contract.

To add a format, add a module here whose `IMPORTER` has the members of `Importer`. An importer is
given all of the command's files that are its own, because ranks of one job come as one file each;
how many runs they make is its decision. What a source does not know stays null, and what an
importer drops or repairs is counted under a name that a person understands.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import re
import shutil
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import pyarrow as pa

from profkit import __version__
from profkit.errors import ProfkitError, UnreadableError, UsageError
from profkit.schema import name_columns
from profkit.text import did_you_mean, safe_text
from profkit.trace.files import RankFiles, new_run_folder
from profkit.trace.manifest import RankManifest, RunManifest
from profkit.vocab import RunState, rank_folder

HEAD_BYTES = 65_536
LONGEST_NAME = 4_096
"""Characters of a name that are kept: kernels' names are long, and a hostile one may be the whole file."""

_GZIP = b"\x1f\x8b"
_NOT_IN_FILE_NAMES = re.compile(r"[^A-Za-z0-9._+-]+")


@dataclass(frozen=True)
class ImportOptions:
    """What the user says of the files, where they do not say it themselves."""

    name: str = ""
    samples_per_step: int | None = None
    keep_private: bool = False
    """Whether command lines, user names and environment variables are kept."""


@dataclass(frozen=True)
class Imported:
    """One run that was made: what went in, what was left out, and what a reader must know."""

    run: Path
    importer: str
    sources: tuple[Path, ...]
    ranks: int
    rows: Mapping[str, int]
    dropped: Mapping[str, int] = field(default_factory=dict)
    flags: tuple[str, ...] = ()


class Importer(Protocol):
    """One format. `name` is what `--format` takes, `title` what people call it."""

    name: str
    title: str

    def recognises(self, head: bytes, path: Path) -> float:
        """From 0, not this format, to 1, certainly; `head` is the file's beginning, decompressed."""

    def read(self, sources: Sequence[Path], target: Target) -> Iterator[Imported]:
        """Write the files' runs, one after the other; raises `UnreadableError` for what is no such file."""


@dataclass(frozen=True)
class Target:
    """Where an importer writes its runs, and what the user said of them."""

    folder: Path
    options: ImportOptions = ImportOptions()

    def new_run(self, importer: str, sources: Sequence[Path], name: str = "") -> RunDraft:
        """A run to be written; its name is the user's, else `name`, else the first file's."""
        chosen = self.options.name or name or _stem(sources[0])
        with _writing_into(self.folder):
            return RunDraft(
                new_run_folder(self.folder, file_name(chosen)), importer, tuple(sources)
            )


class RunDraft:
    """A run that is being written. Left without `finish`, it is removed again.

    `dropped` and `flags` may be added to until then.
    """

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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self._finished:
            shutil.rmtree(self.run, ignore_errors=True)

    def rank(self, manifest: RankManifest) -> RankDraft:
        """A rank's tables, open for rows."""
        with _writing_into(self.run):
            draft = RankDraft(
                RankFiles(self.run / rank_folder(manifest.rank), manifest.rank), manifest
            )
        self._ranks.append(draft)
        return draft

    def finish(self, manifest: RunManifest) -> Imported:
        """Close every rank and write `run.json`; only then the run is there for others."""
        rows: Counter[str] = Counter()
        for rank in self._ranks:
            rank.close()
            rows.update(rank.rows)
        notes = tuple(f"{count:,} {what}" for what, count in sorted(self.dropped.items()))
        flags = tuple(map(safe_text, self.flags))
        config = {
            "imported_from": self._importer,
            "sources": [safe_text(path.name) for path in self._sources],
            **manifest.config,
        }
        state = RunState.COMPLETE if manifest.state is RunState.RUNNING else manifest.state
        whole = dataclasses.replace(
            manifest,
            state=state,
            config=config,
            notes=(*manifest.notes, *notes),
            flags=(*manifest.flags, *flags),
            profkit_version=manifest.profkit_version or __version__,
        )
        with _writing_into(self.run):
            whole.write(self.run)
        self._finished = True
        return Imported(
            self.run,
            self._importer,
            self._sources,
            len(self._ranks),
            dict(rows),
            dict(self.dropped),
            flags,
        )


@contextlib.contextmanager
def _writing_into(run: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ProfkitError(
            f"{safe_text(str(run))}: cannot be written ({error.strerror or error}); choose another place with --output"
        ) from error


class RankDraft:
    """One rank's tables; names are cleaned at this door, whoever wrote them."""

    def __init__(self, files: RankFiles, manifest: RankManifest) -> None:
        self.rows: Counter[str] = Counter()
        self._files = files
        manifest.write(files.folder)

    def write(self, table: str, columns: Mapping[str, Any]) -> None:
        """Append rows, given as columns without `rank`: lists, numpy arrays, Arrow arrays; names as text or dictionaries."""
        names = name_columns(table)
        self._files.write(
            table,
            {
                column: _clean(values) if column in names else values
                for column, values in columns.items()
            },
        )
        if self._files.failure:
            raise ProfkitError(
                f"{safe_text(str(self._files.folder))}: {self._files.failure}; choose another place with --output"
            )
        self.rows[table] += len(next(iter(columns.values())))

    def close(self) -> None:
        self._files.close()
        if self._files.failure:
            raise ProfkitError(
                f"{safe_text(str(self._files.folder))}: {self._files.failure}; choose another place with --output"
            )


def _clean(values: Any) -> Any:
    if isinstance(values, pa.DictionaryArray):
        return pa.DictionaryArray.from_arrays(
            values.indices,
            pa.array([clean_name(name) for name in values.dictionary.to_pylist()], pa.string()),
        )
    return [None if name is None else clean_name(name) for name in values]


@functools.lru_cache(maxsize=65_536)
def clean_name(name: str) -> str:
    """A stranger's name as it may be stored: nothing in it steers a terminal, and it has an end."""
    shown = safe_text(name)
    return shown if len(shown) <= LONGEST_NAME else shown[: LONGEST_NAME - 1] + "…"


def file_name(name: str) -> str:
    """`name` as a folder's name: letters, digits and a few marks; never hidden, never a path."""
    return _NOT_IN_FILE_NAMES.sub("-", name).strip("-.")[:120] or "imported"


def _stem(path: Path) -> str:
    """The file's name without the endings that say what it is."""
    name = path.name
    for ending in (".gz", ".json", ".trace", ".pt", ".sqlite", ".log", ".txt", ".pkl", ".jsonl"):
        name = name.removesuffix(ending)
    return name


def read_head(path: Path) -> bytes:
    """The file's first bytes, decompressed; an `UnreadableError` where there are none to read."""
    try:
        with open(path, "rb") as file:
            head = file.read(HEAD_BYTES)
    except OSError as error:
        raise UnreadableError(f"{safe_text(str(path))}: {error.strerror}") from error
    if not head.startswith(_GZIP):
        return head
    try:
        return zlib.decompressobj(wbits=31).decompress(head, HEAD_BYTES)
    except zlib.error:
        raise UnreadableError(f"{safe_text(str(path))}: a damaged gzip file") from None


def expand(paths: Sequence[Path]) -> tuple[list[Path], set[Path]]:
    """The files to import, folders replaced by their files; and which of them were only found in a folder."""
    files: list[Path] = []
    found: set[Path] = set()
    for path in paths:
        inside = (
            sorted(
                each for each in path.iterdir() if each.is_file() and not each.name.startswith(".")
            )
            if path.is_dir()
            else [path]
        )
        found.update(inside if path.is_dir() else [])
        files.extend(inside)
    return list(dict.fromkeys(files)), found


@dataclass(frozen=True)
class Plan:
    """Which importer takes which files, in the order given; and the files of folders that none takes."""

    sources: Mapping[str, tuple[Path, ...]]
    unknown: tuple[Path, ...]


def plan_import(
    paths: Sequence[Path], importers: Mapping[str, Importer], format_name: str = ""
) -> Plan:
    """Who reads what, by content; raises where a file that was named itself is of no known format."""
    if format_name and format_name not in importers:
        raise UsageError(
            f"unknown format '{safe_text(format_name)}'{did_you_mean(format_name, importers)} (there are: {', '.join(sorted(importers))})"
        )
    files, found = expand(paths)
    sources: dict[str, list[Path]] = {}
    unknown = []
    for path in files:
        name = format_name or recognise(path, importers)
        if name:
            sources.setdefault(name, []).append(path)
        elif path in found:
            unknown.append(path)
        else:
            raise UnreadableError(
                f"{safe_text(str(path))}: not a format that profkit imports (there are: {', '.join(sorted(importers))}); --format names one"
            )
    if not sources:
        raise UnreadableError(
            f"{safe_text(os.fspath(paths[0]))}: holds no file that profkit imports"
        )
    return Plan({name: tuple(each) for name, each in sources.items()}, tuple(unknown))


def recognise(path: Path, importers: Mapping[str, Importer]) -> str:
    """The importer that is surest of the file, or nothing."""
    head = read_head(path)
    surest = max(
        ((importer.recognises(head, path), name) for name, importer in importers.items()),
        default=(0.0, ""),
    )
    return surest[1] if surest[0] > 0 else ""
