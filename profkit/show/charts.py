"""Charts of a page, coloured by its style sheet, with every figure as text or tooltip."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from profkit.analysis.flames import Flame
from profkit.analysis.views.pictures import USED, StepPoint
from profkit.frame.estimate import Estimate
from profkit.frame.selection import EPOCH_START, PARTIAL_BATCH, WARM_UP
from profkit.show.document import Chart, Heat, Lanes, Shares, Strip, Waterfall
from profkit.show.figures import interval_words, reason_name
from profkit.show.flame_chart import draw_flame, flame_height
from profkit.show.history_chart import HISTORY_HEIGHT, draw_history
from profkit.show.palette import PHASE_COLOURS, role_of_kind
from profkit.show.svg import (
    WIDTH,
    bar,
    chart_row,
    label,
    legend,
    plot,
    rectangle,
    stroke,
    svg,
    text,
)
from profkit.text import duration, percent, plural, shorten, signed

ROW, BAR = 24, 16
"""Height of a row, and of the bar in it."""

CROPPED = 0.25
"""If the gap is below this share of the base, the axis does not begin at zero, and says so."""

LEAST_SCALE = 0.01
"""The axis covers at least this share of the larger side, so that no bar shows a gap of nothing."""

STRIP_HEIGHT, STRIP_TOP = 150, 14
STACK_HEIGHT = 34
LEAST_NAMED = 0.06
"""A part has its share written into the bar from this share on."""

HEAT_LEFT, HEAT_TOP, HEAT_ROW = 80, 24, 26

STRONG = 0.10
"""A distance from the median rank of this share of a step gets the strongest colour."""

STRONGEST = 0.65
"""Opacity of the strongest colour; a figure on it can still be read."""


def draw(chart: Chart, name: str = "") -> str:
    """Return the chart as HTML."""
    if isinstance(chart, Waterfall):
        return waterfall(chart)
    if isinstance(chart, Shares):
        return shares(chart)
    if isinstance(chart, Strip):
        return strip(chart, name)
    if isinstance(chart, Lanes):
        return lanes(chart)
    if isinstance(chart, Flame):
        return plot(flame_height(chart), f"flame graph of {chart.phase}", draw_flame(chart))
    if isinstance(chart, Heat):
        height = HEAT_ROW * len(chart.found.ranks) + 48
        drawn = svg(height, "time of each rank in each phase", heat_map(chart))
    else:
        drawn = svg(HISTORY_HEIGHT, f"time per sample {name}".strip(), draw_history(chart))
    return f'<div class="scroll">{drawn}</div>'


def rows_of(rows: Iterable[str], name: str) -> str:
    return f'<div class="rows" role="img" aria-label="{text(name)}">{"".join(rows)}</div>'


# --- waterfall ------------------------------------------------------------------------------------


class _Axis:
    """Horizontal scale of a waterfall: from zero, unless the gap were too small to see."""

    def __init__(self, chart: Waterfall, levels: list[float]) -> None:
        ends = [*levels, chart.end[1]]
        bottom, top = min(ends), max(ends)
        gap = top - bottom
        self.low, self.high = min(0.0, bottom), top * 1.02
        if gap <= CROPPED * chart.start[1]:
            room = max(gap, LEAST_SCALE * top)
            self.low, self.high = bottom - 0.5 * room, top + 0.15 * room

    def x(self, value: float) -> float:
        """Return the place of a value, as a share of the width."""
        return (value - self.low) / (self.high - self.low)

    def within(self, value: float) -> float:
        """Return the place of a value, or the end that is nearest to it."""
        return min(max(self.x(value), 0.0), 1.0)


def waterfall(chart: Waterfall) -> str:
    differing, levels = [], [chart.start[1]]
    for name, delta in chart.rows:
        if math.isfinite(delta.value):
            differing.append((name, delta))
            levels.append(levels[-1] + delta.value)
    axis = _Axis(chart, levels)
    rows = [total_bar(*chart.start, axis)]
    for level, (name, delta) in zip(levels, differing, strict=False):
        rows.append(floating_bar(name, delta, level, axis))
    rows.append(total_bar(*chart.end, axis))
    begins = "the axis begins at zero"
    if axis.low > 0:
        begins = f"the axis begins at {duration(axis.low)}, not at zero"
    words = f"{begins}; whiskers are 95 % intervals; grey: no clear difference"
    note = f'<p class="faint">{text(words)}</p>'
    return rows_of(rows, "from the base to the target, row by row") + note


def total_bar(name: str, value: float, axis: _Axis) -> str:
    drawn = bar("whole", 0.0, axis.x(value), 4, BAR, f"{name}: {duration(value)}")
    return chart_row(name, plot(ROW, "", [drawn]), duration(value), kind="strong")


def floating_bar(name: str, delta: Estimate, level: float, axis: _Axis) -> str:
    """Draw a difference from the level where the row above ended."""
    begin, end = axis.x(level), axis.x(level + delta.value)
    kind, title, spread, whisker = "rest", f"{name}: {signed(delta.value)}", "", ""
    if delta.low is not None and delta.high is not None:
        title += f", {interval_words(delta, signed)}"
        spread = f"± {duration((delta.high - delta.low) / 2, 2)}"
        if not delta.low <= 0 <= delta.high:
            kind = "bad" if delta.value > 0 else "good"
        low, high = axis.within(level + delta.low), axis.within(level + delta.high)
        whisker = stroke("whisker", low, 4 + BAR / 2, high, 4 + BAR / 2)
    drawn = bar(kind, min(begin, end), max(begin, end), 4, BAR, title)
    link = stroke("link", end, 4, end, ROW)
    return chart_row(name, plot(ROW, "", [drawn, link, whisker]), signed(delta.value), spread)


# --- shares ---------------------------------------------------------------------------------------


def shares(chart: Shares) -> str:
    """Draw one bar of the whole, and below it each part where it is in that bar."""
    whole = max(1.0, sum(share for _, share in chart.parts if share > 0))
    stack, rows, at = [], [], 0.0
    for name, share in chart.parts:
        kind, title = role_of_kind(name), f"{name}: {percent(share)}"
        end = at + max(0.0, share) / whole
        begin, at = at, end
        part = []
        if end > begin:
            part = [bar(kind, begin, end, 4, BAR, title)]
            stack.append(bar(kind, begin, end, 0, STACK_HEIGHT, title))
        if share >= LEAST_NAMED:
            middle = f'x="{50 * (begin + end):.2f}%" y="21" text-anchor="middle"'
            stack.append(f'<text class="inside" {middle}>{text(percent(share, 0))}</text>')
        rows.append(chart_row(name, plot(ROW, "", part), percent(share)))
    names = ", ".join(f"{part} {percent(share)}" for part, share in chart.parts)
    return plot(STACK_HEIGHT, f"where a step goes: {names}", stack) + rows_of(rows, names)


# --- timeline -------------------------------------------------------------------------------------


def lanes(chart: Lanes) -> str:
    """Draw each rank's work over the same time, and the colours of its kinds."""
    length, used, rows = chart.end_ns - chart.start_ns, dict[str, str](), []

    def x(moment_ns: int) -> float:
        return (moment_ns - chart.start_ns) / length

    for lane in chart.lanes:
        drawn = []
        for kind, begin_ns, end_ns in lane.pieces:
            role = role_of_kind(kind)
            used.setdefault(role, kind)
            title = f"{kind}: {duration(end_ns - begin_ns)}"
            drawn.append(bar(role, x(begin_ns), x(end_ns), 3, ROW - 4, title))
        for moment_ns in chart.steps_ns:
            drawn.append(stroke("border", x(moment_ns), 0, x(moment_ns), ROW))
        rows.append(chart_row(lane.name, plot(ROW, "", drawn), ""))
    words = f"{duration(length)} of each rank"
    keys = [(role, used[role]) for role in PHASE_COLOURS if role in used]
    return rows_of(rows, words) + legend(keys)


