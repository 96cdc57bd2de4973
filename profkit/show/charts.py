"""Charts as SVG, coloured by the page's style sheet, with every figure as text or tooltip."""

from __future__ import annotations

import math
from collections.abc import Iterator

from profkit.analysis.flames import Flame
from profkit.analysis.views.pictures import USED, StepPoint
from profkit.frame.estimate import Estimate
from profkit.frame.phases import UNKNOWN
from profkit.frame.selection import EPOCH_START, PARTIAL_BATCH, WARM_UP
from profkit.show.document import Chart, Heat, RunsOverTime, Shares, Strip, Waterfall
from profkit.show.figures import interval_words, reason_name
from profkit.show.flame_chart import draw_flame, flame_height
from profkit.show.history_chart import HISTORY_HEIGHT, draw_history
from profkit.show.svg import WIDTH, label, line, rectangle, svg, text
from profkit.text import duration, percent, plural, shorten, signed
from profkit.vocab import PHASES

LABELS = 150
"""Width of the labels to the left of a plot."""

FIGURES, SPREAD = 190, 80
"""Width of the figures to the right of a plot, and of the uncertainties within it."""

ROW, BAR = 30, 16
"""Height of a row, and of the bar in it."""

CROPPED = 0.25
"""If the gap is below this share of the base, the axis does not begin at zero, and says so."""

LEAST_SCALE = 0.01
"""The axis covers at least this share of the larger side, so that no bar shows a gap of nothing."""

STRIP_HEIGHT, STRIP_TOP, STRIP_LEFT = 150, 12, 70
SHARES_BAR, SHARES_LEGEND = 34, 50
HEAT_LEFT, HEAT_TOP, HEAT_ROW = 80, 24, 26

STRONG = 0.10
"""A distance from the median rank of this share of a step gets the strongest colour."""

STRONGEST = 0.65
"""Opacity of the strongest colour; a figure on it can still be read."""

LETTER = 6.5
"""Approximate width of a letter in a legend."""


def draw(chart: Chart, name: str = "") -> str:
    """Return the chart as an `svg` element."""
    if isinstance(chart, Waterfall):
        height = ROW * (len(chart.rows) + 2) + 26
        return svg(height, "from the base to the target, row by row", waterfall(chart))
    if isinstance(chart, Shares):
        parts = ", ".join(f"{part} {percent(share)}" for part, share in chart.parts)
        return svg(74, f"where a step goes: {parts}", shares(chart))
    if isinstance(chart, Strip):
        return svg(STRIP_HEIGHT + 34, f"wall time per step {name}".strip(), strip(chart, name))
    if isinstance(chart, RunsOverTime):
        return svg(HISTORY_HEIGHT, f"time per sample {name}".strip(), draw_history(chart))
    if isinstance(chart, Flame):
        height = flame_height(chart)
        return svg(height, f"flame graph of {chart.phase}", draw_flame(chart))
    height = HEAT_ROW * len(chart.found.ranks) + 48
    return svg(height, "time of each rank in each phase", heat_map(chart))


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
        return LABELS + (value - self.low) * (WIDTH - LABELS - FIGURES) / (self.high - self.low)


def waterfall(chart: Waterfall) -> Iterator[str]:
    rows = [(name, delta) for name, delta in chart.rows if math.isfinite(delta.value)]
    levels = [chart.start[1]]
    for _, delta in rows:
        levels.append(levels[-1] + delta.value)
    axis = _Axis(chart, levels)
    yield from total_bar(*chart.start, 0, axis)
    for place, (name, delta) in enumerate(rows):
        yield from floating_bar(name, delta, (place + 1) * ROW, levels[place], axis)
    below = ROW * (len(rows) + 1)
    yield from total_bar(*chart.end, below, axis)
    begins = "the axis begins at zero"
    if axis.low > 0:
        begins = f"the axis begins at {duration(axis.low)}, not at zero"
    words = f"{begins}; whiskers are 95 % intervals; grey: no clear difference"
    yield label("faint", LABELS, below + ROW + 18, words)


def total_bar(name: str, value: float, y: float, axis: _Axis) -> Iterator[str]:
    yield label("name strong", LABELS - 10, y + BAR, name, "end")
    width = axis.x(value) - LABELS
    yield rectangle("whole", LABELS, y + 4, width, BAR, f"{name}: {duration(value)}")
    yield label("figure strong", WIDTH - SPREAD - 8, y + BAR, duration(value), "end")


