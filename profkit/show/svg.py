"""The SVG elements that charts are made of.

They carry classes and plain attributes, no style and no script, as a strict content policy
requires.
"""

from __future__ import annotations

import html
from collections.abc import Iterable

from profkit.text import safe_text

WIDTH = 960
LEAST_WIDTH = 0.8
"""A rectangle is at least this wide, so that a tiny value is still visible."""


def text(value: str) -> str:
    """Return `value` safe in SVG and HTML, also in an attribute."""
    return html.escape(safe_text(value), quote=True)


def svg(height: float, name: str, body: Iterable[str]) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {height:g}" role="img" aria-label="{text(name)}">'
        f"{''.join(body)}</svg>"
    )


def rectangle(
    kind: str,
    x: float,
    y: float,
    width: float,
    height: float,
    title: str = "",
    *,
    opacity: float | None = None,
) -> str:
    tooltip = more = ""
    if title:
        tooltip = f"<title>{text(title)}</title>"
    if opacity is not None:
        more = f' fill-opacity="{opacity:.2f}"'
    return (
        f'<rect class="{kind}" x="{x:.1f}" y="{y:.1f}" width="{max(width, LEAST_WIDTH):.1f}" '
        f'height="{height:.1f}"{more}>{tooltip}</rect>'
    )


def line(kind: str, x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def label(kind: str, x: float, y: float, value: str, anchor: str = "start") -> str:
    return (
        f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{text(value)}</text>'
    )