# --- strip ----------------------------------------------------------------------------------------

_KINDS = {kind: kind.replace(" ", "-") for kind in (USED, WARM_UP, EPOCH_START, PARTIAL_BATCH)}


def strip(chart: Strip, name: str) -> str:
    points = chart.points
    first, last = points[0].step, points[-1].step + points[-1].count
    drawn = []
    for part in (0, 0.5, 1):
        y = STRIP_HEIGHT - part * (STRIP_HEIGHT - STRIP_TOP)
        drawn.append(stroke("grid", 0, y, 1, y))
        beside = y + 11 if part else y - 3  # no step is there, but for the first ones
        drawn.append(label("faint", 0, beside, duration(chart.top_ns * part, 2)))
    counts: dict[str, int] = {}
    for point in points:
        begin = (point.step - first) / max(1, last - first)
        end = begin + point.count / max(1, last - first)
        drawn.append(step_mark(point, begin, end, chart.top_ns))
        counts[point.kind] = counts.get(point.kind, 0) + point.count
    keys = []
    for kind, count in counts.items():
        words = f"{reason_name(kind)} ({plural(count, 'step')})"
        keys.append((_KINDS.get(kind, "apart"), words))
    heading = ""
    if name:
        heading = f'<p class="strong">{text(name)}</p>'
    steps = f"<span>step {first:,}</span><span>step {last - 1:,}</span>"
    picture = plot(STRIP_HEIGHT + 2, f"wall time per step {name}".strip(), drawn)
    return f'{heading}{picture}<div class="ends">{steps}</div>{legend(keys)}'


