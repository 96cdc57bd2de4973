"""The memory of a device at its peak, and of two such runs, as documents."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from profkit.analysis.memory.classify import NOT_ALLOCATED, Row
from profkit.analysis.memory.ledger import MemoryLedger, MemoryLine, find_ledgers
from profkit.analysis.memory.predict import predict
from profkit.show.document import Column, Document, Section, Table, Tone, data_columns, labelled
from profkit.show.figures import BYTES, COUNT, SHARE, Unit
from profkit.text import byte_size, percent, plural, signed
from profkit.trace import Trace

MOST_SHOWN = 12
"""Lines of code on a screen; all that are kept are in the JSON."""
_SIGNED_BYTES = Unit(partial(signed, show=byte_size))
_QUALITY = "Confidence and data quality"
_KNOWN_FROM = (
    "stacks: who allocated a block; lifetimes: who freed it, and when; sizes: one block of its "
    "size for each gradient of that size, or the size of cuBLAS's workspace, which are inferences"
)
_OUTSIDE = "what the device holds outside of PyTorch's allocator: CUDA's context, NCCL, others"


@dataclass(frozen=True)
class _Entry:
    """A row, a sum of rows, or a line of code: its bytes in one run, or in two."""

    title: str
    key: str
    after: int
    before: int = 0
    blocks: int | None = None
    how: str = ""
    line: str = ""

    @property
    def change(self) -> int:
        return self.after - self.before


def memory(name: str, path: Path, ledgers: Sequence[MemoryLedger]) -> Document:
    """Return the document of a run with ledgers; the first device is the fullest."""
    ledger = ledgers[0]
    return Document(
        title=name,
        subtitle=f"memory of device {ledger.device} · PyTorch's allocator",
        verdict=f"{byte_size(ledger.reserved)} reserved",
        tone=Tone.PLAIN,
        summary=_moment_words(ledger),
        headline=headline(ledger),
        sections=tuple(memory_sections(ledgers)),
        copied=(("trace", str(path)),),
        data={"run": str(path), "device": ledger.device, **_data(ledger)},
    )


def memory_sections(ledgers: Sequence[MemoryLedger], *, key: str = "") -> Iterator[Section]:
    """Yield the sections of a run's memory; with a key, as a part of the run's report."""
    ledger, title, parts = ledgers[0], _QUALITY, ("rows", "modules", "lines")
    keys = [f"{key}_{part}".lstrip("_") for part in parts]
    notes = [f"Rows add up to the {ledger.reserved:,} bytes that the allocator has reserved."]
    if key:
        yield Section(key=key, facts=_data(ledger))
        notes.insert(0, f"{_moment_words(ledger)}.")
        title = "How the memory is known"
        if ledger.failed is None:
            notes.insert(0, headline(ledger))
    if ledger.device_free is not None:
        notes.append(f"The device had {byte_size(ledger.device_free)} free.")
    for each in ledgers[1:]:
        place = f"Device {each.device}"
        if each.rank != ledger.rank:
            place += f" of rank {each.rank}"
        notes.append(f"{place} has {byte_size(each.reserved)} reserved {_moment(each)}.")
    quality = [("known from", _KNOWN_FROM), ("not included", _OUTSIDE)]
    for text in _doubts(ledger):
        quality.append(("data quality", text))
    lines = Table(_LINES, ledger.lines, ledger.lines[:MOST_SHOWN])
    where, brief = "Where the memory is", None
    if key:  # it was asked for: what a report has no room for is the table
        brief = Section(where, (notes[0],), kept=True)
    yield Section(where, tuple(notes), table=_rows(ledger), key=keys[0], brief=brief)
    if ledger.modules:
        note = "Each row is a line in a module's forward, and the forward that called the module."
        yield Section("Activations by module", (note,), table=_modules(ledger), key=keys[1])
    yield Section("Largest lines of code, or sizes without one", table=lines, key=keys[2])
    yield Section(title, table=labelled(quality))


def headline(ledger: MemoryLedger) -> str:
    """Return what takes most of the memory, how much, and where."""
    if not ledger.reserved:
        return "The allocator has reserved no memory."
    largest = max(ledger.rows, key=lambda each: each.bytes)
    share = percent(largest.bytes / ledger.reserved, 0)
    words = f"The largest part {_moment(ledger)}"
    if ledger.failed is not None:
        place = f" at {_short(ledger.failed_line)}" * bool(ledger.failed_line)
        phase = f" {ledger.phase}" * bool(ledger.phase)
        words = (
            f"An allocation of {byte_size(ledger.failed)} failed{phase}{place}; the largest part"
        )
    words += (
        f": {largest.row.value}, {byte_size(largest.bytes)} of "
        f"{byte_size(ledger.reserved)} ({share})"
    )
    if largest.row is Row.OLDER and ledger.events < 2:
        return f"{words}; record that step with --memory to divide them."
    if largest.row is Row.OLDER:
        return f"{words}; record from the model's construction on to divide them."
    places: Counter[str] = Counter()
    for each in ledger.lines:
        if each.row is largest.row and ":" in each.line:
            places[each.line] += each.bytes
    for place, count in places.most_common(1):
        words += f", {byte_size(count)} of it from {place}"
    return f"{words}."


def _moment(ledger: MemoryLedger) -> str:
    if ledger.failed is not None:
        return f"when {byte_size(ledger.failed)} more failed"
    return "at the peak" if ledger.events else "at the snapshot"


def _moment_words(ledger: MemoryLedger) -> str:
    words = f"{byte_size(ledger.allocated)} allocated {_moment(ledger)}"
    if ledger.phase:
        words += f", {ledger.phase}"
    return f"{words}, after {ledger.moment:,} of {plural(ledger.events, 'event')}"


def _data(ledger: MemoryLedger) -> Mapping[str, Any]:
    return {
        "reserved_bytes": ledger.reserved,
        "allocated_bytes": ledger.allocated,
        "failed_bytes": ledger.failed,
        "device_free_bytes": ledger.device_free,
        "moment": _moment(ledger),
        "phase": ledger.phase,
        "events": ledger.events,
        "events_before": ledger.moment,
        "flags": _doubts(ledger),
    }


def _rows(ledger: MemoryLedger) -> Table:
    rows = []
    for each in ledger.rows:
        title, key = each.row.value, each.row.name.lower()
        rows.append(_Entry(title, key, each.bytes, 0, each.blocks or None, each.how))

    def share(entry: _Entry) -> float | None:
        return entry.after / ledger.reserved if ledger.reserved else None

    columns = (
        Column("title", "part", lambda each: each.title, stretches=True),
        Column("bytes", "bytes", lambda each: each.after, BYTES),
        Column("share", "share", share, SHARE),
        Column("blocks", "blocks", lambda each: each.blocks, COUNT),
        Column("known_from", "known from", lambda each: each.how),
        *data_columns("key"),
    )
    return Table(columns, rows, _with_sums(rows, ledger, ledger))


def _modules(ledger: MemoryLedger) -> Table:
    total = ledger.bytes_of(Row.ACTIVATIONS)
    shown, rest = [*ledger.modules[:MOST_SHOWN]], ledger.modules[MOST_SHOWN:]
    if rest:
        blocks = sum(each.blocks for each in rest)
        size = total - sum(each.bytes for each in shown)
        shown.append(MemoryLine(Row.ACTIVATIONS, size, blocks, "", f"{len(rest)} others"))
    columns = (
        Column("", "module", lambda each: _short(each.line), stretches=True),
        Column("", "called from", lambda each: _short(each.outer)),
        Column("bytes", "bytes", lambda each: each.bytes, BYTES),
        Column("share", "share", lambda each: each.bytes / total, SHARE),
        Column("blocks", "blocks", lambda each: each.blocks, COUNT),
        Column("known_from", "known from", lambda each: each.how),
        *data_columns(module="line", called_from="outer"),
    )
    return Table(columns, ledger.modules, shown)


def _with_sums(rows: Sequence[_Entry], before: MemoryLedger, after: MemoryLedger) -> list[_Entry]:
    """Return rows with the sums that people see."""
    unused = {row.name.lower() for row in NOT_ALLOCATED}
    place = sum(each.key not in unused for each in rows)
    allocated = _Entry("= allocated", "", after.allocated, before.allocated)
    reserved = _Entry("= reserved", "", after.reserved, before.reserved)
    return [*rows[:place], allocated, *rows[place:], reserved]


def _doubts(ledger: MemoryLedger) -> list[str]:
    """Return what makes figures doubtful."""
    doubts = []
    if not ledger.events:
        doubts.append("no events; call torch.cuda.memory._record_memory_history() at the start")
    if ledger.bytes_of(Row.OLDER) + ledger.bytes_of(Row.OTHER) > ledger.allocated // 10:
        doubts.append("over 10 % of the allocated bytes have no known purpose")
    if ledger.misfits:
        doubts.append(f"{plural(ledger.misfits, 'event')} contradict others, so some are missing")
    if ledger.unlike:
        number = plural(ledger.unlike, "block")
        doubts.append(f"{number} have another size than the allocator's default rules give")
    if ledger.doubt:
        doubts.append(f"sizes of freed older blocks may be up to {byte_size(ledger.doubt)} larger")
    return doubts


def _short(line: str) -> str:
    """Return a line without folders, for the screen."""
    return line.rpartition("/")[2]


_LINES = (
    Column("", "line", lambda each: _short(each.line), stretches=True),
    Column("", "called from", lambda each: _short(each.outer)),
    Column("part", "part", lambda each: each.row.value),
    Column("bytes", "bytes", lambda each: each.bytes, BYTES),
    Column("blocks", "blocks", lambda each: each.blocks, COUNT),
    *data_columns("line", called_from="outer"),
)


# -- two runs --------------------------------------------------------------------------------------


def compare(names: tuple[str, str], before: MemoryLedger, after: MemoryLedger) -> Document:
    """Return the document of two runs' ledgers, row by row."""
    quality = []
    for name, ledger in zip(names, (before, after), strict=True):
        for text in (_moment_words(ledger), *_doubts(ledger)):
            quality.append((name, text))
    return Document(
        title=" → ".join(names),
        subtitle="Memory of two runs · PyTorch's allocator",
        verdict=f"{_SIGNED_BYTES.show(after.reserved - before.reserved)} reserved",
        tone=Tone.PLAIN,
        summary=f"{byte_size(before.reserved)} {_moment(before)} of the base, "
        f"{byte_size(after.reserved)} {_moment(after)} of the target",
        headline=change_headline(before, after),
        sections=(*_change_sections(before, after), Section(_QUALITY, table=labelled(quality))),
        data={"runs": [_data(before), _data(after)]},
    )


