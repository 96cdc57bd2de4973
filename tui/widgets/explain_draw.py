"""The comparison of runs as columns and lines: scaling, verdict, ledger, and causes."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from rich.style import Style
from rich.text import Text

from profkit.analysis.config_join import Difference
from profkit.analysis.estimate import scale
from profkit.analysis.line_changes import LineChange
from profkit.explain.explained import Explained
from profkit.explain.kernel_ledger import KernelRow
from profkit.explain.ledger import Ledger, Verdict
from profkit.explain.scaling import FACTORS, ScalingRow
from profkit.explain.waterfall import Drop
from profkit.report import ledger_text
from profkit.report.ledger_document import unit_of
from profkit.report.log_words import sample_unit
from profkit.report.words import interval_range
from profkit.text import amount, duration, signed, significant
from profkit.tui.themes import Palette
from profkit.tui.widgets.columns import GAP, Column, Columns, least_width
from profkit.tui.widgets.draw import folded, line
from profkit.tui.widgets.run_draw import role_of

_ROLES: Final = {
    Verdict.REGRESSION: "bad",
    Verdict.IMPROVEMENT: "good",
    Verdict.NEUTRAL: "dim",
    Verdict.CANNOT_JUDGE: "unsure",
}
_WORDS: Final = {
    Verdict.REGRESSION: "regression",
    Verdict.IMPROVEMENT: "improvement",
    Verdict.NEUTRAL: "neutral",
    Verdict.CANNOT_JUDGE: "inconclusive",
}
"""The word for each verdict on the screen."""


WIDEST_BAR, SLIMMEST_BAR = 24, 8
BAR_PLACE: Final = 4
"""The bars come after the differences that they show."""

LEAST_SCALE: Final = 0.01
"""The axis of the bars covers at least this share of the larger side."""


class WaterfallRow(NamedTuple):
    """A row of the ledger on the screen; a total has figures of one side alone."""

    name: str
    role: str
    base_ns: float | None
    target_ns: float | None = None
    delta_ns: float | None = None
    verdict: Verdict | str | None = None
    """Empty if the runs cannot be compared."""
    interval: str | None = None


def scaling_columns(rows: Sequence[ScalingRow]) -> list[Column]:
    """Return the runs side by side; the factors of each multiply to its efficiency."""
    table = Columns(rows)
    table.text("run", lambda row: row.name, stretches=True, role=lambda _: "title", widest=40)
    table.figure("ranks", lambda row: row.gpus, searched=True)
    four_digits = functools.partial(significant, digits=4)
    table.figure("throughput", lambda row: row.throughput.value, four_digits, searched=True)
    table.figure("speed-up", lambda row: row.speed_up.value, significant, searched=True)
    table.figure("efficiency", lambda row: row.efficiency.value, significant, searched=True)
    for name in FACTORS:
        title = name.removeprefix("exposed ")
        values = [row.factors[name].value for row in rows]
        table.columns.append(Column(title, values, significant, right=True))
    return table.columns


def scaling_lines(row: ScalingRow, palette: Palette) -> Iterator[Text]:
    """Yield what limits a run's efficiency, and for which rank its ranks wait."""
    title, words = f"{row.name}: ", ledger_text.scaling_words(row)
    yield folded((title, palette.style("title")), (words, None))
    if not row.waiting_known:
        words = "  waiting cannot be separated from transfer here: communication includes it"
        yield folded((words, palette.style("unsure")))
    for words in ledger_text.meeting_words(row.meeting):
        yield folded((f"  {words}", palette.style("dim")))


