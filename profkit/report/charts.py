"""Charts as SVG: drawn from numbers, coloured by the page's style sheet, with every figure as text or tooltip.

Nothing here carries a style or a script: shapes have classes and plain attributes, which a strict content policy allows.
"""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Iterator, Sequence

from profkit.analysis.estimate import Estimate
from profkit.analysis.selection import EPOCH_START, PARTIAL_BATCH, WARM_UP
from profkit.analysis.views.pictures import USED, StepPoint
from profkit.report.document import Chart, Heat, Shares, Strip, Waterfall
from profkit.text import duration, percent, plural, safe_text

WIDTH = 960
LABEL = 150
"""Where the plot begins: labels stand left of it."""

FIGURE, SPREAD = 190, 80
"""Room for the figures right of a plot, and in it for how uncertain they are."""

ROW = 30
BAR = 16
CROPPED = 0.25
"""Where the gap is below this share of the base, the axis does not begin at zero, and says so."""

STRIP_HEIGHT, STRIP_TOP, STRIP_LEFT = 150, 12, 70
STRONG = 0.10
"""A distance from the median rank of this share of a step has the strongest colour,"""

STRONGEST = 0.65
"""through which the figure can still be read."""


def text(value: str) -> str:
    """`value` safe in SVG and HTML, also inside an attribute: no markup, no control or invisible character."""
    return html.escape(safe_text(value), quote=True)


def draw(chart: Chart, label: str = "") -> str:
    """The chart as an `svg` element."""
    if isinstance(chart, Waterfall):
        return _waterfall(chart)
    if isinstance(chart, Shares):
        return _shares(chart)
    return _strip(chart, label) if isinstance(chart, Strip) else _heat(chart)


def _svg(height: float, name: str, body: Iterator[str]) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {height:g}" role="img" aria-label="{text(name)}">{"".join(body)}</svg>'


def _rect(
    kind: str, x: float, y: float, width: float, height: float, title: str = "", more: str = ""
) -> str:
    inner = f"<title>{text(title)}</title>" if title else ""
    return f'<rect class="{kind}" x="{x:.1f}" y="{y:.1f}" width="{max(width, 0.8):.1f}" height="{height:.1f}"{more}>{inner}</rect>'