def changed_memory(before: Trace, after: Trace) -> Iterator[Section]:
    """Yield how the memory of two recorded runs differs, and the peak that both predict."""
    (first, _), (second, _) = find_ledgers(before), find_ledgers(after)
    if not first or not second:
        return
    notes = [change_headline(first[0], second[0])]
    predicted = predict(before, after)
    if predicted is not None:
        sizes, peak = predicted
        notes.append(
            f"With batches of {sizes.shape}, {byte_size(peak)} would be allocated at the peak, "
            "if the memory of each line keeps growing as it did between the two runs."
        )
        facts = {"batch_shape": sizes.shape, "allocated_bytes": peak}
        yield Section(key="memory_prediction", facts=facts)
    yield from _change_sections(first[0], second[0], notes, key="memory_")


def _change_sections(
    before: MemoryLedger, after: MemoryLedger, notes: Sequence[str] = (), key: str = ""
) -> Iterator[Section]:
    rows, lines = _changes(before, after)
    if before.phase and after.phase and before.phase != after.phase:
        notes = (*notes, f"The base's moment is {before.phase}, the target's {after.phase}.")
    changed = Table(_CHANGES, rows, _with_sums(rows, before, after))
    shown = Table(_LINE_CHANGES, lines, lines[:MOST_SHOWN])
    title, brief = "Memory that differs", None
    if key and notes:
        brief = Section(title, tuple(notes), kept=True)
    yield Section(title, tuple(notes), table=changed, key=f"{key}rows", brief=brief)
    yield Section("Lines of code whose memory changed most", table=shown, key=f"{key}lines")