def verdict_lines(view: Explained, palette: Palette) -> Iterator[Text]:
    """Yield both runs with their speed, the verdict, and its caveats."""
    ledger, case = view.ledger, view.case
    sides = (
        ("base  ", case.base_name, ledger.total.base, case.before.trace),
        ("target", case.target_name, ledger.total.target, case.after.trace),
    )
    for side, name, own, trace in sides:
        unit = sample_unit(trace.manifest.config)
        pace = " on ".join(filter(None, ledger_text.pace(ledger, own, trace, unit)))
        title = (f"{name}  ", palette.style("title"))
        yield line([(f"{side}  ", palette.style("dim")), title, (pace, None)])
    style = palette.style(_ROLES[ledger.verdict]) + Style(bold=True)
    words = ledger_text.verdict_words(ledger, unit_of(case))
    yield folded((f"{_WORDS[ledger.verdict]}: ", style), (words, None))
    for caveat in view.caveats:
        yield folded(("note: ", palette.style("unsure")), (caveat, None))


def cause_lines(view: Explained, palette: Palette) -> Iterator[Text]:
    """Yield each cause with its cost, its evidence and what to try."""
    if not view.causes:
        yield folded((ledger_text.no_cause_words(view.ledger), palette.style("dim")))
    elif words := ledger_text.doubted_causes(view.ledger):
        yield folded((words, palette.style("unsure")))
    for number, found in enumerate(view.causes, start=1):
        cost = ledger_text.cause_cost(found, view.ledger)
        role = palette.style("good" if found.is_gain else "bad")
        kind = (f"{number} {ledger_text.cause_name(found)}: ", role)
        yield folded(kind, (cost, palette.style("title")))
        yield folded((f"  {found.evidence}", palette.style("dim")))
        if words := ledger_text.without_words(found):
            yield folded((f"  {words}", palette.style("dim")))
        if found.remedy:
            yield folded(("  try: ", palette.style("good")), (found.remedy, None))
    is_gain = view.ledger.total.delta.value < 0
    if words := ledger_text.coverage_words(view.coverage, is_gain=is_gain):
        yield folded((words, palette.style("dim")))


def waterfall_columns(
    ledger: Ledger, drops: Sequence[Drop], width: int, *, plain: bool
) -> list[Column]:
    """Return the rows of the ledger with both sides, and a bar from each row to the next.

    A bar begins where the row above ended. The totals at both ends have one side alone. In a table
    of this width, the bars take what the figures leave.
    """
    rows = [_waterfall_row(ledger, drop) for drop in drops]
    names = [row.name for row in rows]
    name_roles = [row.role for row in rows]
    table = Columns(rows)
    table.columns.append(
        Column("where the time goes", names, stretches=True, roles=name_roles, widest=34)
    )
    table.figure("base", lambda row: row.base_ns, duration, searched=True)
    table.figure("target", lambda row: row.target_ns, duration, searched=True)
    table.figure("difference", lambda row: row.delta_ns, ledger_text.signed, searched=True)
    table.text(
        "verdict",
        lambda row: row.verdict,
        show=lambda verdict: _WORDS.get(verdict, ""),
        role=lambda verdict: _ROLES.get(verdict, "dim"),
    )
    table.text("95 % interval", lambda row: row.interval)
    room = width - least_width(table.columns, range(len(rows))) - GAP
    room = min(WIDEST_BAR, max(SLIMMEST_BAR, room))
    scale = _scale(drops)
    falls = [_fall(drop, scale, room, plain=plain) for drop in drops]
    bars, roles = zip(*falls, strict=True)
    bar_column = Column("", bars, roles=roles, searched=False, widest=room)
    table.columns.insert(BAR_PLACE, bar_column)
    return table.columns


def kernel_columns(rows: Sequence[KernelRow]) -> list[Column]:
    """Return kernels, or operators, of the captured steps of both runs side by side."""
    table = Columns(rows)
    table.text("name", lambda row: row.name, stretches=True, widest=48)
    table.text("phase", lambda row: row.phase, role=role_of)
    table.figure("base", lambda row: row.base_ns, duration, searched=True)
    table.figure("target", lambda row: row.target_ns, duration, searched=True)
    table.figure("difference", lambda row: row.delta_ns, ledger_text.signed, searched=True)
    table.figure("base calls", lambda row: row.base_calls, amount, searched=True)
    table.figure("target calls", lambda row: row.target_calls, amount, searched=True)
    table.text("category", lambda row: row.category)
    return table.columns


