"""The rows that add up to the memory that the allocator has reserved at the peak."""

from __future__ import annotations

import functools
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from profkit.analysis.memory.classify import Classifier, How, Row
from profkit.analysis.memory.plain_pickle import load_plain
from profkit.analysis.memory.replay import Replay
from profkit.analysis.memory.replay import replay as replay_events
from profkit.analysis.memory.snapshot import DeviceMemory, SnapshotError, read_snapshot
from profkit.errors import UnreadableError
from profkit.text import byte_size, safe_text
from profkit.trace import Trace
from profkit.trace.jsonfile import read_json, replace_json, with_checksum
from profkit.vocab import MEMORY_AT_FAILURE, MEMORY_OF_WINDOW

MEMORY_FILE = "memory.json"
"""The ledgers of a run, next to `run.json`."""
VERSION = 1
MOST_LINES = 1_000
NO_MODULE = "outside of modules"
MOST_RANKS = 8
"""Ranks whose snapshots are read, which takes about a second each; their memory is much alike."""
REMEDY = "write it again with torch.cuda.memory._dump_snapshot(FILE)"


@dataclass(frozen=True)
class MemoryLine:
    """Blocks of one purpose: those of one line of code, or all of them."""

    row: Row
    bytes: int
    blocks: int
    how: str = ""
    """The evidence for it."""
    line: str = ""
    outer: str = ""
    """The line that called the function of `line`."""


@dataclass(frozen=True)
class MemoryLedger:
    """One device at its peak, or when an allocation failed.

    The rows add up to `reserved`, to the byte.
    """

    device: int
    allocated: int
    reserved: int
    events: int
    moment: int
    """The number of events up to the moment that the rows show."""
    phase: str
    """The last caller before that moment."""
    failed: int | None
    """The bytes of the allocation that failed."""
    device_free: int | None
    """The bytes that the device had left then."""
    misfits: int
    unlike: int
    doubt: int
    failed_line: str = ""
    """The line that asked for it."""
    rank: int = 0
    rows: tuple[MemoryLine, ...] = ()
    lines: tuple[MemoryLine, ...] = ()
    modules: tuple[MemoryLine, ...] = ()
    """The activations by the line of the innermost module's `forward`, and the one around it."""

    def bytes_of(self, row: Row) -> int:
        for each in self.rows:
            if each.row is row:
                return each.bytes
        return 0


def build_ledger(memory: DeviceMemory, rank: int = 0) -> MemoryLedger:
    """Return a device's ledger at its peak."""
    found = replay_events(memory)
    classifier = Classifier(memory.events, found.lives)
    rows, lines, modules = _Sums(), _Sums(), _Sums()
    doubt = allocated = 0
    spans: list[tuple[int, int]] = []
    for life, purpose in zip(found.lives, classifier.purposes(), strict=True):
        row, how = purpose
        if life.is_pending(found.moment):
            row, how = Row.PENDING, How.NONE
        elif not life.is_held(found.moment):
            continue
        else:
            allocated += life.size
        doubt += life.doubt
        spans.append((life.address, life.address + life.size))
        stack = life.stack
        line = stack.line or f"blocks of {byte_size(life.requested)}"
        rows.add((row, "", ""), life.size, how)
        lines.add((row, line, stack.outer), life.size, how)
        if row is Row.ACTIVATIONS:
            modules.add((row, stack.module or NO_MODULE, stack.inside), life.size, how)
    reserved = sum(high - low for low, high in found.spans)
    size, blocks = _free_segments(found, sorted(spans))
    rows.add((Row.FREE, "", ""), size, blocks=blocks)
    holes = reserved - sum(size for size, _, _ in rows.values())
    rows.add((Row.HOLES, "", ""), holes, blocks=0)
    phase, failed, device_free, failed_line = classifier.caller_at(found.moment), None, None, ""
    for event in memory.events[max(0, found.moment) :][:1]:
        if event.action == "oom":
            phase, failed, device_free = classifier.cut, event.size, event.address
            failed_line = event.stack.line
    return MemoryLedger(
        device=memory.device,
        allocated=allocated,
        reserved=reserved,
        events=len(memory.events),
        moment=found.moment + 1,
        phase=phase.value,
        failed=failed,
        device_free=device_free,
        misfits=found.misfits,
        unlike=found.unlike,
        doubt=doubt,
        failed_line=failed_line,
        rank=rank,
        rows=tuple(sorted(rows.lines(), key=lambda each: list(Row).index(each.row))),
        lines=tuple(lines.lines()[:MOST_LINES]),
        modules=tuple(modules.lines()[:MOST_LINES]),
    )