def _line(kind: str, x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _label(kind: str, x: float, y: float, value: str, anchor: str = "start") -> str:
    return (
        f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{text(value)}</text>'
    )


def _short(value: str, longest: int) -> str:
    return value if len(value) <= longest else value[: longest - 1] + "…"


def signed(ns: float) -> str:
    return ("+" if ns > 0 else "") + duration(ns)


# --- waterfall ------------------------------------------------------------------------------------


def _waterfall(chart: Waterfall) -> str:
    rows = [(name, delta) for name, delta in chart.rows if math.isfinite(delta.value)]
    levels = [chart.start[1]]
    for _, delta in rows:
        levels.append(levels[-1] + delta.value)
    low, high = _domain(chart, levels)
    height = ROW * (len(rows) + 2) + 26
    return _svg(
        height,
        "from the base to the target, row by row",
        _waterfall_body(chart, rows, levels, low, high),
    )


def _domain(chart: Waterfall, levels: Sequence[float]) -> tuple[float, float]:
    """The values that the axis spans: from zero, unless the gap would be too small to see."""
    top, bottom = max(*levels, chart.end[1]), min(*levels, chart.end[1])
    if top - bottom > CROPPED * chart.start[1]:
        return min(0.0, bottom), top * 1.02
    room = (top - bottom) or 0.02 * top
    return bottom - 0.5 * room, top + 0.15 * room


def _waterfall_body(
    chart: Waterfall,
    rows: Sequence[tuple[str, Estimate]],
    levels: Sequence[float],
    low: float,
    high: float,
) -> Iterator[str]:
    scale = (WIDTH - LABEL - FIGURE) / (high - low)

    def at(value: float) -> float:
        return LABEL + (value - low) * scale

    yield from _total_bar(chart.start, 0, at(chart.start[1]))
    for place, (name, delta) in enumerate(rows):
        yield from _floating_bar(name, delta, (place + 1) * ROW, levels[place], at)
    yield from _total_bar(chart.end, len(rows) + 1, at(chart.end[1]))
    begins = (
        f"the axis begins at {duration(low)}, not at zero" if low > 0 else "the axis begins at zero"
    )
    yield _label(
        "faint",
        LABEL,
        ROW * (len(rows) + 2) + 18,
        f"{begins}; whiskers are 95 % intervals; grey: as good as no difference",
    )


def _floating_bar(
    name: str, delta: Estimate, y: float, level: float, at: Callable[[float], float]
) -> Iterator[str]:
    """A difference, from where the rows above it have led."""
    begin, end = at(level), at(level + delta.value)
    yield _label("name", LABEL - 10, y + BAR, _short(name, 20), "end")
    yield _rect(
        _sense(delta),
        min(begin, end),
        y + 4,
        abs(end - begin),
        BAR,
        f"{name}: {signed(delta.value)}{_range(delta)}",
    )
    yield _line("link", end, y + 4, end, y + ROW + 4 + BAR)
    if delta.low is not None and delta.high is not None:
        yield _line(
            "whisker",
            at(level + delta.low),
            y + 4 + BAR / 2,
            at(level + delta.high),
            y + 4 + BAR / 2,
        )
    yield _label("figure", WIDTH - SPREAD - 8, y + BAR, signed(delta.value), "end")
    yield _label("faint", WIDTH - SPREAD, y + BAR, _plus_minus(delta))


def _total_bar(total: tuple[str, float], place: int, end: float) -> Iterator[str]:
    name, value = total
    y = place * ROW
    yield _label("name strong", LABEL - 10, y + BAR, name, "end")
    yield _rect("whole", LABEL, y + 4, end - LABEL, BAR, f"{name}: {duration(value)}")
    yield _label("figure strong", WIDTH - SPREAD - 8, y + BAR, duration(value), "end")


def _sense(delta: Estimate) -> str:
    """A difference that may as well be none has no colour."""
    if delta.low is None or delta.high is None or delta.low <= 0 <= delta.high:
        return "rest"
    return "bad" if delta.value > 0 else "good"


def _range(delta: Estimate) -> str:
    return (
        ""
        if delta.low is None or delta.high is None
        else f", 95 % interval {signed(delta.low)} to {signed(delta.high)}"
    )


def _plus_minus(delta: Estimate) -> str:
    return (
        ""
        if delta.low is None or delta.high is None
        else f"± {duration((delta.high - delta.low) / 2, 2)}"
    )


# --- shares ---------------------------------------------------------------------------------------


def _shares(chart: Shares) -> str:
    return _svg(
        74,
        "where a step goes: "
        + ", ".join(f"{name} {percent(share)}" for name, share in chart.parts),
        _shares_body(chart),
    )


def _shares_body(chart: Shares) -> Iterator[str]:
    """One bar of the whole step; names stand in the parts that have room for them, and below in all cases."""
    whole = max(1.0, sum(share for _, share in chart.parts if share > 0))
    x = 0.0
    for place, (name, share) in enumerate(chart.parts):
        width = WIDTH * max(0.0, share) / whole
        if width > 0:
            yield _rect(_part(name, place), x, 0, width, 34, f"{name}: {percent(share)}")
        if width > 11 * len(name) * 0.7 + 16:
            yield _label("inside", x + width / 2, 21, name, "middle")
        x += width
    at = 0.0
    for place, (name, share) in enumerate(chart.parts):
        yield _rect(_part(name, place), at, 50, 10, 10)
        words = f"{name} {percent(share)}"
        yield _label("faint", at + 15, 59, words)
        at += 28 + 6.8 * len(words)


def _part(name: str, place: int) -> str:
    return "rest" if name == "unknown" else f"part{place % 8}"


# --- strip ----------------------------------------------------------------------------------------


def _strip(chart: Strip, label: str) -> str:
    return _svg(
        STRIP_HEIGHT + 34, f"wall time of each step {label}".strip(), _strip_body(chart, label)
    )


def _strip_body(chart: Strip, label: str) -> Iterator[str]:
    points = chart.points
    first, last = points[0].step, points[-1].step + points[-1].count
    scale = (WIDTH - STRIP_LEFT) / max(1, last - first)
    yield from _levels(chart.top_ns)
    for point in points:
        yield from _mark(
            point, STRIP_LEFT + (point.step - first) * scale, point.count * scale, chart.top_ns
        )
    yield _label("faint", STRIP_LEFT, STRIP_HEIGHT + 16, f"step {first:,}")
    yield _label("faint", WIDTH, STRIP_HEIGHT + 16, f"step {last - 1:,}", "end")
    yield _label("strong", 0, 44, label)
    yield from _strip_legend(points)


def _levels(top_ns: float) -> Iterator[str]:
    for part in (0, 0.5, 1):
        y = STRIP_HEIGHT - part * (STRIP_HEIGHT - STRIP_TOP)
        yield _line("grid", STRIP_LEFT, y, WIDTH, y)
        yield _label("faint", STRIP_LEFT - 6, y + 4, duration(top_ns * part, 2), "end")


def _strip_legend(points: Sequence[StepPoint]) -> Iterator[str]:
    at = float(STRIP_LEFT)
    for kind in dict.fromkeys(point.kind for point in points):
        words = (
            f"{kind} ({plural(sum(point.count for point in points if point.kind == kind), 'step')})"
        )
        yield _rect(_kind(kind), at, STRIP_HEIGHT + 23, 9, 9)
        yield _label("faint", at + 14, STRIP_HEIGHT + 32, words)
        at += 34 + 6.2 * len(words)


def _mark(point: StepPoint, x: float, width: float, top_ns: float) -> Iterator[str]:
    """The spread of the steps at one place; a triangle at the upper edge for those beyond it."""
    scale = (STRIP_HEIGHT - STRIP_TOP) / top_ns if top_ns > 0 else 0.0
    last = point.step + point.count - 1
    title = f"{f'step {point.step}' if point.count == 1 else f'steps {point.step} to {last}'}, {point.kind}: {duration(point.mean_ns)}"
    if point.low_ns > top_ns:
        yield f'<path class="{_kind(point.kind)}" d="M{x:.1f} {STRIP_TOP} l4 -8 l4 8 z"><title>{text(title)}, off the scale</title></path>'
        return
    high = min(point.high_ns, top_ns)
    spread = (high - point.low_ns) * scale
    length = max(3.0, spread)
    yield _rect(
        _kind(point.kind),
        x,
        STRIP_HEIGHT - high * scale - (length - spread) / 2,
        max(1.5, width - 0.5),
        length,
        title,
    )


_KINDS = {kind: kind.replace(" ", "-") for kind in (USED, WARM_UP, EPOCH_START, PARTIAL_BATCH)}


def _kind(kind: str) -> str:
    return _KINDS.get(kind, "apart")


# --- heat map -------------------------------------------------------------------------------------


def _heat(chart: Heat) -> str:
    found = chart.found
    return _svg(26 * len(found.ranks) + 48, "time of each rank in each phase", _heat_body(chart))


def _heat_body(chart: Heat) -> Iterator[str]:
    found = chart.found
    width = (WIDTH - 80) / len(found.phases)
    for column, phase in enumerate(found.phases):
        yield _label("name", 80 + (column + 0.5) * width, 16, _short(phase, 14), "middle")
    for row, rank in enumerate(found.ranks):
        y = 24 + 26 * row
        yield _label("name", 70, y + 17, f"rank {rank}", "end")
        for column, phase in enumerate(found.phases):
            value, spread = found.step_ns[row][column], found.spread[row][column]
            x = 80 + column * width
            title = f"rank {rank}, {phase}: {duration(value)} a step, {'+' if spread > 0 else ''}{percent(spread)} of a step against the median rank"
            strength = f' fill-opacity="{min(1.0, abs(spread) / STRONG) * STRONGEST:.2f}"'
            yield _rect("cell", x + 1, y + 1, width - 2, 24)
            yield _rect(
                "bad" if spread > 0 else "good", x + 1, y + 1, width - 2, 24, title, strength
            )
            yield _label("inside-cell", x + width / 2, y + 17, duration(value), "middle")
    words = f"time a step; red is longer and green shorter than the median rank, strongest from {percent(STRONG, 0)} of a step"
    yield _label("faint", 80, 26 * len(found.ranks) + 40, words)
