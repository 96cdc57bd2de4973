"""Checks a run as it lies on disk: complete, ended early or torn, and what was lost."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from profkit.errors import UnreadableError
from profkit.trace.manifest import RunManifest
from profkit.trace.reader import RankEnd, RankTrace, find_ranks
from profkit.vocab import RANK_FILE, RUN_FILE, TABLES, Integrity, RunState


@dataclass(frozen=True)
class TableCheck:
    """One table of one rank: what can be read of it, and what its end record promised."""

    rank: int
    table: str
    rows: int
    expected: int | None
    dropped: int
    problem: str

    @property
    def lost(self) -> int:
        """Rows that the end record counts and that cannot be read any more."""
        return max(0, (self.expected or 0) - self.rows)


@dataclass(frozen=True)
class Verification:
    """What `profkit verify` found."""

    path: Path
    state: Integrity
    reasons: tuple[str, ...]
    tables: tuple[TableCheck, ...]

    @property
    def rows(self) -> int:
        return sum(check.rows for check in self.tables)

    @property
    def lost(self) -> int:
        return sum(check.lost for check in self.tables)

    @property
    def dropped(self) -> int:
        return sum(check.dropped for check in self.tables)


def verify(run: str | Path) -> Verification:
    """Read every byte of a run and say what state it is in; raises only where there is no run."""
    path = Path(run)
    ranks = list(find_ranks(path)) if path.is_dir() else []
    state, reasons = Integrity.COMPLETE, []
    try:
        manifest = RunManifest.read(path)
    except UnreadableError as error:
        if not ranks or not _is_damage(path):
            raise
        state, reasons, manifest = (
            Integrity.TORN,
            [str(error)],
            RunManifest(workload="", world_size=len(ranks), state=RunState.COMPLETE),
        )
    findings = [_state_of_run(manifest)]
    running = findings[0][0] is Integrity.RUNNING
    findings += [_state_of_rank(rank, running=running) for rank in ranks]
    missing = sorted(set(range(manifest.world_size)) - {rank.rank for rank in ranks})
    if (
        missing and "imported_from" not in manifest.config
    ):  # another tool's file holds what it holds, often rank 0 alone
        findings.append(
            (
                Integrity.RUNNING if running else Integrity.ENDED_EARLY,
                f"{_ranks(missing)} left no files",
                (),
            )
        )
    for found, reason, _ in findings:
        state = max(state, found, key=lambda each: each.severity)
        reasons += [reason] if reason else []
    return Verification(
        path, state, tuple(reasons), tuple(check for _, _, checks in findings for check in checks)
    )


_Finding = tuple[Integrity, str, tuple[TableCheck, ...]]


def _is_damage(path: Path) -> bool:
    """Whether `run.json` is broken, rather than another program's or a newer profkit's."""
    try:
        RunManifest.read(path)
    except UnreadableError as error:
        return "damaged" in str(error) or not (path / RUN_FILE).exists()
    return False


def _state_of_run(manifest: RunManifest) -> _Finding:
    if manifest.state is RunState.COMPLETE:
        return Integrity.COMPLETE, "", ()
    if manifest.state is RunState.ABORTED:
        return (
            Integrity.ENDED_EARLY,
            f"the run was aborted: {manifest.why or 'no reason was given'}",
            (),
        )
    if owner_lives(manifest.owner):
        return Integrity.RUNNING, "the job is still running", ()
    return (
        Integrity.ENDED_EARLY,
        "the job ended without saying so (killed, or its machine went down)",
        (),
    )


def owner_lives(owner: Mapping[str, object]) -> bool:
    """Whether the process that writes the run is alive; a process of another host is taken to be."""
    pid = owner.get("pid")
    if not isinstance(pid, int) or pid <= 0:
        return False
    if owner.get("host") != platform.node():
        return True
    return (started := _start_of(pid)) is not None and started == owner.get("started")


def _start_of(pid: int) -> int | None:
    """When a process started, in the kernel's ticks: tells a process from a later one of its number."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    return int(fields[19]) if fields[0] != b"Z" else None


def this_process() -> dict[str, object]:
    """How a run names the process that owns it."""
    return {"host": platform.node(), "pid": os.getpid(), "started": _start_of(os.getpid())}


def _state_of_rank(rank: RankTrace, *, running: bool) -> _Finding:
    try:
        end = rank.end
    except UnreadableError as error:
        checks = tuple(_check_tables(rank, None))
        return Integrity.TORN, str(error), checks
    checks = tuple(_check_tables(rank, end))
    broken = [
        *_broken_manifest(rank),
        *(f"{check.table}: {check.problem}" for check in checks if check.problem),
    ]
    if (
        end is None and running and _still_written(rank)
    ):  # a message that is half written is no damage
        return Integrity.RUNNING, f"rank {rank.rank} wrote no end record yet", checks
    if broken:
        return Integrity.TORN, f"rank {rank.rank}: " + "; ".join(broken), checks
    if end is None:
        return Integrity.ENDED_EARLY, f"rank {rank.rank} wrote no end record", checks
    if end.reason != "complete":
        return Integrity.ENDED_EARLY, f"rank {rank.rank} stopped capturing: {end.reason}", checks
    return Integrity.COMPLETE, "", checks


def _broken_manifest(rank: RankTrace) -> Iterator[str]:
    if (rank.folder / RANK_FILE).exists():
        try:
            _ = rank.manifest
        except UnreadableError as error:
            yield str(error)


def _still_written(rank: RankTrace) -> bool:
    """Whether the process of a rank lives; one of another host is taken to."""
    try:
        manifest = rank.manifest
    except UnreadableError:
        return False
    return manifest.host != platform.node() or _start_of(manifest.pid) is not None


def _check_tables(rank: RankTrace, end: RankEnd | None) -> Iterator[TableCheck]:
    for table in TABLES:
        promised = end.tables.get(table) if end else None
        if promised is None and not rank.path(table).exists():
            continue
        content = rank.content(table)
        problem = content.problem or (
            "its end record does not know it" if end and not promised else ""
        )
        yield TableCheck(
            rank.rank,
            table,
            content.rows,
            promised.get("rows", 0) if promised else None,
            promised.get("dropped", 0) if promised else 0,
            problem,
        )


def _ranks(ranks: list[int]) -> str:
    shown = ", ".join(map(str, ranks[:8])) + (
        f" and {len(ranks) - 8} more" if len(ranks) > 8 else ""
    )
    return f"rank {shown}" if len(ranks) == 1 else f"ranks {shown}"
