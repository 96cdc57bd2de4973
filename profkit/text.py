"""Text for people: safe to print, and numbers with the digits that they deserve."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Sequence

_BIDI_AND_INVISIBLE = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\uffff\U000e0000-\U000e0fff]"
)


def safe_text(value: str) -> str:
    """`value` with each character that could steer a terminal shown as an escape instead.

    Names of kernels, files and threads come from strangers: control characters, bidirectional
    marks and invisible characters are made visible, everything else is left as it is.
    """
    if value.isprintable() and not _BIDI_AND_INVISIBLE.search(value):
        return value
    return "".join(map(_visible, value))


def _visible(char: str) -> str:
    if char.isprintable() and not _BIDI_AND_INVISIBLE.match(char):
        return char
    code = ord(char)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word that `word` most likely meant, if any is close."""
    return next(iter(difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)), None)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`; did you mean 'X'?` for the nearest known word, else nothing."""
    close = nearest(word, known)
    return f"; did you mean '{close}'?" if close else ""


def significant(value: float, digits: int = 3) -> str:
    """`value` with this many significant digits or all before the point, never in scientific notation."""
    if not math.isfinite(value):
        return "-"
    if value == 0:
        return "0"
    magnitude = math.floor(math.log10(abs(_rounded(value, digits))))
    return f"{value:,.{max(0, digits - 1 - magnitude)}f}"


def amount(value: float) -> str:
    """How many of something: whole where it is, else with four significant digits."""
    return f"{value:,.0f}" if float(value).is_integer() else significant(value, 4)


def _rounded(value: float, digits: int) -> float:
    """Rounded first, so that 9.996 is seen to be 10.0 and 999.96 us to be 1.00 ms."""
    return float(f"{value:.{digits - 1}e}")


_UNITS = ((1e9, "s"), (1e6, "ms"), (1e3, "us"), (1.0, "ns"))


def duration(ns: float, digits: int = 3) -> str:
    """A duration in the unit that suits its size."""
    if not math.isfinite(ns):
        return "-"
    for scale, unit in _UNITS:
        if abs(_rounded(ns, digits)) >= scale:
            return f"{significant(ns / scale, digits)} {unit}"
    return "0 s" if ns == 0 else f"{significant(ns, digits)} ns"


def percent(share: float, digits: int = 1) -> str:
    return (
        f"{round(100 * share, digits) + 0.0:.{digits}f} %" if math.isfinite(share) else "-"
    )  # + 0.0: zero has no sign


def byte_size(count: float) -> str:
    """A number of bytes in the decimal unit that suits its size."""
    if not math.isfinite(count):
        return "-"
    if abs(count) < 1000:
        return f"{count:.0f} B"
    for unit in ("KB", "MB", "GB"):
        count /= 1000
        if abs(_rounded(count, 3)) < 1000:
            return f"{significant(count)} {unit}"
    return f"{significant(count / 1000)} TB"


def plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def table(
    rows: Sequence[Sequence[str]], *, right: frozenset[int] = frozenset(), indent: str = "  "
) -> str:
    """Rows in aligned columns; `right` names the columns that are aligned to the right."""
    if not rows:
        return ""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = (
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        lines.append(indent + "  ".join(cells).rstrip())
    return "\n".join(lines)
