"""Finds the figures on a screen, and those that its JSON does not have."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from profkit.text import MOST_DIGITS, byte_size, duration, percent, significant

NUMBER = re.compile(r"(?<![\w.,])\d+(?:,\d{3})*(?:\.\d+)?(?!\w)")


def numbers_of(content: Any) -> Iterator[float]:
    if isinstance(content, dict):
        for key, value in content.items():
            yield from numbers_of(value)
            yield from numbers_of(key)
    elif isinstance(content, list):
        yield float(len(content))
        for value in content:
            yield from numbers_of(value)
    elif isinstance(content, str):
        yield from (float(found.replace(",", "")) for found in NUMBER.findall(content))
    elif isinstance(content, int | float):
        yield float(content)


def ways_to_show(value: float) -> Iterator[str]:
    """Yield a figure as nanoseconds, milliseconds, bytes, a share and a plain number."""
    value = abs(value)
    for digits in range(2, MOST_DIGITS + 1):
        yield duration(value, digits)
        yield duration(value * 1e6, digits)
        yield significant(value, digits)
    yield from (percent(value, digits) for digits in range(MOST_DIGITS + 1))
    yield byte_size(value)
    if value == int(value):
        yield f"{int(value):,}"


def figures_of(text: str) -> set[str]:
    return set(NUMBER.findall(text))


def unknown_figures(text: str, twin: Any, factors: tuple[float, ...] = (1.0,)) -> set[str]:
    known = {
        number
        for value in set(numbers_of(twin))
        for factor in factors
        for shown in ways_to_show(value * factor)
        for number in figures_of(shown)
    }
    return figures_of(text) - known


def body_of(text: str) -> str:
    """Return the screen without the line of tabs, the line of keys and fixed words."""
    body = "\n".join(text.splitlines()[1:-1])
    return body.replace("95 % interval", "").replace("within 0.1 %", "")


def top_of_strip(text: str) -> str:
    """Return the scale that the strip shows, which is no figure of the run."""
    found = re.search(r"up to (\S+)", text)
    assert found
    return found[1]
