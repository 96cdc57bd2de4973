"""The sections of a run with captured kernels: the capture and its cost, and by kernel."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from profkit.analysis.kernels.categories import UNCATEGORISED
from profkit.analysis.kernels.groups import KernelGroup
from profkit.analysis.kernels.view import KernelsView
from profkit.analysis.kernels.windows import KernelWindows
from profkit.analysis.overview import Overview
from profkit.show.document import NAMED, Column, Quantity, Section, Table, labelled, missing
from profkit.show.figures import COUNT, MS, NS, SHARE, TIMES, WHOLE_SHARE
from profkit.text import duration, percent, plural, significant

MOST_KINDS = 6
"""Phases or categories that are listed; the others are summed up as the rest."""

MOST_KERNELS = 5
MIN_UNCATEGORISED = 0.005
"""A smaller share of kernels without a category changes no figure."""


def kernel_sections(view: Overview) -> Iterator[Section]:
    if view.kernels is None:
        yield from missing("kernels")
    else:
        yield captured_windows(view.kernels)
        yield from by_module(view.kernels)
    if view.by_kernel is None:
        yield from missing("kernels_by_name")
    else:
        yield from by_kernel(view.by_kernel)
        yield Section(key="kernels_by_name", facts=view.by_kernel)


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
    title = f"Captured {what}"
    return Section(title, table=labelled(rows), brief=NAMED, key="kernels", facts=_facts(found))


def _facts(found: KernelWindows) -> dict[str, Any]:
    return {
        "steps_captured": found.steps,
        "rows_captured": found.kernels,
        "devices": found.devices,
        "busy_ms_per_step": Quantity(found.busy_ns, MS),
        "ms_per_step_by_phase": Quantity(found.by_phase, MS),
        "ms_per_step_by_category": Quantity(found.by_category, MS),
        "tensor_core_share_of_matrix_work": found.tensor_core_share,
        "steps_left_out": found.steps_left_out,
        "slowdown_ratio": found.slowdown,
        "by_module": Table(MODULES, found.by_module),
        "borders_ms": Quantity(found.border_ns, MS),
        "reading_ms": Quantity(found.reading_ns, MS),
    }


def shares_in_words(parts: Mapping[str, float], whole: float) -> str:
    words, rest = [], sum(parts.values())
    for name, ns in list(parts.items())[:MOST_KINDS]:
        words.append(f"{name} {percent(ns / whole, 0)}")
        rest -= ns
    if len(parts) > MOST_KINDS:
        words.append(f"the rest {percent(rest / whole, 0)}")
    return ", ".join(words)


def by_module(found: KernelWindows) -> Iterator[Section]:
    """Yield the modules that take most time, each with the line that calls it."""
    if not found.by_module:
        return
    known = sum(each.share for each in found.by_module)
    notes = [f"Modules launch {percent(known)} of this time; backward counts for its forward's."]
    if len(found.by_module) > MOST_KERNELS:
        more = len(found.by_module) - MOST_KERNELS
        notes.append(f"The first {MOST_KERNELS}, and {more:,} more: --json.")
    table = Table(MODULES, found.by_module[:MOST_KERNELS], only_known=True)
    yield Section("Modules that take most time", tuple(notes), table=table, brief=NAMED)


def by_kernel(found: KernelsView) -> Iterator[Section]:
    """Yield the kernels that take most time, with their place below the machine's ceilings.

    Columns of which nothing is known are omitted.
    """
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
    table = Table(kernel_columns(found.noun)[:7], found.groups[:MOST_KERNELS], only_known=True)
    title = f"{found.noun.capitalize()}s that take most time"
    yield Section(title, tuple(notes), table=table, brief=NAMED)


def _tensor_cores(group: KernelGroup) -> float | None:
    return group.tensor_core_share if group.eligible else None


def _role_of_bound(bound: str) -> str:
    return "bad" if bound == "launch" else ""


def _role_of_none(share: float) -> str:
    return "" if share else "bad"


MODULES = (
    Column("module", "module", lambda each: each.module),
    Column("share", "share", lambda each: each.share, SHARE),
    Column("ns_per_step", "per step", lambda each: each.ns, NS),
    Column("backward_ns_per_step", "backward", lambda each: each.backward_ns, NS),
    Column("line", "called in", lambda each: each.line, stretches=True),
)

_BOUND = Column("", "bound by", lambda group: group.bound or None, role=_role_of_bound)
_CEILING = Column("", "of ceiling", lambda group: group.ceiling_share, WHOLE_SHARE)
_CORES = Column("", "Tensor Cores", _tensor_cores, WHOLE_SHARE, role=_role_of_none)
_WAITED = Column("", "waited for", lambda group: group.launch_bound_share, SHARE)
_QUEUED = Column("", "queued", lambda group: group.queued_ratio, TIMES)
FURTHER = (_BOUND, _CEILING, _CORES, _WAITED, _QUEUED)
"""Figures that not every kernel has."""


def kernel_columns(noun: str) -> tuple[Column, ...]:
    """Return all figures of a kernel by its name, the most useful first."""
    return (
        Column("", noun, lambda group: group.name, stretches=True),
        Column("", "share", lambda group: group.share, SHARE),
        Column("", "per step", lambda group: group.ns_per_step, NS),
        Column("", "calls", lambda group: group.calls, COUNT),
        *FURTHER[:3],
        Column("", "mean", lambda group: group.mean_ns, NS),
        Column("", "category", lambda group: group.category),
        *FURTHER[3:],
        Column("", "total", lambda group: group.total_ns, NS),
        Column("", "longest", lambda group: group.longest.duration_ns, NS),
    )
