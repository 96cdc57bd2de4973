"""Check a run on disk: complete, ended early or torn, and what was lost."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import platform
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from profkit.address import to_path
from profkit.errors import UnreadableError
from profkit.plain_file import NOT_PLAIN
from profkit.text import safe_text
from profkit.trace.manifest import RunManifest
from profkit.trace.reader import RankEnd, RankTrace, find_ranks
from profkit.vocab import (
    EYE,
    EYE_TABLES,
    RANK_FILE,
    RUN_FILE,
    TABLES,
    Integrity,
    RunState,
)

MOST_RANKS_NAMED = 8
"""A sentence names this number of ranks and counts the others."""

OTHER_FILES = ("status/*", ".attached")
"""Files of a run without rows: what ranks say of themselves, and what is there while they run."""


@dataclass(frozen=True)
class TableCheck:
    """One table of one rank: what can be read of it, and what its end record promised."""

    rank: int
    table: str
    rows: int
    expected: int | None
    lost: int
    """Rows that the end record counts and that cannot be read, or lines of a file of lines."""
    dropped: int
    problem: str


@dataclass(frozen=True)
class Verification:
    """The result of `profkit verify`."""

    path: Path
    state: Integrity
    reasons: tuple[str, ...]
    tables: tuple[TableCheck, ...]

    rows: int
    lost: int
    dropped: int


class _Part(NamedTuple):
    """The state of one part of a run: its manifest, or a rank."""

    state: Integrity
    reason: str = ""
    tables: tuple[TableCheck, ...] = ()


def verify(run: str | Path) -> Verification:
    """Read every byte of a run and return its state. Raise only if there is no run."""
    path = to_path(run)
    ranks = list(find_ranks(path)) if path.is_dir() else []
    parts = []
    try:
        manifest = RunManifest.read(path)
    except UnreadableError as error:
        # Other errors: `run.json` is another program's, or a newer profkit's.
        is_damage = "damaged" in str(error) or not os.path.lexists(path / RUN_FILE)
        if not ranks or not is_damage:
            raise
        parts.append(_Part(Integrity.TORN, str(error)))
        manifest = RunManifest(workload="", world_size=len(ranks), state=RunState.COMPLETE)
    whole = _state_of_run(manifest)
    parts.append(whole)
    running = whole.state is Integrity.RUNNING
    for rank in ranks:
        parts.append(_state_of_rank(rank, running=running))
        parts += _check_eye(rank, running=running)
    parts += _check_others(path)
    missing = sorted(set(range(manifest.world_size)) - {rank.rank for rank in ranks})
    # Another tool's file often holds rank 0 alone, which is no sign of a loss.
    if missing and "imported_from" not in manifest.config:
        state = Integrity.RUNNING if running else Integrity.ENDED_EARLY
        parts.append(_Part(state, f"{_name_ranks(missing)} left no files"))
    worst = max((part.state for part in parts), key=lambda state: state.severity)
    tables: list[TableCheck] = []
    for part in parts:
        tables.extend(part.tables)
    reasons = tuple(part.reason for part in parts if part.reason)
    rows, lost, dropped = 0, 0, 0
    for check in tables:
        rows += check.rows
        lost += check.lost
        dropped += check.dropped
    return Verification(path, worst, reasons, tuple(tables), rows, lost, dropped)


def _state_of_run(manifest: RunManifest) -> _Part:
    if manifest.state is RunState.COMPLETE:
        return _Part(Integrity.COMPLETE)
    if manifest.state is RunState.ABORTED:
        why = manifest.why or "no reason was given"
        return _Part(Integrity.ENDED_EARLY, f"the run was aborted: {why}")
    if owner_lives(manifest.owner):
        return _Part(Integrity.RUNNING, "the job is still running")
    reason = "the job ended without saying so (killed, or its machine went down)"
    return _Part(Integrity.ENDED_EARLY, reason)


def owner_lives(owner: Mapping[str, object]) -> bool:
    """Return true if the process that writes the run is alive, or is on another host."""
    pid = owner.get("pid")
    if not isinstance(pid, int) or pid <= 0:
        return False
    if owner.get("host") != platform.node():
        return True
    started = _start_of(pid)
    return started is not None and started == owner.get("started")


def _start_of(pid: int) -> int | None:
    """Return when a process started, in kernel ticks, which tells reused process ids apart."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    return int(fields[19]) if fields[0] != b"Z" else None


