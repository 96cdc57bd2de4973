"""The sections of a run with captured kernels: what the capture shows and costs, and by kernel."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from profkit.analysis.kernels.view import KernelGroup, KernelsView
from profkit.analysis.kernels.windows import KernelWindows
from profkit.analysis.overview import Overview
from profkit.report.document import Grid, Section, labelled
from profkit.text import duration, percent, plural, significant

MOST_KINDS = 6
"""Phases or categories that are listed; the others are summed up as the rest."""

MOST_KERNELS = 5
UNKNOWN = "-"


def kernel_sections(view: Overview) -> Iterator[Section]:
    if view.kernels is not None:
        yield _windows(view.kernels)
    if view.by_kernel is not None:
        yield _by_kernel(view.by_kernel)


def _windows(found: KernelWindows) -> Section:
    what = "operators" if found.devices == ("cpu",) else "kernels"
    devices = ", ".join(found.devices) or "no device"
    captured = f"{plural(found.steps, 'step')} captured on {devices}"
    rows = [(what, f"{captured}, {duration(found.busy_ns)} of {what} per step")]
    if found.busy_ns > 0:
        rows.append(("by category", _shares(found.by_category, found.busy_ns)))
        rows.append(("by phase", _shares(found.by_phase, found.busy_ns)))
    if found.tensor_core_share is not None:
        share = percent(found.tensor_core_share)
        rows.append(("Tensor Cores", f"{share} of the time of matrix work ran on Tensor Cores"))
    cost = f"{plural(found.steps_left_out, 'step')} excluded from the figures"
    if found.slowdown is not None:
        cost += f", which took {significant(found.slowdown)} times as long"
    cost += (
        f"; opening and closing took {duration(found.border_ns)} between steps, "
        f"reading {duration(found.reading_ns)} on a thread"
    )
    rows.append(("their cost", cost))
    return Section(f"Captured {what}", grid=labelled([row for row in rows if row[1]]))


def _shares(parts: Mapping[str, float], whole: float) -> str:
    shown = list(parts.items())[:MOST_KINDS]
    if len(parts) > MOST_KINDS:
        shown.append(("the rest", sum(parts.values()) - sum(ns for _, ns in shown)))
    return ", ".join(f"{name} {percent(ns / whole, 0)}" for name, ns in shown)


def _by_kernel(found: KernelsView) -> Section:
    """Build the kernels that take most time, with their place below the machine's ceilings.

    Columns of which nothing is known are omitted.
    """
    header = (found.noun, "share", "per step", "calls", "bound by", "of ceiling", "Tensor Cores")
    rows = [_kernel_row(group) for group in found.groups[:MOST_KERNELS]]
    kept = []
    for column, cells in enumerate(zip(*rows, strict=True)):
        if set(cells) != {UNKNOWN}:
            kept.append(column)
    notes = []
    left = len(found.groups) - len(rows)
    if left:
        whose = ""
        if len(found.ranks) < found.ranks_in_all:
            whose = f" (rank {found.ranks[0]} of {found.ranks_in_all})"
        more = f"and {left:,} more{whose}"
        notes.append(f"The first {len(rows)}, {more}: profkit tui --screen kernels, or --json.")
    grid = _columns(Grid(header, tuple(rows), frozenset({1, 2, 3, 5, 6})), kept)
    return Section(f"{found.noun.capitalize()}s that take most time", tuple(notes), grid=grid)


def _columns(grid: Grid, kept: Sequence[int]) -> Grid:
    """Return the table with these columns only."""
    header = tuple(grid.header[column] for column in kept)
    right = [place for place, column in enumerate(kept) if column in grid.right]
    rows = []
    for row in grid.rows:
        rows.append(tuple(row[column] for column in kept))
    return Grid(header, tuple(rows), frozenset(right))


def _kernel_row(group: KernelGroup) -> tuple[str, ...]:
    tensor_cores = group.tensor_core_share if group.eligible else None
    return (
        group.name,
        percent(group.share),
        UNKNOWN if group.ns_per_step is None else duration(group.ns_per_step),
        f"{group.calls:,}",
        group.bound or UNKNOWN,
        _known_percent(group.ceiling_share),
        _known_percent(tensor_cores),
    )


def _known_percent(share: float | None) -> str:
    return UNKNOWN if share is None else percent(share, 0)