def step_mark(point: StepPoint, begin: float, end: float, top_ns: float) -> str:
    """Draw the spread of the steps at one place, or a triangle if they are off the scale."""
    kind = _KINDS.get(point.kind, "apart")
    steps = f"step {point.step}"
    if point.count > 1:
        steps = f"steps {point.step} to {point.step + point.count - 1}"
    title = f"{steps}, {reason_name(point.kind)}: {duration(point.mean_ns)}"
    if point.low_ns > top_ns:
        words = f"<title>{text(title)}, off the scale</title>"
        path = f'<path class="{kind}" d="M0 8 l4 -8 l4 8 z">{words}</path>'
        return f'<svg class="mark" x="{100 * begin:.2f}%" y="{STRIP_TOP - 9}">{path}</svg>'
    scale = (STRIP_HEIGHT - STRIP_TOP) / top_ns if top_ns > 0 else 0.0
    high = min(point.high_ns, top_ns)
    spread = (high - point.low_ns) * scale
    height = max(3.0, spread)
    y = STRIP_HEIGHT - high * scale - (height - spread) / 2
    return bar(kind, begin, begin + 0.9 * (end - begin), y, height, title)


# --- heat map -------------------------------------------------------------------------------------


def heat_map(chart: Heat) -> Iterator[str]:
    found = chart.found
    width = (WIDTH - HEAT_LEFT) / len(found.phases)
    for column, phase in enumerate(found.phases):
        middle = HEAT_LEFT + (column + 0.5) * width
        yield label("name", middle, 16, shorten(phase, 14), "middle")
    for row, rank in enumerate(found.ranks):
        y = HEAT_TOP + HEAT_ROW * row
        yield label("name", HEAT_LEFT - 10, y + 17, f"rank {rank}", "end")
        for column, phase in enumerate(found.phases):
            value, spread = found.step_ns[row][column], found.spread[row][column]
            x = HEAT_LEFT + column * width
            title = (
                f"rank {rank}, {phase}: {duration(value)} per step, "
                f"{signed(spread, percent)} of a step against the median rank"
            )
            kind = "bad" if spread > 0 else "good"
            opacity = min(1.0, abs(spread) / STRONG) * STRONGEST
            cell = (x + 1, y + 1, width - 2, HEAT_ROW - 2)
            yield rectangle("cell", *cell)
            yield rectangle(kind, *cell, title, opacity=opacity)
            yield label("inside-cell", x + width / 2, y + 17, duration(value), "middle")
    words = (
        "time per step; red is longer and green shorter than the median rank, strongest from "
        f"{percent(STRONG, 0)} of a step"
    )
    yield label("faint", HEAT_LEFT, HEAT_ROW * len(found.ranks) + 40, words)