def this_process() -> dict[str, object]:
    """Return how a run names the process that owns it."""
    return {"host": platform.node(), "pid": os.getpid(), "started": _start_of(os.getpid())}


def _state_of_rank(rank: RankTrace, *, running: bool) -> _Part:
    try:
        end = rank.end
    except UnreadableError as error:
        return _Part(Integrity.TORN, str(error), tuple(_check_tables(rank, None)))
    tables = tuple(_check_tables(rank, end))
    name = f"rank {rank.rank}"
    broken = []
    is_alive = False
    if os.path.lexists(rank.folder / RANK_FILE):
        try:
            manifest = rank.manifest
            is_alive = manifest.host != platform.node() or _start_of(manifest.pid) is not None
        except UnreadableError as error:
            broken.append(str(error))
    # While the rank runs, a message that is half written is no damage.
    if end is None and running and is_alive:
        return _Part(Integrity.RUNNING, f"{name} wrote no end record yet", tables)
    broken += [f"{check.table}: {check.problem}" for check in tables if check.problem]
    if broken:
        return _Part(Integrity.TORN, f"{name}: " + "; ".join(broken), tables)
    if end is None:
        return _Part(Integrity.ENDED_EARLY, f"{name} wrote no end record", tables)
    if end.reason != "complete":
        return _Part(Integrity.ENDED_EARLY, f"{name} stopped capturing: {end.reason}", tables)
    return _Part(Integrity.COMPLETE, tables=tables)


def _check_tables(rank: RankTrace, end: RankEnd | None) -> Iterator[TableCheck]:
    for table in TABLES:
        if rank.eye is not None and table in EYE_TABLES:
            continue
        counts = []  # of a long run's table: of the rows that were thinned, and of the last part
        for known in (end.tables, end.recent) if end else ():
            if table in known:
                counts.append(known[table])
        is_here = os.path.lexists(rank.path(table)) or rank.recent_path(table) is not None
        if not counts and not is_here:
            continue
        content = rank.content(table)
        problem = content.problem
        if end and not counts and not problem:
            problem = "its end record does not know it"
        expected = None
        dropped = 0
        if counts:
            expected = sum(each.get("rows", 0) for each in counts)
            dropped = sum(each.get("dropped", 0) for each in counts)
        lost = max(0, (expected or 0) - content.rows)
        yield TableCheck(rank.rank, table, content.rows, expected, lost, dropped, problem)


def _check_eye(rank: RankTrace, *, running: bool) -> Iterator[_Part]:
    """Yield the state of what a process outside of the job wrote of the rank."""
    if rank.eye is None:
        return
    found, name = _state_of_rank(rank.eye, running=running), f"the lines of rank {rank.rank}"
    tables = [dataclasses.replace(check, table=f"{EYE}/{check.table}") for check in found.tables]
    reason = found.reason.replace(f"rank {rank.rank}", name, 1)
    yield found._replace(tables=tuple(tables), reason=reason)


def _check_others(run: Path) -> Iterator[_Part]:
    """Yield what is no plain file among those that are read elsewhere."""
    for path in sorted(itertools.chain(*map(run.glob, OTHER_FILES))):
        with contextlib.suppress(FileNotFoundError):  # the job has replaced it
            if not stat.S_ISREG(path.lstat().st_mode):
                name = safe_text(str(path.relative_to(run)))
                yield _Part(Integrity.TORN, f"{name}: {NOT_PLAIN}")


def _name_ranks(ranks: list[int]) -> str:
    shown = ", ".join(map(str, ranks[:MOST_RANKS_NAMED]))
    if len(ranks) == 1:
        return f"rank {shown}"
    if len(ranks) > MOST_RANKS_NAMED:
        shown += f" and {len(ranks) - MOST_RANKS_NAMED} more"
    return f"ranks {shown}"
