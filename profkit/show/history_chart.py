"""The runs of a history as SVG, and as a column of text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from profkit.show.document import RunsOverTime
from profkit.show.svg import WIDTH, label, line, rectangle
from profkit.text import duration

HISTORY_HEIGHT = 200
_TOP, _BOTTOM, _LEFT = 12, 170, 90
_MARK = 5
"""Width and height of the mark of a run."""

ROOM = 0.1
"""Share of the range of values that is left free above and below them."""

PLOT_WIDTH = 32
"""Characters of the plot in text."""


def draw_history(chart: RunsOverTime) -> Iterator[str]:
    """Yield a mark for each run, and a line for each level."""
    values = [value for _, value in chart.runs]
    low, high = _range(values)
    across = (WIDTH - _LEFT - 20) / max(1, len(values) - 1)

    def x(place: float) -> float:
        return _LEFT + 10 + place * across

    def y(value: float) -> float:
        return _BOTTOM - (value - low) / (high - low) * (_BOTTOM - _TOP)

    for value in (low, (low + high) / 2, high):
        yield line("grid", _LEFT, y(value), WIDTH, y(value))
        yield label("faint", _LEFT - 6, y(value) + 4, duration(value), "end")
    for first, end, mean in chart.levels:
        yield line("whisker", x(first - 0.4), y(mean), x(end - 0.6), y(mean))
    changes = [first for first, _, _ in chart.levels[1:]]
    for place in changes:
        yield line("link", x(place - 0.5), _TOP, x(place - 0.5), _BOTTOM)
    for place, (name, value) in enumerate(chart.runs):
        mark = x(place) - _MARK / 2, y(value) - _MARK / 2, _MARK, _MARK
        yield rectangle("used", *mark, f"{name}: {duration(value, 4)}")
    yield label("faint", _LEFT, HISTORY_HEIGHT - 8, chart.runs[0][0])
    yield label("faint", WIDTH, HISTORY_HEIGHT - 8, chart.runs[-1][0], "end")


def _range(values: Sequence[float]) -> tuple[float, float]:
    """Return the ends of the axis, which does not begin at zero: changes are a few per cent."""
    low, high = min(values), max(values)
    room = ROOM * (high - low) or 0.01 * high
    return low - room, high + room


def text_plot(chart: RunsOverTime) -> list[str]:
    """Return a line for each run: a mark for the run, and one for its level."""
    low, high = _range([value for _, value in chart.runs])

    def column(value: float) -> int:
        return round((value - low) / (high - low) * (PLOT_WIDTH - 1))

    lines = []
    for first, end, mean in chart.levels:
        for _, value in chart.runs[first:end]:
            cells = [" "] * PLOT_WIDTH
            cells[column(mean)] = "│"
            cells[column(value)] = "●"
            lines.append("".join(cells).rstrip())
    return lines
