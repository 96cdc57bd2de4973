"""Draw a plot with two logarithmic axes as one SVG, for the pages under docs/."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape
from typing import NamedTuple

WIDTH, HEIGHT = 700, 320
LEFT, RIGHT, TOP, BOTTOM = 64, 220, 36, 44
COLORS = ("#0072b2", "#d55e00", "#6b6b6b", "#009e73")
"""Told apart by people who see few colours; the lines differ in their dashes too."""
DASHES = ("none", "8 3", "2 3", "10 3 2 3")


class Line(NamedTuple):
    """A named curve through points with positive coordinates."""

    name: str
    points: Sequence[tuple[float, float]]


def plot(title: str, across: str, up: str, lines: Sequence[Line]) -> str:
    xs = [x for line in lines for x, _ in line.points]
    ys = [y for line in lines for _, y in line.points]
    frame = _Frame(_decades(xs), _decades(ys))
    body = [
        *frame.grid(),
        *(part for number, line in enumerate(lines) for part in frame.draw(number, line)),
    ]
    words = [
        _text(LEFT, 20, title, size=14),
        _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, across, anchor="middle"),
        _text(14, (TOP + HEIGHT - BOTTOM) / 2, up, anchor="middle", turned=True),
    ]
    style = (
        "svg{color:#222;background:#fff}"
        "@media(prefers-color-scheme:dark){svg{color:#ddd;background:#161616}}"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}"'
        ' font-family="sans-serif" fill="currentColor">'
        f"<title>{escape(title)}</title><style>{style}</style>{''.join([*words, *body])}</svg>\n"
    )


def _decades(values: Iterable[float]) -> tuple[int, int]:
    """The powers of ten around the values, at least one decade apart."""
    found = list(values)
    low = math.floor(math.log10(min(found)))
    return low, max(low + 1, math.ceil(math.log10(max(found))))


class _Frame(NamedTuple):
    across: tuple[int, int]
    up: tuple[int, int]

    def x(self, value: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * _place(value, self.across)

    def y(self, value: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * _place(value, self.up)

    def grid(self) -> Iterable[str]:
        for power in range(self.across[0], self.across[1] + 1):
            x = self.x(10.0**power)
            yield (
                f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}" '
                'stroke="currentColor" stroke-opacity=".15"/>'
            )
            yield _text(
                x,
                HEIGHT - BOTTOM + 16,
                f"{10.0**power:,g}" if power < 0 else f"{10**power:,}",
                anchor="middle",
            )
        for power in range(self.up[0], self.up[1] + 1):
            y = self.y(10.0**power)
            yield (
                f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" '
                'stroke="currentColor" stroke-opacity=".15"/>'
            )
            yield _text(LEFT - 6, y + 4, f"{10.0**power:g}", anchor="end")

    def draw(self, number: int, line: Line) -> Iterable[str]:
        color, dash = COLORS[number % len(COLORS)], DASHES[number % len(DASHES)]
        points = [(self.x(x), self.y(y)) for x, y in line.points]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        yield (
            f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2" '
            f'stroke-dasharray="{dash}"/>'
        )
        yield from (f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{color}"/>' for x, y in points)
        y = TOP + 12 + 20 * number
        yield (
            f'<line x1="{WIDTH - RIGHT + 12}" x2="{WIDTH - RIGHT + 40}" y1="{y}" y2="{y}" '
            f'stroke="{color}" stroke-width="2" stroke-dasharray="{dash}"/>'
        )
        yield _text(WIDTH - RIGHT + 46, y + 4, line.name)


def _place(value: float, decades: tuple[int, int]) -> float:
    return (math.log10(value) - decades[0]) / (decades[1] - decades[0])


def _text(
    x: float, y: float, words: str, *, anchor: str = "start", size: int = 12, turned: bool = False
) -> str:
    turn = f' transform="rotate(-90 {x:.1f} {y:.1f})"' if turned else ""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" '
        f'text-anchor="{anchor}"{turn}>{escape(words)}</text>'
    )