class _Sums(dict[tuple[Row, str, str], tuple[int, int, frozenset[How]]]):
    """Bytes, blocks and their evidence, by row and place."""

    def add(
        self, key: tuple[Row, str, str], size: int, how: How = How.NONE, blocks: int = 1
    ) -> None:
        before, count, hows = self.get(key, (0, 0, frozenset[How]()))
        self[key] = before + size, count + blocks, hows | {how}

    def lines(self) -> list[MemoryLine]:
        """Return the sums, the largest first."""
        found = []
        for (row, line, outer), (size, blocks, hows) in self.items():
            evidence = [each.value for each in How if each.value and each in hows]
            found.append(MemoryLine(row, size, blocks, " and ".join(evidence), line, outer))
        return sorted(found, key=lambda each: (-each.bytes, each.row, each.line, each.outer))


def _free_segments(found: Replay, blocks: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """Return the bytes and the number of the segments without any block."""
    free = []
    for low, high in found.spans:
        place = bisect_left(blocks, (high, 0))
        if not place or blocks[place - 1][1] <= low:
            free.append(high - low)
    return sum(free), len(free)


def build_ledgers(path: Path, rank: int = 0) -> list[MemoryLedger]:
    """Return the ledgers of a snapshot; raise an error with the place and the remedy."""
    try:
        memories = read_snapshot(load_plain(path, REMEDY))
        return list(map(functools.partial(build_ledger, rank=rank), memories))
    except SnapshotError as error:
        raise UnreadableError(f"{safe_text(str(path))}: {error}; {REMEDY}") from None


@functools.lru_cache(maxsize=MOST_RANKS)
def _kept_ledgers(path: Path, changed_ns: int) -> list[MemoryLedger]:
    """Return the ledgers of a file of a run, which screens ask for again and again."""
    return build_ledgers(path, int(path.stem.rpartition("-")[2]))


def find_ledgers(trace: Trace) -> tuple[tuple[MemoryLedger, ...], tuple[str, ...]]:
    """Return a run's ledgers, those of a failure first, then the fullest, and what is damaged."""
    found, problems = list(read_ledgers(trace.path)), []
    paths: list[Path] = []
    for name in () if found else (MEMORY_AT_FAILURE, MEMORY_OF_WINDOW):
        paths = paths or sorted(trace.path.glob(f"{name}-*.pickle"))[:MOST_RANKS]
    for path in paths:
        try:
            found += _kept_ledgers(path, path.stat().st_mtime_ns)
        except (UnreadableError, OSError, ValueError) as error:
            problems.append(f"memory: {str(error).removesuffix(f'; {REMEDY}')}")
    found.sort(key=lambda each: (each.failed is None, -each.reserved, each.rank, each.device))
    return tuple(found), tuple(problems)


def write_ledgers(folder: Path, ledgers: Sequence[MemoryLedger]) -> None:
    devices = list(map(asdict, ledgers))
    content = {f"devices in version {VERSION}": devices}
    replace_json(folder / MEMORY_FILE, with_checksum(content))


def read_ledgers(folder: Path) -> tuple[MemoryLedger, ...]:
    """Return the ledgers of an imported run; none if it has no such file."""
    path = folder / MEMORY_FILE
    if not path.exists():
        return ()
    content = read_json(path)
    try:
        ledgers = list(map(_read_ledger, content[f"devices in version {VERSION}"]))
    except (KeyError, TypeError, ValueError, AttributeError):
        problem = "damaged, or of another version; import the snapshot again"
        raise UnreadableError(f"{safe_text(str(path))}: {problem}") from None
    return tuple(ledgers)


def _read_ledger(found: Mapping[str, Any]) -> MemoryLedger:
    values = dict(found)
    for part in ("rows", "lines", "modules"):
        read = []
        for each in values.pop(part, ()):
            texts = str(each["how"]), str(each["line"]), str(each["outer"])
            read.append(
                MemoryLine(Row(each["row"]), int(each["bytes"]), int(each["blocks"]), *texts)
            )
        values[part] = tuple(read)
    for name in values.keys() - {"rows", "lines", "modules", "phase", "failed_line"}:
        values[name] = values[name] and int(values[name])
    return MemoryLedger(**values)