def line_columns(changes: Sequence[LineChange]) -> list[Column]:
    """Return the lines of code whose time certainly differs."""
    table = Columns(changes)
    table.text("line", lambda change: change.place.words(), stretches=True, widest=100)
    table.text("phase", lambda change: change.phase, role=role_of)
    table.figure("base", lambda change: change.base.value, duration)
    table.figure("target", lambda change: change.target.value, duration)
    table.figure("difference", lambda change: change.difference.value, ledger_text.signed)
    return table.columns


def difference_columns(found: Sequence[Difference]) -> list[Column]:
    """Return the other differences between two runs, and the rows that they can affect."""
    table = Columns(found)
    table.text("name", lambda each: each.name, stretches=True)
    table.text("base", lambda each: each.base, widest=24)
    table.text("target", lambda each: each.target, widest=24)
    table.text("can affect", lambda each: each.rows, widest=40)
    return table.columns


def _waterfall_row(ledger: Ledger, drop: Drop) -> WaterfallRow:
    """Return the texts and figures of a row per step of a rank."""
    factor, row = ledger.samples_per_step, drop.row
    if drop.kind == "base":
        return WaterfallRow("total of base", "title", row.base.value * factor)
    name, role = drop.name, role_of(drop.name)
    base_ns: float | None = row.base.value * factor
    if drop.kind == "target":
        name, role, base_ns = "total of target", "title", None
    elif drop.kind == "overlapped":
        name, role = f"(overlapped) {drop.name}", "dim"
    elif drop.depth:
        name, role = "  " * drop.depth + drop.name, "dim"
    verdict: Verdict | str = ""
    if not ledger.unlike:
        verdict = ledger.verdict_of(row)
    interval = interval_range(scale(row.delta, factor), signed)
    target_ns, delta_ns = row.target.value * factor, row.delta.value * factor
    return WaterfallRow(name, role, base_ns, target_ns, delta_ns, verdict, interval)


def _scale(drops: Sequence[Drop]) -> tuple[float, float]:
    """Return the ends of the axis: a little below the lowest end of a bar, and the highest.

    They are so far apart that a difference of nothing fills no bar.
    """
    places = [0.0]
    for drop in drops:
        if drop.kind == "row":
            places += [drop.start_ns, drop.end_ns]
        elif drop.kind in {"base", "target"}:
            places.append(drop.end_ns)
    finite = [place for place in places[1:] if math.isfinite(place)] or places[:1]
    highest = max(finite)
    lowest = min(*finite, highest * (1 - LEAST_SCALE))
    margin = (highest - lowest) / 8
    if lowest >= 0:
        return max(0.0, lowest - margin), highest
    return lowest - margin, highest


def _fall(drop: Drop, scale: tuple[float, float], width: int, *, plain: bool) -> tuple[str, str]:
    """Return a bar from a row's begin to its end, and the bar's role.

    Added time is solid, and saved time is hatched.
    """
    low, high = scale
    start, end = drop.start_ns, drop.end_ns
    role = "bad" if end > start else "good"
    if drop.kind != "row":
        role = "dim"
    is_total = drop.kind in {"base", "target"}
    if is_total:
        start = low
    finite = math.isfinite(drop.start_ns) and math.isfinite(end)
    if drop.kind == "overlapped" or high <= low or not finite:
        return "", role
    left = round((min(start, end) - low) / (high - low) * width)
    right = round((max(start, end) - low) / (high - low) * width)
    added, saved, total, thin = ("+", "-", "=", "|") if plain else ("█", "▒", "━", "▏")
    if left == right:
        return " " * min(left, width - 1) + thin, role
    mark = saved
    if is_total:
        mark = total
    elif end > start:
        mark = added
    return " " * left + mark * (right - left), role
