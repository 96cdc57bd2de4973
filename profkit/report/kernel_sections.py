"""The sections of a run with captured kernels: the capture and its cost, and by kernel."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from profkit.analysis.kernels.categories import UNCATEGORISED
from profkit.analysis.kernels.groups import KernelGroup
from profkit.analysis.kernels.view import KernelsView
from profkit.analysis.kernels.windows import KernelWindows
from profkit.analysis.overview import Overview
from profkit.report.document import Grid, Section, labelled
from profkit.report.words import NO_FIGURE, known, whole_percent
from profkit.text import duration, percent, plural, significant

MOST_KINDS = 6
"""Phases or categories that are listed; the others are summed up as the rest."""

MOST_KERNELS = 5
MIN_UNCATEGORISED = 0.005
"""A smaller share of kernels without a category changes no figure."""


def kernel_sections(view: Overview) -> Iterator[Section]:
    if view.kernels is not None:
        yield captured_windows(view.kernels)
    if view.by_kernel is not None:
        yield by_kernel(view.by_kernel)


def captured_windows(found: KernelWindows) -> Section:
    what = "operators" if found.devices == ("cpu",) else "kernels"
    devices = ", ".join(found.devices) or "no device"
    captured = f"{plural(found.steps, 'step')} captured on {devices}"
    busy = f"{duration(found.busy_ns)} of {what} per step"
    rows = [(what, f"{captured}, {busy}")]
    for label, parts in (("by category", found.by_category), ("by phase", found.by_phase)):
        if found.busy_ns > 0 and parts:
            rows.append((label, shares_in_words(parts, found.busy_ns)))
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
    return Section(f"Captured {what}", grid=labelled(rows))


def shares_in_words(parts: Mapping[str, float], whole: float) -> str:
    words, rest = [], sum(parts.values())
    for name, ns in list(parts.items())[:MOST_KINDS]:
        words.append(f"{name} {percent(ns / whole, 0)}")
        rest -= ns
    if len(parts) > MOST_KINDS:
        words.append(f"the rest {percent(rest / whole, 0)}")
    return ", ".join(words)


def by_kernel(found: KernelsView) -> Section:
    """Return the kernels that take most time, with their place below the machine's ceilings.

    Columns of which nothing is known are omitted.
    """
    header = (found.noun, "share", "per step", "calls", "bound by", "of ceiling", "Tensor Cores")
    columns: dict[str, list[str]] = {title: [] for title in header}
    for group in found.groups[:MOST_KERNELS]:
        for title, cell in zip(header, kernel_cells(group), strict=True):
            columns[title].append(cell)
    for title in header:
        if set(columns[title]) == {NO_FIGURE}:
            del columns[title]
    right = frozenset(range(1, len(columns))) - {[*columns, "bound by"].index("bound by")}
    notes = []
    if found.category_share:
        notes.append(f"By category: {shares_in_words(found.category_share, 1.0)}.")
    unknown = found.category_share.get(UNCATEGORISED, 0.0)
    if unknown >= MIN_UNCATEGORISED:
        notes.append(f"The names of {percent(unknown)} of the time say no category.")
    if len(found.groups) > MOST_KERNELS:
        more = f"{len(found.groups) - MOST_KERNELS:,} more"
        if len(found.ranks) < found.ranks_in_all:
            more += f" (rank {found.ranks[0]} of {found.ranks_in_all})"
        words = f"The first {MOST_KERNELS}, and {more}: profkit tui --screen kernels, or --json."
        notes.append(words)
    grid = Grid(tuple(columns), tuple(zip(*columns.values(), strict=True)), right)
    return Section(f"{found.noun.capitalize()}s that take most time", tuple(notes), grid=grid)


def kernel_cells(group: KernelGroup) -> tuple[str, ...]:
    tensor_cores = group.tensor_core_share if group.eligible else None
    return (
        group.name,
        percent(group.share),
        known(group.ns_per_step, duration),
        f"{group.calls:,}",
        group.bound or NO_FIGURE,
        known(group.ceiling_share, whole_percent),
        known(tensor_cores, whole_percent),
    )
