"""What `doctor`, `ceilings` and `verify` show, as sections of a report."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from profkit.analysis.ceilings import Ceilings
from profkit.frame.device_times import DeviceTimes
from profkit.show.document import (
    Column,
    Document,
    Grid,
    Section,
    Table,
    Tone,
    data_columns,
    labelled,
)
from profkit.show.figures import COUNT
from profkit.text import byte_size, bytes_per_second, significant
from profkit.trace import Verification
from profkit.trace.integrity import TableCheck
from profkit.vocab import Integrity

if TYPE_CHECKING:
    from profkit.machine.doctor import Finding

STATE_MEANINGS = {
    Integrity.COMPLETE: "the run ended and every row is there",
    Integrity.RUNNING: "the job has not ended; what is there can be read",
    Integrity.ENDED_EARLY: "the run did not end as planned; every row that was written can be read",
    Integrity.TORN: "a part cannot be read; every row before the damage can",
}


def examination(findings: Sequence[Finding]) -> Iterator[Section]:
    """Yield what works, what does not, and why."""
    rows = []
    for finding in findings:
        rows.append((finding.state, finding.name, finding.measures))
        if finding.why:
            rows.append(("", "", finding.why))
        if finding.help:
            rows.append(("", "", f"try: {finding.help}"))
    yield Section("What this machine can measure", table=Grid(("", "", ""), tuple(rows)))


def ceilings(found: Ceilings) -> Iterator[Section]:
    """Yield the rates of the device, and those of the links by message size."""
    rows = []
    for name, flops_per_s in found.matrix_flops_per_s.items():
        rows.append((f"matrix product, {name}", f"{significant(flops_per_s / 1e12)} TFLOP/s"))
    rates = {"copy on the device": found.copy_bytes_per_s}
    for name, bytes_per_s in found.to_device_bytes_per_s.items():
        rates[f"host to device, {name}"] = bytes_per_s
    rates["disk, not cached"] = found.disk_read_bytes_per_s
    for name, rate in rates.items():
        rows.append((name, bytes_per_second(rate) if rate else "not measured"))
    decoding = "not measured: no Pillow"
    if found.jpeg_images_per_s:
        decoding = f"{significant(found.jpeg_images_per_s)} images/s"
    rows.append(("JPEG of 500 x 375, one core", decoding))
    yield Section(f"{found.device} · {found.library}", table=labelled(rows))
    for links in found.links:
        sizes = map(byte_size, links.sizes)
        rows = list(zip(sizes, map(bytes_per_second, links.bus_bytes_per_s), strict=True))
        grid = Grid(("message", "bus bandwidth"), tuple(rows), frozenset({0, 1}))
        yield Section(f"all-reduce over {links.backend}, {links.ranks} ranks", table=grid)


def verification(found: Verification, device_times: DeviceTimes | None = None) -> Document:
    """Return the state of a run's files, why, and the rows of each table.

    If the run is on devices, that includes the device times that are missing.
    """
    notes = list(found.reasons)
    if device_times is not None:
        notes += device_times.notices
    by_table = defaultdict(list)
    for check in found.tables:
        by_table[check.table].append(check)
    sums = [
        Column("", "table", itemgetter(0)),
        Column("", "ranks", lambda row: len(row[1]), COUNT),
    ]
    for what in ("rows", "lost", "dropped"):
        sums.append(Column("", what, partial(_sum, what), COUNT))
    title = f"{found.state.value}: {STATE_MEANINGS[found.state]}"
    whole = Section(title, tuple(notes), table=Table(sums, list(by_table.items())))
    return Document(
        title=title,
        subtitle="",
        verdict=found.state.value,
        tone=Tone.PLAIN,
        summary="",
        sections=(whole, Section(key="tables", table=Table(_CHECKS, found.tables))),
        data={
            "run": found.path,
            "state": found.state,
            "reasons": found.reasons,
            "rows": found.rows,
            "rows_lost": found.lost,
            "rows_dropped": found.dropped,
            "device_times": device_time_data(device_times),
        },
    )


_CHECKS = data_columns(
    "rank",
    "table",
    "rows",
    "problem",
    rows_expected="expected",
    rows_lost="lost",
    rows_dropped="dropped",
)


def _sum(what: str, row: tuple[str, Sequence[TableCheck]]) -> int:
    return sum(getattr(check, what) for check in row[1])


def device_time_data(found: DeviceTimes | None) -> dict[str, Any] | None:
    """Return how many device times are missing, and why."""
    if found is None:
        return None
    return {
        "phases": found.phases,
        "missing": found.missing,
        "steps_with_missing": found.steps,
        "ranks_without": found.ranks,
        "reasons": found.reasons,
    }
