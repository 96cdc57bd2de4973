"""The rulers above the timeline: round times, and the numbers of steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from rich.style import Style

from profkit.analysis.timeline.view import StepMark
from profkit.analysis.timeline.window import Window
from profkit.tui.timeline.painted import Look, Painted

_UNITS: Final[tuple[tuple[int, str], ...]] = ((10**9, "s"), (10**6, "ms"), (10**3, "us"), (1, "ns"))
_ROUND: Final[tuple[int, ...]] = tuple(
    digit * 10**power for power in range(19) for digit in (1, 2, 5)
)
"""Round numbers of ns or steps, far beyond the length of a run."""

MIN_GAP: Final = 3
"""Cells between a time and the next one, with the tick's own character."""


def time_ruler(window: Window, look: Look) -> list[Painted]:
    """Return round times, as close together as they can be read."""
    style = look.palette.style("dim")
    cells: list[Painted] = [(look.char("─", "-"), style)] * window.columns
    scale, unit = _UNITS[-1]
    for larger_scale, larger_unit in reversed(_UNITS):
        if window.end_ns >= larger_scale:
            scale, unit = larger_scale, larger_unit
    for tick in _ROUND:
        label = _time_label(window.end_ns, tick, scale, "us")
        if tick >= (len(label) + MIN_GAP) * window.cell_ns:
            break
    first = -(-window.start_ns // tick)
    for number in range(first, window.end_ns // tick + 1):
        column = window.column_of(number * tick)
        text = look.char("┬", "+") + _time_label(number * tick, tick, scale, unit)
        if column is not None and column + len(text) <= window.columns:
            cells[column : column + len(text)] = zip(text, [style] * len(text), strict=True)
    return cells


def _time_label(time_ns: int, tick_ns: int, scale: int, unit: str) -> str:
    """Return a time with as many decimals as the distance of the ticks needs."""
    decimals = 0
    if tick_ns < scale:
        decimals = max(0, math.ceil(math.log10(scale / tick_ns)))
    return f"{time_ns / scale:.{decimals}f} {unit}"


def step_ruler(marks: Sequence[StepMark], columns: int, look: Look) -> list[Painted]:
    """Return the numbers of steps where they begin; if steps are close, round numbers alone."""
    cells: list[Painted] = [(" ", Style.null())] * columns
    if not marks:
        return cells
    steps = abs(marks[-1].step - marks[0].step) + 1
    room = max(1, columns // (len(str(marks[-1].step)) + 4))
    for stride in _ROUND:
        if stride * room >= steps:
            break
    free, style = 0, look.palette.style("title")
    for mark in marks:
        text = look.char("│", "|") + str(mark.step)
        if mark.step % stride == 0 and mark.column >= free and mark.column + len(text) <= columns:
            end = mark.column + len(text)
            cells[mark.column : end] = zip(text, [style] * len(text), strict=True)
            free = end + 1
    return cells
