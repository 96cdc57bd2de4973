"""The SVG elements that charts are made of.

A plot is as wide as the page: its places are shares of the width, and its texts stand outside of
it, so that they stay readable on a telephone. Elements carry classes and plain attributes, no
style and no script, as a strict content policy requires.
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


def plot(height: float, name: str, body: Iterable[str], kind: str = "plot") -> str:
    """Return a drawing as wide as its place; without a name, readers of screens skip it."""
    role = 'aria-hidden="true"'
    if name:
        role = f'role="img" aria-label="{text(name)}"'
    return f'<svg class="{kind}" height="{height:g}" {role}>{"".join(body)}</svg>'


LEAST_SHARE = 0.001
"""A bar is at least this share of a plot wide."""


def bar(kind: str, begin: float, end: float, y: float, height: float, title: str = "") -> str:
    """Return a rectangle from one share of a plot's width to another."""
    width = max(end - begin, LEAST_SHARE)
    tooltip = ""
    if title:
        tooltip = f"<title>{text(title)}</title>"
    return (
        f'<rect class="{kind}" x="{100 * begin:.2f}%" y="{y:.1f}" width="{100 * width:.2f}%" '
        f'height="{height:.1f}">{tooltip}</rect>'
    )


def stroke(kind: str, x1: float, y1: float, x2: float, y2: float) -> str:
    """Return a line between shares of a plot's width."""
    return (
        f'<line class="{kind}" x1="{100 * x1:.2f}%" y1="{y1:.1f}" '
        f'x2="{100 * x2:.2f}%" y2="{y2:.1f}"/>'
    )


def legend(keys: Iterable[tuple[str, str]]) -> str:
    """Return the colours of a chart, each as a kind and words."""
    shown = ""
    for kind, words in keys:
        swatch = plot(10, "", [f'<rect class="{kind}" width="10" height="10"/>'], "swatch")
        shown += f"<span>{swatch}{text(words)}</span>"
    return f'<div class="legend">{shown}</div>'


def chart_row(name: str, drawn: str, figure: str, below: str = "", kind: str = "") -> str:
    """Return a row of a chart: a name, a plot, and its figure with what is less important."""
    small = ""
    if below:
        small = f" <span>{text(below)}</span>"
    return (
        f'<div class="name {kind}">{text(name)}</div>{drawn}'
        f'<div class="figure {kind}">{text(figure)}{small}</div>'
    )