def floating_bar(name: str, delta: Estimate, y: float, level: float, axis: _Axis) -> Iterator[str]:
    """Draw a difference from the level where the row above ended."""
    begin, end = axis.x(level), axis.x(level + delta.value)
    kind, title, spread = "rest", f"{name}: {signed(delta.value)}", ""
    if delta.low is not None and delta.high is not None:
        title += f", {interval_words(delta, signed)}"
        spread = f"± {duration((delta.high - delta.low) / 2, 2)}"
        if not delta.low <= 0 <= delta.high:
            kind = "bad" if delta.value > 0 else "good"
    yield label("name", LABELS - 10, y + BAR, shorten(name, 20), "end")
    yield rectangle(kind, min(begin, end), y + 4, abs(end - begin), BAR, title)
    yield line("link", end, y + 4, end, y + ROW + 4 + BAR)
    if delta.low is not None and delta.high is not None:
        middle = y + 4 + BAR / 2
        ends = axis.x(level + delta.low), axis.x(level + delta.high)
        low, high = (min(max(end, LABELS), WIDTH - FIGURES) for end in ends)
        yield line("whisker", low, middle, high, middle)
    yield label("figure", WIDTH - SPREAD - 8, y + BAR, signed(delta.value), "end")
    yield label("faint", WIDTH - SPREAD, y + BAR, spread)


# --- shares ---------------------------------------------------------------------------------------


def shares(chart: Shares) -> Iterator[str]:
    """Draw one bar of the whole step, names inside wide parts, and a legend of all parts."""
    whole = max(1.0, sum(share for _, share in chart.parts if share > 0))
    x = at = 0.0
    for place, (name, share) in enumerate(chart.parts):
        kind = f"part{place % 8}"
        if name == UNKNOWN:
            kind = "rest"
        elif name in PHASES:  # a phase has its colour in each run
            kind = f"part{PHASES.index(name)}"
        words = f"{name} {percent(share)}"
        width = WIDTH * max(0.0, share) / whole
        if width > 0:
            yield rectangle(kind, x, 0, width, SHARES_BAR, f"{name}: {percent(share)}")
        if width > 7.7 * len(name) + 16:
            yield label("inside", x + width / 2, 21, name, "middle")
        x += width
        yield rectangle(kind, at, SHARES_LEGEND, 10, 10)
        yield label("faint", at + 15, SHARES_LEGEND + 9, words)
        at += 28 + LETTER * len(words)


# --- strip ----------------------------------------------------------------------------------------

_KINDS = {kind: kind.replace(" ", "-") for kind in (USED, WARM_UP, EPOCH_START, PARTIAL_BATCH)}


def strip(chart: Strip, name: str) -> Iterator[str]:
    points = chart.points
    first, last = points[0].step, points[-1].step + points[-1].count
    scale = (WIDTH - STRIP_LEFT) / max(1, last - first)
    for part in (0, 0.5, 1):
        y = STRIP_HEIGHT - part * (STRIP_HEIGHT - STRIP_TOP)
        yield line("grid", STRIP_LEFT, y, WIDTH, y)
        yield label("faint", STRIP_LEFT - 6, y + 4, duration(chart.top_ns * part, 2), "end")
    counts: dict[str, int] = {}
    for point in points:
        x = STRIP_LEFT + (point.step - first) * scale
        yield step_mark(point, x, point.count * scale, chart.top_ns)
        counts[point.kind] = counts.get(point.kind, 0) + point.count
    yield label("faint", STRIP_LEFT, STRIP_HEIGHT + 16, f"step {first:,}")
    yield label("faint", WIDTH, STRIP_HEIGHT + 16, f"step {last - 1:,}", "end")
    yield label("strong", 0, 44, name)
    at = float(STRIP_LEFT)
    for kind, count in counts.items():
        words = f"{reason_name(kind)} ({plural(count, 'step')})"
        yield rectangle(_KINDS.get(kind, "apart"), at, STRIP_HEIGHT + 23, 9, 9)
        yield label("faint", at + 14, STRIP_HEIGHT + 32, words)
        at += 34 + LETTER * len(words)


def step_mark(point: StepPoint, x: float, width: float, top_ns: float) -> str:
    """Draw the spread of the steps at one place, or a triangle if they are off the scale."""
    kind = _KINDS.get(point.kind, "apart")
    steps = f"step {point.step}"
    if point.count > 1:
        steps = f"steps {point.step} to {point.step + point.count - 1}"
    title = f"{steps}, {reason_name(point.kind)}: {duration(point.mean_ns)}"
    if point.low_ns > top_ns:
        path = f"M{x:.1f} {STRIP_TOP} l4 -8 l4 8 z"
        return f'<path class="{kind}" d="{path}"><title>{text(title)}, off the scale</title></path>'
    scale = (STRIP_HEIGHT - STRIP_TOP) / top_ns if top_ns > 0 else 0.0
    high = min(point.high_ns, top_ns)
    spread = (high - point.low_ns) * scale
    height = max(3.0, spread)
    y = STRIP_HEIGHT - high * scale - (height - spread) / 2
    return rectangle(kind, x, y, max(1.5, width - 0.5), height, title)


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
