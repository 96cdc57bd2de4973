"""Kernels as columns and lines: the table by name, the calls of one, and their figures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from profkit.analysis.kernels.groups import KernelGroup
from profkit.analysis.kernels.view import KernelsView
from profkit.report.device_sections import shares_words
from profkit.report.kernel_sections import FURTHER
from profkit.show.document import Column, cell_text
from profkit.show.figures import BYTES, COUNT, NS, SHARE, Unit
from profkit.text import duration, percent, plural
from profkit.tui.themes import Palette
from profkit.tui.widgets.draw import Piece

MIN_CATEGORY_SHARE: Final = 0.005
"""The summary lists categories with at least this share of the time; the table has all."""


def _sizes(sizes: Sequence[int]) -> str:
    return " x ".join(map(str, sizes))


CALLS: Final = (
    Column("", "duration", lambda call: call.duration_ns, NS),
    Column("", "rank", lambda call: call.rank, COUNT),
    Column("", "step", lambda call: call.step, COUNT),
    Column("", "phase", lambda call: call.phase),
    Column("", "operator", lambda call: call.op, stretches=True),
    Column("", "device", lambda call: call.device),
    Column("", "stream", lambda call: call.stream, Unit(str)),
    Column("", "queued", lambda call: call.queued_ns, NS),
    Column("", "grid", lambda call: call.grid, Unit(_sizes)),
    Column("", "block", lambda call: call.block, Unit(_sizes)),
    Column("", "bytes", lambda call: call.bytes, BYTES),
    Column("", "bound by", lambda call: call.bound),
    Column("", "of ceiling", lambda call: call.ceiling_share, SHARE),
)
"""The calls of one kernel."""


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
    if view.device_shares is not None:
        known.append(shares_words(view.device_shares))
    elif view.launched_late_share is not None:
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
    words = []
    for column in FURTHER:
        if (value := column.get(group)) is not None:
            words.append(f"{column.title} {cell_text(value, column.unit)}")
    if words:
        yield [("   ".join(words), None)]