def _changes(before: MemoryLedger, after: MemoryLedger) -> tuple[list[_Entry], list[_Entry]]:
    """Return the rows, and the lines that changed as their rows did, most first."""
    sizes: dict[tuple[Row, str], list[int]] = {}
    for side, ledger in enumerate((before, after)):
        for each in (*ledger.rows, *ledger.lines):
            sizes.setdefault((each.row, each.line), [0, 0])[side] += each.bytes
    rows, lines = [], []
    for row in Row:
        old, new = sizes.get((row, ""), (0, 0))
        whole = _Entry(row.value, row.name.lower(), new, old)
        if old or new:
            rows.append(whole)
        for (part, line), (old, new) in sizes.items():
            entry = _Entry(row.value, whole.key, new, old, line=line)
            is_part = entry.change * whole.change > 0 and abs(entry.change) <= abs(whole.change)
            if line and part is row and is_part:
                lines.append(entry)
    return rows, sorted(lines, key=lambda each: (-abs(each.change), each.line))


def change_headline(before: MemoryLedger, after: MemoryLedger) -> str:
    """Return what grew or shrank most, by how much, and where."""
    rows, lines = _changes(before, after)
    if not any(each.change for each in rows):
        return "Both runs hold the same memory."
    total, sign, verb = after.reserved - before.reserved, 1, "more"
    if total < 0:
        sign, verb = -1, "less"
    most = max(rows, key=lambda each: sign * each.change)
    change = f"{most.title} {_SIGNED_BYTES.show(most.change)}"
    words = f"The target reserves {byte_size(abs(total))} {verb}: {change}"
    for each in lines:
        if each.key == most.key and ":" in each.line:
            return f"{words}, most of all {each.line} ({_SIGNED_BYTES.show(each.change)})."
    return f"{words}."


_BOTH = (
    Column("before_bytes", "base", lambda each: each.before, BYTES),
    Column("after_bytes", "target", lambda each: each.after, BYTES),
    Column("change_bytes", "change", lambda each: each.change, _SIGNED_BYTES),
)
_CHANGES = (
    Column("title", "part", lambda each: each.title, stretches=True),
    *_BOTH,
    *data_columns("key"),
)
_LINE_CHANGES = (
    Column("", "line", lambda each: _short(each.line), stretches=True),
    Column("part", "part", lambda each: each.title),
    *_BOTH,
    *data_columns("line"),
)
