"""Kernels as columns and lines: the table by name, the calls of one, and their figures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from profkit.analysis.kernels.calls import KernelInstance
from profkit.analysis.kernels.groups import KernelGroup
from profkit.analysis.kernels.view import KernelsView
from profkit.text import byte_size, duration, percent, plural, significant
from profkit.tui.themes import Palette
from profkit.tui.widgets.columns import Column, Columns
from profkit.tui.widgets.draw import Piece

MIN_CATEGORY_SHARE: Final = 0.005
"""The summary lists categories with at least this share of the time; the table has all."""


def kernel_columns(view: KernelsView) -> list[Column]:
    """Return all columns with values, the most useful first."""
    table = Columns(view.groups)
    table.text(view.noun, lambda group: group.name, stretches=True)
    table.figure("share", lambda group: group.share, percent)
    table.figure("per step", lambda group: group.ns_per_step, duration)
    table.figure("calls", lambda group: group.calls, "{:,}".format)
    table.figure("mean", lambda group: group.mean_ns, duration)
    table.text("category", lambda group: group.category)
    table.text(
        "bound by",
        lambda group: group.bound,
        role=lambda bound: "bad" if bound == "launch" else "",
    )
    table.figure("of ceiling", lambda group: group.ceiling_share, percent)
    table.figure(
        "Tensor Cores",
        lambda group: group.tensor_core_share if group.eligible else None,
        percent,
        role=lambda share: "" if share else "bad",
    )
    table.figure("waited for", lambda group: group.launch_bound_share, percent)
    table.figure("queued", lambda group: group.queued_ratio, lambda r: f"{significant(r)} x")
    table.figure("total", lambda group: group.total_ns, duration)
    table.figure("longest", lambda group: group.longest.duration_ns, duration)
    return table.with_values() or table.columns[:1]


def call_columns(calls: Sequence[KernelInstance]) -> list[Column]:
    """Return the columns with values for the calls of one kernel."""
    table = Columns(calls)
    table.figure("duration", lambda call: call.duration_ns, duration)
    table.figure("rank", lambda call: call.rank)
    table.figure("step", lambda call: call.step, "{:,}".format)
    table.text("phase", lambda call: call.phase)
    table.text("operator", lambda call: call.op, stretches=True)
    table.text("device", lambda call: call.device)
    table.figure("stream", lambda call: call.stream)
    table.figure("queued", lambda call: call.queued_ns, duration)
    table.figure("grid", lambda call: call.grid, lambda sizes: " x ".join(map(str, sizes)))
    table.figure("block", lambda call: call.block, lambda sizes: " x ".join(map(str, sizes)))
    table.figure("bytes", lambda call: call.bytes, byte_size)
    table.text("bound by", lambda call: call.bound)
    table.figure("of ceiling", lambda call: call.ceiling_share, percent)
    return table.with_values()


def summary_lines(view: KernelsView, palette: Palette) -> Iterator[list[Piece]]:
    """Yield what was captured, and the share of each category."""
    dim = palette.style("dim")
    for problem in view.problems:
        yield [(f"{problem}; later rows are lost", palette.style("bad"))]
    if not view.groups:
        return
    ranks = plural(view.ranks_in_all, "rank")
    if len(view.ranks) < view.ranks_in_all:
        ranks = f"rank {view.ranks[0]} of {view.ranks_in_all}"
    captured = "steps not known"
    if view.steps:
        captured = f"{plural(view.steps, 'step')} captured"
    names = plural(len(view.groups), view.noun)
    calls = f"{names}, {plural(view.calls, 'call')} on {', '.join(view.devices)}"
    yield [(calls, None), (f"   {captured}, {ranks}", dim)]
    shown = []
    for name, share in view.category_share.items():
        if share >= MIN_CATEGORY_SHARE:
            shown.append(f"{name} {percent(share, 0)}")
    pieces: list[Piece] = [("  ".join(shown), None)]
    if len(shown) < len(view.category_share):
        pieces.append(("  the others less", dim))
    yield pieces
    known = "   ".join(_known(view))
    if known:
        yield [(known, dim)]


def _known(view: KernelsView) -> list[str]:
    """Return what is known about Tensor Cores, launches and ceilings."""
    known = []
    if view.tensor_core_share is not None:
        known.append(f"Tensor Cores: {percent(view.tensor_core_share)} of the time of matrix work")
    if view.launched_late_share is not None:
        share = percent(view.launched_late_share)
        known.append(f"the device was idle for {share} of its time because the host launched late")
    if view.noun == "operator":
        known.append("operators on a CPU: no launches, no Tensor Cores")
    elif not view.ceilings:
        known.append("ceilings not known: 'profkit ceilings' measures them")
    return known


def kernel_lines(group: KernelGroup) -> Iterator[list[Piece]]:
    """Yield a kernel's full name and its figures."""
    yield [(group.name, None)]
    step = "not in a step"
    if group.ns_per_step is not None:
        step = f"{duration(group.ns_per_step)} per step"
    calls = f"{plural(group.calls, 'call')} of {duration(group.mean_ns)}"
    longest = f"longest {duration(group.longest.duration_ns)} on rank {group.longest.rank}"
    share = f"{group.category}: {percent(group.share)} of all time"
    yield [(f"{share}, {step}, {calls}, {longest}", None)]
    known = []
    if group.bound:
        known.append(f"bound by {group.bound}")
    if group.ceiling_share is not None:
        known.append(f"{percent(group.ceiling_share)} of its ceiling")
    if group.eligible and group.tensor_core_share is not None:
        known.append(f"{percent(group.tensor_core_share)} on Tensor Cores")
    if group.launch_bound_share is not None:
        known.append(f"the device waited for {percent(group.launch_bound_share)} of it")
    if group.queued_ratio is not None:
        known.append(f"queued {significant(group.queued_ratio)} x as long as it runs")
    if known:
        yield [("   ".join(known), None)]
