"""What `doctor`, `ceilings` and `verify` show, as sections of a report."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING

from profkit.analysis.ceilings import Ceilings
from profkit.analysis.device_times import DeviceTimes
from profkit.report.document import Grid, Section, labelled
from profkit.text import byte_size, bytes_per_second, significant
from profkit.trace import Verification
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
    yield Section("What this machine can measure", grid=Grid(("", "", ""), tuple(rows)))


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
    yield Section(f"{found.device} · {found.library}", grid=labelled(rows))
    for links in found.links:
        sizes = map(byte_size, links.sizes)
        rows = list(zip(sizes, map(bytes_per_second, links.bus_bytes_per_s), strict=True))
        grid = Grid(("message", "bus bandwidth"), tuple(rows), frozenset({0, 1}))
        yield Section(f"all-reduce over {links.backend}, {links.ranks} ranks", grid=grid)


def verification(found: Verification, device_times: DeviceTimes | None = None) -> Iterator[Section]:
    """Yield the state of a run's files, why, and the rows of each table.

    If the run is on devices, that includes the device times that are missing.
    """
    notes = list(found.reasons)
    if device_times is not None:
        notes += device_times.notices
    by_table = defaultdict(list)
    for check in found.tables:
        by_table[check.table].append(check)
    rows = []
    for name, checks in by_table.items():
        row = [name, str(len(checks))]
        for what in ("rows", "lost", "dropped"):
            row.append(f"{sum(map(attrgetter(what), checks)):,}")
        rows.append(tuple(row))
    header = ("table", "ranks", "rows", "lost", "dropped")
    grid = Grid(header, tuple(rows), frozenset({1, 2, 3, 4}))
    title = f"{found.state.value}: {STATE_MEANINGS[found.state]}"
    yield Section(title, tuple(notes), grid=grid if rows else None)
